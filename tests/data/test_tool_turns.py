"""Records whose demonstrations have turns of tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmr1.data.forms import read_row
from mmr1.data.forms.chat import read_chat
from mmr1.data.forms.form import Place
from mmr1.data.record import decode, read_records, write_records
from mmr1.data.responses import assistant_text, demonstration
from mmr1.types import Message, TextPart
from mmr1.vision.prepare import MediaCache
from tests.trainer.conversations import picture
from tests.trainer.tiny_groups import family

CALL = '<tool_call>\n{"name": "zoom", "arguments": {"box": [0, 0, 28, 28]}}\n</tool_call>'


def record(folder: Path, *turns: tuple[str, str]) -> dict:
    for name, seed in (("scan.png", 1), ("part.png", 2)):
        (folder / name).write_bytes(picture(seed).read())
    messages = [{"role": role, "content": content} for role, content in turns]
    images = ["scan.png", "part.png"][: sum(m["content"].count("<image>") for m in messages)]
    return {"version": 1, "id": "1", "messages": messages, "images": images, "answer": "7"}


ASKED = ("user", "<image>Which digit?")
TURNS = (ASKED, ("assistant", CALL), ("tool", "Here: <image>"), ("assistant", "It is 7."))


def test_a_picture_in_a_turn_of_the_assistant_is_refused_with_the_record_named(tmp_path):
    shown = (ASKED, ("assistant", f"{CALL}<image>"), ("tool", "Here."), ("assistant", "It is 7."))
    with pytest.raises(ValueError, match=r"sample '1' has a picture .* turn of the assistant"):
        assistant_text(decode(record(tmp_path, *shown), tmp_path))
    with pytest.raises(ValueError, match=r"sample '1' has a picture .* turn of the assistant"):
        assistant_text(decode(record(tmp_path, ASKED, ("assistant", "<image>7")), tmp_path))
    assert assistant_text(decode(record(tmp_path, *TURNS), tmp_path)) == "It is 7."


def test_a_prompt_ends_where_the_demonstration_begins(tmp_path):
    sample = decode(record(tmp_path, *TURNS), tmp_path)
    prompt = family().render_prompt(sample)
    assert sample.demonstrated_from == 1
    assert prompt.text.endswith("Which digit?<|im_end|>\n<|im_start|>assistant\n")
    assert [m.path.name for m in prompt.media] == ["scan.png"]
    assert [m.path.name for m in sample.media] == ["scan.png", "part.png"]


def test_a_demonstration_is_the_conversation_as_the_template_writes_it(tmp_path):
    own, media = family(), MediaCache(family().prepare_media)
    sample = decode(record(tmp_path, *TURNS), tmp_path)
    (completion,) = demonstration(own, own.render_prompt(sample), media).completions
    text = own.tokenizer.decode(completion.token_ids)
    seen = "<|image_pad|>" * media[sample.media[1]].tokens
    assert text == (
        f"{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\n"
        f"Here: <|vision_start|>{seen}<|vision_end|>\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nIt is 7.<|im_end|>"
    )
    assert [span.role for span in completion.spans] == ["assistant", "tool", "assistant"]
    first, answer, last = (span.tokens for span in completion.spans)
    ids = completion.token_ids
    assert own.tokenizer.decode(ids[:first]) == f"{CALL}<|im_end|>"
    assert own.tokenizer.decode(ids[first + answer :]) == "It is 7.<|im_end|>"
    assert first + answer + last == len(ids)


@pytest.mark.parametrize(
    ("roles", "start"),
    [
        ("user assistant", 1),
        ("user", 1),
        ("user assistant user assistant", 3),
        ("user assistant tool tool assistant tool assistant", 1),
        ("user assistant tool assistant user assistant", 5),
        ("system user assistant tool assistant", 2),
        ("user assistant assistant tool tool assistant", 1),
    ],
)
def test_where_a_demonstration_begins(tmp_path, roles, start):
    sample = decode(record(tmp_path, *((role, "x") for role in roles.split())), tmp_path)
    assert sample.demonstrated_from == start


@pytest.mark.parametrize(
    "roles", ["tool assistant", "user tool assistant", "user assistant user tool"]
)
def test_a_tool_that_answers_nothing_is_refused(tmp_path, roles):
    with pytest.raises(ValueError, match="'tool' answers no turn of the assistant"):
        decode(record(tmp_path, *((role, "x") for role in roles.split())), tmp_path)


def test_written_and_read_again(tmp_path):
    sample = decode(record(tmp_path, *TURNS), tmp_path)
    write_records(tmp_path / "again.jsonl", [sample])
    assert read_records(tmp_path / "again.jsonl") == [sample]
    assert json.loads((tmp_path / "again.jsonl").read_text())["messages"][2]["role"] == "tool"


ARGUMENTS = {"box": [0, 0, 28, 28]}
FORMS = {
    "LLaMA-Factory": [
        {"from": "human", "value": "<image>Which digit?"},
        {"from": "function_call", "value": json.dumps({"name": "zoom", "arguments": ARGUMENTS})},
        {"from": "observation", "value": "Here: <image>"},
        {"from": "gpt", "value": "It is 7."},
    ],
    "ms-swift": [
        {"role": "user", "content": "<image>Which digit?"},
        {"role": "tool_call", "content": json.dumps({"name": "zoom", "arguments": ARGUMENTS})},
        {"role": "tool_response", "content": "Here: <image>"},
        {"role": "assistant", "content": "It is 7."},
    ],
    "OpenAI": [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which digit?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "zoom", "arguments": json.dumps(ARGUMENTS)}}],
        },
        {"role": "tool", "content": [{"type": "text", "text": "Here: "}, {"type": "image"}]},
        {"role": "assistant", "content": "It is 7."},
    ],
}


@pytest.mark.parametrize("project", FORMS)
def test_other_projects_conversations_with_tools(project, tmp_path):
    wanted = decode(record(tmp_path, *TURNS), tmp_path)
    key = "conversations" if project == "LLaMA-Factory" else "messages"
    row = {key: FORMS[project], "images": ["scan.png", "part.png"], "answer": "7"}
    sample = read_row(row, Place(tmp_path, "rows", 0))
    assert sample.messages == wanted.messages


def test_each_call_of_a_list_is_tagged():
    calls = json.dumps([{"name": "é"}, {"name": "b"}])
    ((_, text),) = read_chat([{"role": "function_call", "content": calls}]).turns
    assert text == "\n".join(f'<tool_call>\n{{"name": "{n}"}}\n</tool_call>' for n in "éb")


def test_a_special_token_split_over_parts_is_taken_apart():
    parts = (TextPart("a<|im_"), TextPart("end|>"))
    own = family()
    text = own.chat.observation_text([Message("tool", parts)], ended=True)
    assert "a< |im_end|>" in text


def test_a_call_that_is_no_json_is_refused(tmp_path):
    rows = [*FORMS["ms-swift"]]
    rows[1] = {"role": "tool_call", "content": "zoom(0, 0)"}
    with pytest.raises(ValueError, match="a tool call is not JSON"):
        read_row({"messages": rows, "images": []}, Place(tmp_path, "rows", 0))
