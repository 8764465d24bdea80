"""A placeholder after a backslash is text: in the rows of every format, and in records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmr1.data.placeholders import Tag, as_text, literal, split_tags
from mmr1.data.record import decode, encode, read_records, write_records
from mmr1.types import Message, Sample, TextPart
from tests.data.form_rows import read, write_media, written

pieces = st.lists(st.sampled_from(["\\", "<image>", "<video 2>", "x", " "]), max_size=8)


@given(pieces)
def test_a_text_with_tags_can_be_written(parts: list[str]) -> None:
    text = "".join(parts)
    assert list(split_tags(as_text(text))) == ([text] if text else [])


@given(pieces)
def test_backslashes_of_latex_hide_no_tag(parts: list[str]) -> None:
    text = "".join(parts).replace("\\", "\\\\")
    found = list(split_tags(text))
    assert "".join(map(str, found)) == text.replace("<video 2>", "<video2>")
    assert len([p for p in found if isinstance(p, Tag)]) == text.count("<")


SEE = "See ![fig](\\<image>) above."
ROWS: dict[str, dict[str, Any]] = {
    "easyr1": {"problem": f"<image>{SEE}", "images": ["a.png"], "answer": "5"},
    "r1_v": {"problem": SEE, "image": "a.png", "solution": "<answer>5</answer>"},
    "vqa": {"question": SEE, "image": "a.png", "answer": "5"},
    "verl": {
        "prompt": [{"role": "user", "content": f"<image>{SEE}"}], "images": ["a.png"],
        "reward_model": {"ground_truth": "5"},
    },
    "trl": {
        "prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": SEE}]}],
        "image": "a.png",
    },
    "sharegpt": {
        "messages": [{"role": "user", "content": f"<image>{SEE}"},
                     {"role": "assistant", "content": SEE}],
        "images": ["a.png"],
    },
    "vlm_r1": {
        "image": "a.png",
        "conversations": [{"from": "human", "value": SEE}, {"from": "gpt", "value": SEE}],
    },
    "options": {"problem": f"<image>{SEE}", "images": ["a.png"], "options": [SEE, "x"],
                "answer": "A"},
    "canonical": {
        "version": 1, "id": "1", "images": ["a.png"],
        "messages": [{"role": "user", "content": f"<image>{SEE}"}],
    },
    "canonical list": {
        "version": 1, "id": "1",
        "messages": [{"role": "user", "content": [{"type": "image", "path": "a.png"},
                                                  {"type": "text", "text": SEE}]}],
    },
}  # fmt: skip


@pytest.mark.parametrize("form", ROWS)
def test_an_escaped_tag_is_text_in_every_form(tmp_path: Path, form: str) -> None:
    write_media(tmp_path)
    sample = read(ROWS[form], tmp_path)
    assert len(sample.media) == 1
    shown = [line.split(": ", 1)[1].removeprefix("[a.png]") for line in written(sample)]
    assert all(line.startswith(literal(SEE)) for line in shown)
    assert all("\\" not in text for text in (*shown, *sample.meta.get("options", ())))


def test_a_record_keeps_tags_in_texts(tmp_path: Path) -> None:
    texts = ["See <image>.", "\\<image 1>", "\\\\<video>", "none"]
    samples = [
        Sample(f"{n}", (Message("user", (TextPart(text),)),)) for n, text in enumerate(texts)
    ]
    write_records(tmp_path / "r.jsonl", samples)
    assert read_records(tmp_path / "r.jsonl") == samples
    assert [decode(encode(sample, tmp_path), tmp_path) for sample in samples] == samples
