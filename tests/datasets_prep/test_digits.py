"""``make digits``: disjoint, balanced, deterministic, and never over something else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from datasets_prep.generators import make
from datasets_prep.generators.digits import WORDS, load_scans
from mmr1.data.record import read_records
from mmr1.vision.images import load_image


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "digits"
    make("digits", folder, seed=0)
    return folder


def test_splits_share_no_scan_and_leave_none_out(digits: Path) -> None:
    splits = {s: read_records(digits / f"{s}.jsonl") for s in ("sft", "rl", "eval")}
    assert {s: len(samples) for s, samples in splits.items()} == {
        "sft": 60,
        "rl": 1237,
        "eval": 500,
    }
    paths = [sample.media[0].path for samples in splits.values() for sample in samples]
    assert len(set(paths)) == 1797
    answers = [sample.answer for sample in splits["sft"]]
    assert sorted(answers) == sorted("0123456789" * 6)


def test_thought_and_answer_name_the_scanned_digit(digits: Path) -> None:
    scans, labels = load_scans()
    for sample in read_records(digits / "sft.jsonl"):
        index = int(sample.id.removeprefix("digits-"))
        digit = int(labels[index])
        demonstration = f"<think>The digit is {WORDS[digit]}.</think><answer>{digit}</answer>"
        assert sample.messages[-1].text == demonstration
        assert sample.answer == str(digit)
        centres = [
            [load_image(sample.media[0]).getpixel((7 * x + 3, 7 * y + 3))[0] for x in range(8)]
            for y in range(8)
        ]
        assert centres == [[round(v * 255 / 16) for v in line] for line in scans[index]]


def test_a_seed_is_a_dataset(digits: Path, tmp_path: Path) -> None:
    again = make("digits", tmp_path / "again", seed=0)
    other = make("digits", tmp_path / "other", seed=1)
    first = json.loads((digits / "manifest.json").read_text())
    assert again == first
    assert other["sha256"]["eval.jsonl"] != first["sha256"]["eval.jsonl"]


def test_made_again_is_left_alone_and_nothing_is_written_over(digits: Path, tmp_path: Path) -> None:
    stamp = (digits / "rl.jsonl").stat().st_mtime_ns
    make("digits", digits, seed=0)
    assert (digits / "rl.jsonl").stat().st_mtime_ns == stamp
    with pytest.raises(ValueError, match="holds something else"):
        make("digits", digits, seed=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    with pytest.raises(ValueError, match="holds something else"):
        make("digits", tmp_path / "mine", seed=0)
    make("digits", tmp_path / "altered", seed=0)
    (tmp_path / "altered/images/0007.png").write_bytes(b"")
    with pytest.raises(ValueError, match="was altered"):
        make("digits", tmp_path / "altered", seed=0)


def test_the_command_line_says_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "datasets_prep", "make", "digit", "--output", tmp_path / "d"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert "did you mean 'digits'?" in run.stderr
    assert len(run.stderr.splitlines()) == 1
