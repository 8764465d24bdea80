"""Constants by parsing, and functions with what they need of a file that cannot be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmr1.data.constants import constant
from mmr1.pieces import block, function, parsed
from mmr1.registry import Registry

PROGRAM = '''
import no_such_package
from re import search as find

HEAD = "Look. "
RULES = HEAD + "{Question}" + " Answer."
COUNT = len("abc")

def helper(text):
    return find(r"<a>(.*?)</a>", text)

def reward(completions, solution, **kwargs):
    """Right or not."""
    return [float(helper(c)[1] == s) for c, s in zip(completions, solution)]

def main(args):
    QUESTION = ("{Question} "
                "Think.")
    BY_KIND = {"letter": " A letter.", "number": " A number."}

    def make(example):
        return QUESTION.format(Question=example["problem"]) + BY_KIND[example["kind"]]

    return make

class Module(no_such_package.Base):
    PROMPT = "{Question} In the class."

    @staticmethod
    def template(kind):
        match kind:
            case "box":
                return "{Question} A box."
            case "long":
                START = "Start. "
                return START + "{Question}"
            case _:
                return "{Question} Else."

    @staticmethod
    def turn(row):
        return {"content": [{"text": row["problem"] + " Think {}."}]}

    @staticmethod
    def keyed(row):
        key = row["id"] + "-x"
        return {key: row["problem"] + " Think."}

    @staticmethod
    def score(completions, **kwargs):
        return [1.0 if helper(c) else 0.0 for c in completions]
'''


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RULES", "Look. {Question} Answer."),
        ("QUESTION", "{Question} Think."),
        ("main.QUESTION", "{Question} Think."),
        ("Module.PROMPT", "{Question} In the class."),
    ],
)
def test_a_text_wherever_it_stands(program, name, text):
    assert constant(program, name) == text


def test_texts_by_key(program):
    assert constant(program, "BY_KIND") == {"letter": " A letter.", "number": " A number."}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("COUNT", r"this is computed, .*: len\('abc'\)"),
        ("NOTHING", "has no constant 'NOTHING'; its texts: HEAD"),
        ("Other.PROMPT", "no function or class 'Other'"),
        ("helper", "has no constant 'helper'"),
    ],
)
def test_what_is_no_constant(program, name, message):
    with pytest.raises(ValueError, match=message):
        constant(program, name)


def test_a_function_with_what_it_needs(program):
    assert function(program, "reward")(["<a>3</a>", "<a>4</a>"], ["3", "3"]) == [1.0, 0.0]
    assert function(program, "Module.score")(["<a>3</a>", "3"]) == [1.0, 0.0]
    make = function(program, "main.make")
    assert make({"problem": "How many?", "kind": "number"}) == "How many? Think. A number."
    with pytest.raises(ValueError, match=r"'no_such_package'; install it .* pip install no_such"):
        function(program, "Module")
    (program.parent.parent / "no_such_package.py").write_text("raise ImportError")
    own = f"'no_such_package'; it is in {program.parent.parent}: add that to PYTHONPATH"
    with pytest.raises(ValueError, match=own):
        function(program, "Module")


def test_statements_with_what_they_need(program):
    statements = [n for n in parsed(program).body if "COUNT" in ast_names(n)]
    assert block(program, statements, {})["COUNT"] == 3


def ast_names(node) -> str:
    import ast

    return ast.unparse(node)


def test_a_reward_of_a_file_that_cannot_be_imported(program):
    registry = Registry("reward", {})
    with pytest.warns(RuntimeWarning, match="only what reward needs of it is run"):
        reward = registry.load(f"{program}:reward")
    assert reward(["<a>3</a>"], ["3"]) == [1.0]
    with pytest.raises(ValueError, match="cannot be imported: ModuleNotFoundError"):
        registry.load(f"{program}:Module")
    program.write_text("class A:\n    class B:\n        x = 7\n")
    assert registry.load(f"{program}:A.B.x") == 7
