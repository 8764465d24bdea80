"""Reward functions of OpenRLHF, LMM-R1, ms-swift and AReaL, unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mmr1.types import Status
from tests.data.form_rows import write_media
from tests.rewards.plugins.cases import PROMPT, Case, Direct, check_case, items_of, score, section

HERE = "tests.contrib.migrate.rewards"
use = partial(section, HERE)


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    write_media(folder)
    return folder


def _openrlhf(gold: str) -> Direct:
    def direct(function: Any, row: dict[str, Any], texts: Sequence[str], media: Path) -> Any:
        count = len(texts)
        queries = [PROMPT + text for text in texts]
        value = function(queries, [PROMPT] * count, [row[gold]] * count)
        return value["rewards"] if isinstance(value, dict) else value.tolist()

    return direct


def _swift(function: Any, row: dict[str, Any], texts: Sequence[str], media: Path) -> Any:
    value = function()(list(texts), solution=[row["solution"]] * len(texts))
    return asyncio.run(value) if asyncio.iscoroutine(value) else value


def _areal(function: Any, row: dict[str, Any], texts: Sequence[str], media: Path) -> Any:
    return [
        function(PROMPT, text, [1, 2], [7, 8, 9], answer=row["answer"], level=row["level"])
        for text in texts
    ]


MESSAGE = (
    '[{"role": "user", "content": [{"type": "image", "image": "a.png"}, '
    '{"type": "text", "text": "Find x."}]}]'
)

CASES = [
    Case(
        "lmm_r1", "reward_func",
        [({"message": MESSAGE, "answer": r"$\boxed{5}$"}, [r"\boxed{5}", r"\boxed{6}"])],
        _openrlhf("answer"),
    ),
    Case(
        "ms_swift", "Accuracy",
        [({"messages": [{"role": "user", "content": "<image>Who?"}], "images": ["a.png"],
           "solution": "<answer> A man. </answer>"}, ["<answer> A man. </answer> ", "A man."])],
        _swift,
    ),
    Case(
        "ms_swift", "AsyncAccuracy",
        [({"query": "<image>Who?", "images": ["a.png"], "solution": "A man."},
          ["A man.", "a man"])],
        _swift,
    ),
    Case(
        "openrlhf", "reward_func",
        [({"prompt": "<image>Find x.", "images": ["a.png"], "label": "5"}, ["5", "6"])],
        _openrlhf("label"),
    ),
    Case(
        "areal", "reward_fn",
        [({"messages": [{"role": "user", "content": "<image>Find x."}], "images": ["a.png"],
           "answer": "1 , 2", "level": 3}, ["[1, 2]", "1, 2"])],
        _areal,
    ),
]  # fmt: skip


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "not isolated"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.project}-{case.function}")
def test_rewards_equal_those_of_the_project(case: Case, isolated: bool, media: Path) -> None:
    rewards = check_case(HERE, case, isolated, media)
    assert len({reward.value for reward in rewards}) > 1


def test_openrlhf_logs_are_components(media: Path) -> None:
    row = {"prompt": "<image>Find x.", "images": ["a.png"], "label": "5"}
    items = items_of([(row, ["<answer>5</answer>", "5"])], media)
    rewards = score({"theirs": use("openrlhf_logs", "reward_func")}, items)
    assert [reward.components for reward in rewards] == [
        {"theirs": 1.0, "theirs/seen": 1.0}, {"theirs": 0.0, "theirs/seen": 1.0}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("Agent", "write __call__"),
        ("Generative", "ms-swift's reward model plugins"),
        ("Plain", "is a class without __call__"),
    ],
)
def test_ms_swift_class_that_cannot_be_called_is_refused(function: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score({"f": use("ms_swift", function)}, [])


def test_missing_base_class_of_ms_swift_names_remedy(tmp_path: Path) -> None:
    (tmp_path / "orm.py").write_text("from swift.plugin import ORM\nclass Mine(ORM): pass\n")
    with pytest.raises(ValueError, match=r"No module named 'swift'.*install ms-swift"):
        score({"f": {"type": f"{tmp_path}/orm.py:Mine"}}, [])


def test_stated_style_takes_a_function_for_a_class(tmp_path: Path, media: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def reward(completions, **columns):\n    return [len(c) for c in completions]\n"
    )
    row = {"messages": [{"role": "user", "content": "Who?"}], "answer": "me"}
    items = items_of([(row, ["abc", "defgh"])], media)
    as_trl = score({"f": {"type": f"{file}:reward"}}, items)
    assert [reward.value for reward in as_trl] == [1.0, 1.0]  # each is a list of one message
    as_swift = score({"f": {"type": f"{file}:reward", "style": "ms-swift"}}, items)
    assert [reward.value for reward in as_swift] == [3.0, 5.0]


def test_areal_takes_one_completion_and_no_prompt_ids(tmp_path: Path, media: Path) -> None:
    with pytest.raises(ValueError, match=r"call: batch is for functions that take lists.*AReaL"):
        score({"f": use("areal", "reward_fn", call="batch")}, [])
    file = tmp_path / "ids.py"
    file.write_text(
        "def reads(prompt, completions, prompt_ids, completion_ids, **columns):\n"
        "    return float(len(prompt_ids))\n"
        "def ignores(prompt, completions, prompt_ids, completion_ids, **columns):\n"
        "    return float(len(completion_ids))\n"
    )
    row = {"messages": [{"role": "user", "content": "Who?"}], "answer": "me"}
    items = items_of([(row, ["me", "you"])], media)
    assert [r.value for r in score({"f": {"type": f"{file}:ignores"}}, items)] == [3.0, 3.0]
    for reward in score({"f": {"type": f"{file}:reads"}}, items):
        assert reward.status is Status.ERROR
        assert "it reads 'prompt_ids' as AReaL gives them" in (reward.error or "")
