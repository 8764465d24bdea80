"""Prompt templates keep the media in place and say what they need."""

from __future__ import annotations

from pathlib import Path

import pytest

import mmr1.data
from mmr1.data.templates import apply_template, load_template
from mmr1.types import MediaRef, Message, Sample, TextPart

BUILT_IN = sorted(path.stem for path in Path(mmr1.data.__file__).parent.glob("prompts/*.jinja"))
IMAGE = MediaRef("image", data=b"x")


def sample(*parts: TextPart | MediaRef, task: str = "math", **meta: object) -> Sample:
    return Sample("s", (Message("user", parts),), "1", task, "set", meta)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("task", ["math", "choice", "tiou", "ocr", "numeric", "iou"])
def test_every_template_keeps_question_media_and_order(name: str, task: str) -> None:
    before = sample(IMAGE, TextPart("How {{ many }} \\boxed?"), task=task)
    after = apply_template(before, load_template(name))
    user = next(m for m in after.messages if m.role == "user")
    assert user.parts[0] is IMAGE
    assert user.text.count("How {{ many }} \\boxed?") == 1
    assert after.media == before.media
    text = "".join(m.text for m in after.messages)
    assert "\ue000" not in text
    assert "answer>" in text or "\\boxed" in text


def test_interleaved_media_stay_between_their_words(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("Look. {{ question }} Now answer.")
    mixed = sample(IMAGE, TextPart("a "), IMAGE, TextPart(" b"))
    (message,) = apply_template(mixed, load_template(str(path))).messages
    pieces = [p.text if isinstance(p, TextPart) else "image" for p in message.parts]
    assert pieces == ["image", "Look. ", "a ", "image", " b", " Now answer."]


def test_the_system_message_does_not_replace_one() -> None:
    template = load_template("deepseek_r1_style")
    assert apply_template(sample(TextPart("q")), template).messages[0].role == "system"
    with_system = Sample(
        "s", (Message("system", (TextPart("mine"),)), Message("user", (TextPart("q"),)))
    )
    assert [m.text for m in apply_template(with_system, template).messages] == ["mine", "q"]


def test_only_the_last_question_is_wrapped() -> None:
    turns = tuple(
        Message(role, (TextPart(text),))
        for role, text in (("user", "one"), ("assistant", "two"), ("user", "three"))
    )
    wrapped = apply_template(Sample("s", turns), load_template("boxed"))
    assert wrapped.messages[:2] == turns[:2]
    assert wrapped.messages[2].text.startswith("three\nReason step by step")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no question", "has {{ question }} 0 times"),
        ("{{ question }}{{ question }}", "2 times"),
        ("{{ question }} {{ colour }}", "'colour' is undefined"),
        ("{{ question.__class__ }}", "unsafe|0 times"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_templates_at_fault(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        apply_template(sample(TextPart("q")), load_template(str(path)))


def test_names_that_are_none() -> None:
    with pytest.raises(
        ValueError, match=r"unknown data.prompt_template 'boxd' \(did you mean 'boxed'"
    ):
        load_template("boxd")
    with pytest.raises(ValueError, match="no such file"):
        load_template("none.jinja")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_bytes(b"\xff{{ question }}")
    with pytest.raises(
        ValueError, match=r"data.prompt_template '.*t.jinja' cannot be read: .utf-8"
    ):
        load_template(str(path))


def wrapped(spec: str, question: str = "How many?", **meta: object) -> str:
    asked = sample(IMAGE, TextPart(question), **meta)
    return apply_template(asked, load_template(spec)).messages[0].text


def test_constants_of_a_file_of_another_project(tmp_path: Path) -> None:
    path = tmp_path / "grpo.py"
    path.write_text(
        "def main():\n"
        "    ASK = '{Question}\\n {{x}} {{{{ y }}}} Think. '\n"
        "    BY_KIND = {'letter': ' {{A}} letter.', 'number': ' A number.'}\n"
        "def of(kind):\n"
        "    match kind:\n"
        "        case 'box':\n"
        "            return '{Question} A box.'\n"
        "        case _:\n"
        "            return '{Question} Else.'\n"
    )
    filled = "How {many}?\n {x} {{ y }} Think. "  # as str.format gives it
    assert wrapped(f"{path}:ASK", "How {many}?") == filled
    by_kind = f"{path}:ASK + BY_KIND[kind]"
    assert wrapped(by_kind, "How {many}?", row={"kind": "letter"}) == filled + " {{A}} letter."
    assert wrapped(f"{path}:of[box]") == "How many? A box."
    with pytest.raises(ValueError, match="write BY_KIND\\[KEY\\]"):
        load_template(f"{path}:ASK + BY_KIND")
    with pytest.raises(ValueError, match=r"'other'|no attribute"):
        wrapped(by_kind, row={"kind": "other"})


CALLED = """
import no_such_training_stack
END = " Think."

def text(row):
    key = row["id"] + "-x"
    return {key: row["problem"] + END}[key]

def main(args):
    def chat(example):
        return {
            "problem": example["problem"],
            "prompt": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [
                    *({"type": "image", "text": None} for _ in example["image_path"]),
                    {"type": "text", "text": example["question"] + END},
                ]},
            ],
        }
    return chat

def without(row):
    return "Nothing."

def broken(row):
    return row["no such column"]
"""


def test_a_function_makes_the_prompt_of_each_record(tmp_path: Path) -> None:
    path = tmp_path / "grpo.py"
    path.write_text(CALLED)
    assert wrapped(f"{path}:text", "2 + {x}?", row={"id": "7"}) == "2 + {x}? Think."
    made = apply_template(
        sample(IMAGE, TextPart("What?")), load_template(f"{path}:main.chat")
    ).messages
    assert [(m.role, m.text) for m in made] == [("system", "Be brief."), ("user", "What? Think.")]
    assert made[1].parts[0] == IMAGE
    with pytest.raises(ValueError, match="without uses the question 0 times"):
        wrapped(f"{path}:without")
    with pytest.raises(ValueError, match=r"broken: KeyError: .* it gets the columns"):
        wrapped(f"{path}:broken")


def test_templates_of_easyr1_and_verl_load_as_they_are(tmp_path: Path) -> None:
    jinja, text = tmp_path / "math.jinja", tmp_path / "math.txt"
    jinja.write_text("{{ content | trim }} You think \\boxed{}.\n")
    assert wrapped(str(jinja), "Find x. ") == "Find x. You think \\boxed{}."
    jinja.write_text("{{ content }} You think.\n")
    assert wrapped(str(jinja), "Find x. ") == "Find x.  You think."
    text.write_text("Solve {question} now.")
    assert wrapped(str(text)) == "Solve How many? now."
    text.write_text("Solve {{ content }} now.")
    assert wrapped(str(text)) == "Solve How many? now."
