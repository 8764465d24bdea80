"""A sound header before pixels that are not: the sample is left out, and the run continues."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.data.record import read_records
from mmr1.trainer.runs.step import StoppedError
from mmr1.trainer.sft import run_sft
from mmr1.trainer.train import run_training
from tests.jsonl import read_jsonl
from tests.trainer.resumption import plan_accident
from tests.trainer.resumption import rl as rl_config
from tests.trainer.same_runs import assert_same

ROWS = 12
BAD = (2, 5, 9)


def cut(picture: Path) -> None:
    """Keep the header and a part of the pixels."""
    picture.write_bytes(picture.read_bytes()[:80])


@pytest.fixture
def rows(digits, tmp_path) -> Callable[[str], Path]:
    """Twelve records of ``digits``, of which three have a cut picture."""

    def made(name: str) -> Path:
        folder = tmp_path / "data"
        shutil.copytree(digits / "images", folder / "images", dirs_exist_ok=True)
        lines = (digits / f"{name}.jsonl").read_text().splitlines()[:ROWS]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        for place in BAD:
            cut(read_records(folder / f"{name}.jsonl")[place].media[0].path)
        return folder / f"{name}.jsonl"

    return made


@pytest.fixture
def rl(tiny_model, digits, reward, tmp_path, rows) -> Callable[..., Config]:
    records = rows("rl")

    def config(out: str, eval: bool = False, **data: object) -> Config:
        base = rl_config(tiny_model, digits, reward, tmp_path / out)
        made = {"train": str(records), "train_batch_size": 2, "max_bad_fraction": 0.3, **data}
        validation = {"data": str(records)} if eval else None
        return base.changed({"data": made, "trainer.validation": validation, "eval.sampled": None})

    return config


def bad_ids(records: Path) -> set[str]:
    return {sample.id for n, sample in enumerate(read_records(records)) if n in BAD}


def test_a_run_goes_on_without_what_cannot_be_decoded(rl, tmp_path):
    config = rl("run")
    run_training(config)
    run, bad = tmp_path / "run", bad_ids(Path(config.data.train))
    dropped = read_jsonl(run / "quarantine.jsonl")
    assert {entry["row"] for entry in dropped} == bad  # five steps of two see every row of twelve
    assert all("truncated" in entry["reason"] for entry in dropped)
    steps = [read_jsonl(path) for path in sorted((run / "rollouts").glob("*"))]
    assert [len(groups) for groups in steps] == [2] * 5
    assert not bad & {group["id"] for groups in steps for group in groups}
    log = (run / "train.log").read_text()
    assert all(f"sample '{name}' of {config.data.train} is left out" in log for name in bad)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["quarantined"] == dropped
    assert summary["faults"] == {"media/left_out": len(BAD)}


def test_a_resumed_run_knows_what_was_left_out(rl, tmp_path):
    run_training(rl("whole"))
    plan_accident(tmp_path, 15, "os.kill(trainer, signal.SIGTERM)")
    config = rl("stopped")
    with pytest.raises(StoppedError):
        run_training(config)
    before = read_jsonl(tmp_path / "stopped/quarantine.jsonl")
    run_training(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "stopped")
    after = read_jsonl(tmp_path / "stopped/quarantine.jsonl")
    assert after[: len(before)] == before
    assert after == read_jsonl(tmp_path / "whole/quarantine.jsonl")


def test_more_than_the_bound_ends_the_run(rl):
    with pytest.raises(
        ValueError, match=r"2 of 12 rows of \S+ cannot be used.*max_bad_fraction=0.1"
    ):
        run_training(rl("bound", max_bad_fraction=0.1))
    with pytest.raises(ValueError, match=r"image file is truncated.*set data\.max_bad_fraction"):
        run_training(rl("none", max_bad_fraction=0.0))


def test_held_out_records_are_left_out_too(rl, tmp_path):
    run_training(rl("run", eval=True))
    completed = {row["id"] for row in read_jsonl(tmp_path / "run/eval/completions.jsonl")}
    bad = bad_ids(tmp_path / "data/rl.jsonl")
    assert len(completed) == ROWS - len(BAD)
    assert not bad & completed
    dropped = [entry["row"] for entry in read_jsonl(tmp_path / "run/quarantine.jsonl")]
    assert sorted(dropped) == sorted([*bad, *bad])  # of data.train and of trainer.validation.data


def test_supervised_training_goes_on_as_well(rows, tiny_model, tmp_path):
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        data={"train": str(rows("sft")), "train_batch_size": 3, "max_bad_fraction": 0.3},
        trainer={"max_steps": 3, "output_dir": str(tmp_path / "sft")},
    )
    run_sft(config)
    dropped = read_jsonl(tmp_path / "sft/quarantine.jsonl")
    assert {entry["row"] for entry in dropped} <= bad_ids(Path(config.data.train))
    assert dropped
