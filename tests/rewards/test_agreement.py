"""Two rewards on the same completions: figures by hand, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import EpsImagePlugin, Image

from mmr1.rewards.agreement import compare
from mmr1.rewards.plugins.item_rows import batches_of_groups, read_items
from mmr1.types import Reward, Status


def rewards(*values: float | None) -> list[Reward]:
    return [Reward(v) if v is not None else Reward(None, Status.ERROR, error="no") for v in values]


def test_figures_by_hand():
    first = rewards(1.0, 1.0, 0.0, 0.0, 1.0, None, 0.0)
    second = rewards(0.9, 0.2, 0.1, 0.6, 0.5, 1.0, None)
    found = compare(first, second, 0.5)
    assert (found.both_pass, found.only_first, found.only_second, found.neither) == (2, 1, 1, 1)
    assert found.invalid == (1, 1)
    assert found.compared == 5
    assert found.share == pytest.approx(3 / 5)
    chance = (3 * 3 + 2 * 2) / 25
    assert found.kappa == pytest.approx((3 / 5 - chance) / (1 - chance))
    assert found.disagreements == (1, 3)  # apart by 0.8 and 0.6


def test_kappa_of_the_textbook():
    """20 yes by both, 5 by the first, 10 by the second, 15 no: kappa 0.4."""
    first = rewards(*[1.0] * 25, *[0.0] * 25)
    second = rewards(*[1.0] * 20, *[0.0] * 5, *[1.0] * 10, *[0.0] * 15)
    assert compare(first, second, 0.5).kappa == pytest.approx(0.4)


def test_what_has_no_figure():
    nothing = compare(rewards(None), rewards(1.0), 0.5)
    assert (nothing.share, nothing.kappa, nothing.correlation) == (None, None, None)
    alike = compare(rewards(1.0, 1.0), rewards(1.0, 1.0), 0.5)
    assert (alike.share, alike.kappa, alike.correlation) == (1.0, None, None)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The rollouts of a run: one prompt with an image, two completions."""
    folder = tmp_path / "run"
    (folder / "rollouts").mkdir(parents=True)
    (folder / "media").mkdir()
    Image.new("RGB", (600, 400), "red").save(folder / "media/a.png")
    row = {
        "step": 1,
        "id": "q<1>",
        "prompt": "<|im_start|>user How many?",
        "question": "How many?",
        "answer": "4",
        "task": "math",
        "media": [{"path": "media/a.png", "kind": "image", "digest": "d"}],
        "completions": [
            {"text": f"<answer>{n}</answer>", "truncated": False, "reward": 1.0} for n in (4, 5)
        ],
    }
    (folder / "rollouts/step_000001.jsonl").write_text(
        json.dumps(row) + "\n" + json.dumps(row) + "\n"
    )
    return folder


def test_rollouts_are_read(run: Path):
    items = list(read_items(run))
    assert [item.completion for item in items] == ["<answer>4</answer>", "<answer>5</answer>"] * 2
    assert [item.group for item in items] == [0, 0, 1, 1]
    assert items[0].sample.question == "How many?"
    assert items[0].sample.media[0].path == run / "media/a.png"
    assert [len(batch) for batch in batches_of_groups(items, 1)] == [2, 2]
    assert [len(batch) for batch in batches_of_groups(items, 3)] == [4]
    with pytest.raises(ValueError, match="there are no rollouts"):
        list(read_items(run / "media"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("completions", [{}]), ("completions", 1), ("media", [{}]), ("media", 1), ("task", ["math"])],
)
def test_a_damaged_rollout_is_one_line(run: Path, name: str, value: Any, mmr1):
    file = run / "rollouts/step_000001.jsonl"
    row = json.loads(file.read_text().splitlines()[0])
    file.write_text(json.dumps({**row, name: value}) + "\n")
    code, _, message = mmr1("reward", "agree", "math", "math", "--input", run)
    assert code == 2
    assert f"{file}:1: " in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"completion": "\xff"}', b"{"])
def test_a_line_that_is_no_json_is_named(line: bytes, tmp_path: Path, mmr1):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(line)
    code, _, message = mmr1("reward", "agree", "math", "math", "--input", file)
    assert code == 2
    assert "rows.jsonl:1: not valid JSON" in message


BOMB = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + b"\0\0\x9c\x40" * 2 + b"\x08\2\0\0\0" + b"\0" * 4
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"


@pytest.mark.parametrize("picture", [BOMB, EPS], ids=["bomb", "EPS"])
def test_the_page_shows_no_picture_that_a_run_would_not_read(
    run: Path, picture: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mmr1
):
    """Pillow hands EPS to a program, Ghostscript."""
    (run / "media/a.png").write_bytes(picture)
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("it was run"))
    own = tmp_path / "own.py"
    own.write_text("def reward(completion: str, answer) -> float:\n    return 1.0\n")
    page = tmp_path / "page.html"
    code, _, _ = mmr1("reward", "agree", "math", f"{own}:reward", "--input", run, "--output", page)
    assert code == 0
    assert "data:image" not in page.read_text()


def test_the_command_prints_figures_and_writes_a_page(run: Path, tmp_path: Path, mmr1):
    own = tmp_path / "own.py"
    own.write_text("def reward(completion: str, answer) -> float:\n    return 1.0\n")
    page = tmp_path / "page.html"
    code, output, _ = mmr1(
        "reward", "agree", "math", f"{own}:reward", "--input", run, "--output", page
    )
    assert code == 0
    assert "agreement: 0.500" in output
    assert "4 compared; without a valid reward: 0 by math and 0 by" in output
    text = page.read_text()
    assert text.count("<article>") == 2
    assert "&lt;answer&gt;5&lt;/answer&gt;" in text
    assert "<answer>" not in text
    assert text.count("data:image/jpeg;base64,") == 2
    code, _, message = mmr1("reward", "agree", "math", "math", "--input", tmp_path / "nowhere")
    assert code == 2
    assert "nowhere: no such file" in message
