"""Demonstrations from completions: which are kept, and that training reads them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from datasets_prep.demonstrations import Standard, write_demonstrations
from mmr1.data.record import read_records
from mmr1.data.responses import assistant_text
from mmr1.types import media_of
from tests.jsonl import read_jsonl

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    rows = [
        {
            "version": 1,
            "id": name,
            "messages": [{"role": "user", "content": f"What is {name}?"}],
            "answer": "1",
        }
        for name in NAMES
    ]
    rows[1]["messages"].append({"role": "assistant", "content": "An old answer."})
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def completion(name: str, text: str, right: bool | None = True, **keys) -> dict:
    reward = None if right is None else float(right)
    return {
        **{"mode": "sampled", "id": name, "index": 0, "completion": text, "truncated": False},
        "answer": "1",
        **{"right": right, "reward": reward, "components": {"math": reward, "short": 0.25}},
        **keys,
    }


SHOWN = "a picture: <image>"
EVALUATED = [
    completion("a", "wrong", right=False),
    completion("a", "first"),
    completion("a", "first"),  # the same once more
    completion("a", "second"),
    completion("b", "cut off", truncated=True),
    completion("b", "new"),
    completion("c", "not judged", right=None),
    completion("d", SHOWN),  # no picture: a text of the answer
    completion("elsewhere", "of another record"),
    completion("c", "of another dataset", answer="2"),
]


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answers(path: Path) -> dict[str, str]:
    return {sample.id: assistant_text(sample) for sample in read_records(path)}


def test_right_completions_become_answers(records, tmp_path):
    file = write(tmp_path / "completions.jsonl", EVALUATED)
    counts = write_demonstrations(records, file, tmp_path / "one.jsonl", Standard())
    assert counts == (3, 3, 4)
    assert answers(tmp_path / "one.jsonl") == {"a": "first", "b": "new", "d": SHOWN}
    assert len(read_jsonl(tmp_path / "one.jsonl")[1]["messages"]) == 2  # the old answer has gone
    several = tmp_path / "several.jsonl"
    write_demonstrations(records, file, several, Standard(per_record=4))
    assert answers(several) == {"a-0": "first", "a-1": "second", "b-0": "new", "d-0": SHOWN}


def test_a_reward_function_decides(records, tmp_path):
    file = write(tmp_path / "completions.jsonl", EVALUATED)
    out = tmp_path / "short.jsonl"
    write_demonstrations(records, file, out, Standard("short", 0.25))
    assert answers(out) == {"a": "wrong", "b": "new", "d": SHOWN}
    with pytest.raises(
        ValueError, match=r"no completion of .*: of 10, 1 are truncated and 1 have no"
    ):
        write_demonstrations(records, file, tmp_path / "none.jsonl", Standard("short", 0.5))
    assert not (tmp_path / "none.jsonl").exists()
    with pytest.raises(ValueError, match=r"jsonl:1: 'long' is none of its reward .*math, short"):
        write_demonstrations(records, file, tmp_path / "none.jsonl", Standard("long"))


def test_rollouts_of_a_run_with_their_media(digits, tmp_path):
    samples = read_records(digits / "rl.jsonl")[:3]
    of_step = [
        {
            "id": sample.id,
            "answer": sample.answer,
            "completions": [
                {"text": f"{n}", "truncated": False, "reward": n, "components": {"math": float(n)}}
                for n in (0, 1)
            ],
        }
        for sample in samples
    ]
    folder = write(tmp_path / "rollouts/step_000001.jsonl", of_step).parent
    out = tmp_path / "out/sft.jsonl"
    out.parent.mkdir()
    with pytest.raises(ValueError, match=r"--function \(one of math\)"):
        write_demonstrations(digits / "rl.jsonl", folder, out, Standard())
    write_demonstrations(digits / "rl.jsonl", folder, out, Standard("math"))
    written = read_records(out)
    assert [s.id for s in written] == [s.id for s in samples]
    assert [m.read() for s in written for m in s.media] == [
        m.read() for s in samples for m in s.media
    ]
    assert set(answers(out).values()) == {"1"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "no id"}, r"completions.jsonl:1: .*it has no id"),
        ({"id": "a", "text": "?"}, r"neither 'completion' nor 'completions'"),
    ],
)
def test_files_of_something_else(row, message, records, tmp_path):
    file = write(tmp_path / "completions.jsonl", [row])
    with pytest.raises(ValueError, match=message):
        write_demonstrations(records, file, tmp_path / "out.jsonl", Standard())


def test_a_conversation_replaces_an_old_one_and_its_pictures(tmp_path):
    Image.new("RGB", (28, 28), "red").save(tmp_path / "old.png")
    Image.new("RGB", (28, 28), "blue").save(tmp_path / "asked.png")
    Image.new("RGB", (28, 28), "green").save(tmp_path / "new.png")
    call = {"role": "assistant", "content": "<tool_call>...</tool_call>"}
    record = {
        "version": 1,
        "id": "a",
        "answer": "1",
        "images": ["asked.png", "old.png"],
        "messages": [
            {"role": "user", "content": "<image>Which?"},
            call,
            {"role": "tool", "content": "<image>"},
            {"role": "assistant", "content": "old"},
        ],
    }
    records = write(tmp_path / "records.jsonl", [record])
    shown = {"kind": "image", "path": "new.png"}
    turns = [
        {"role": "assistant", "text": "I look.", "media": [], "answers": []},
        {
            "role": "tool", "text": "left:\nnone", "media": [shown],
            "answers": [[{"text": "left:"}, {"medium": 0}], [{"text": "none"}]],
        },
        {"role": "assistant", "text": "new", "media": [], "answers": []},
    ]  # fmt: skip
    folder = tmp_path / "rollouts"
    write(folder / "step_000001.jsonl", [completion("a", "new", turns=turns)])
    write_demonstrations(records, folder, tmp_path / "out.jsonl", Standard())
    (sample,) = read_records(tmp_path / "out.jsonl")
    assert [m.role for m in sample.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [m.text for m in sample.messages[1:]] == ["I look.", "left:", "none", "new"]
    files = [Image.open(io.BytesIO(m.read())).getpixel((0, 0)) for m in sample.shown]
    assert files == [(0, 0, 255)]
    (picture,) = media_of(sample.messages[2:3])
    assert picture.read() == (tmp_path / "new.png").read_bytes()
    del turns[1]["answers"]
    write(folder / "step_000001.jsonl", [completion("a", "new", turns=turns)])
    with pytest.raises(ValueError, match="name the rollouts of a run"):
        write_demonstrations(records, folder, tmp_path / "none.jsonl", Standard())
