"""A run is its folder: named by its config.yaml, moved, copied, made longer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from mmr1.config.file import load_config, read_written
from mmr1.files import sha256_of
from mmr1.trainer.runs.output import finished
from tests.jsonl import read_jsonl


@pytest.fixture
def run(mmr1, tiny_model, digits, tmp_path, monkeypatch) -> Path:
    """Two steps of fine-tuning in ``run``, started in its parent folder."""
    monkeypatch.chdir(tmp_path)
    rows = (digits / "sft.jsonl").read_text().splitlines()[:8]
    (tmp_path / "rows.jsonl").write_text("".join(f"{row}\n" for row in rows))
    schedule = {"type": "cosine", "warmup_steps": 0}
    data = {"train": str(tmp_path / "rows.jsonl"), "media_root": str(digits)}
    asked = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "data": {**data, "train_batch_size": 4},
        "optimizer": {"scheduler": schedule},
        "trainer": {"max_steps": 2, "threads": 1, "output_dir": "run"},
    }
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(asked))
    code, out, error = mmr1("sft", "asked.yaml")
    assert code == 0, out + error
    return tmp_path / "run"


def resume(mmr1, folder: Path | str, *overrides: str) -> str:
    code, out, error = mmr1("sft", f"{folder}/config.yaml", *overrides, "--resume")
    assert code == 0, out + error
    return out


def steps(folder: Path) -> list[int]:
    return [row["step"] for row in read_jsonl(folder / "metrics.jsonl")]


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): sha256_of(path).hex() for path in files}


def test_a_moved_run_continues_where_it_lies(mmr1, run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    moved = run.rename(tmp_path / "elsewhere/new")
    resume(mmr1, moved, "trainer.max_steps=3")
    assert steps(moved) == [1, 2, 3]
    assert not run.exists()


def test_a_copied_run_leaves_the_original_alone(mmr1, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    before = contents(run)
    resume(mmr1, copy, "trainer.max_steps=3")
    assert steps(copy) == [1, 2, 3]
    assert contents(run) == before


def test_a_run_is_known_from_another_working_directory(mmr1, run, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    resume(mmr1, run, "trainer.max_steps=3")
    assert steps(run) == [1, 2, 3]
    assert not any((tmp_path / "other").iterdir())


def test_files_that_a_run_wrote_move_with_it(run, tmp_path):
    written = run / "config.yaml"
    text = written.read_text().replace(str(tmp_path / "rows.jsonl"), "run/rows/given.jsonl")
    written.write_text(text)
    moved = run.rename(tmp_path / "moved")
    for config in (
        load_config(moved / "config.yaml", (), "sft"),
        read_written(moved / "config.yaml"),
    ):
        assert config.data.train == str(moved / "rows/given.jsonl")


def test_a_named_output_folder_is_used(run, tmp_path):
    config = load_config(run / "config.yaml", [f"trainer.output_dir={tmp_path}/named"], "sft")
    assert config.trainer.output_dir == f"{tmp_path}/named"


def test_a_configuration_that_is_no_run_keeps_its_folder(tmp_path):
    (tmp_path / "config.yaml").write_text("model: {path: m}\ntrainer: {output_dir: runs/x}\n")
    assert load_config(tmp_path / "config.yaml").trainer.output_dir == "runs/x"


@pytest.mark.parametrize("limit", [{}, {"trainer.max_steps": 100}])
def test_more_epochs_continue_a_run_that_was_finished(mmr1, run, limit):
    asked = [f"{key}={value}" for key, value in limit.items()] or ["trainer.max_steps=null"]
    resume(mmr1, run, *asked, "trainer.total_epochs=2")  # 8 rows in batches of 4
    assert steps(run) == [1, 2, 3, 4]
    asked_again = load_config(run / "config.yaml", (), "sft")
    assert getattr(finished(asked_again), "name", None) == "step_000004"
    assert finished(asked_again.changed({"trainer.total_epochs": 3})) is None
    resume(mmr1, run, "trainer.total_epochs=3")
    assert steps(run) == [1, 2, 3, 4, 5, 6]


def test_a_longer_run_says_how_its_learning_rate_jumps(mmr1, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    said = " ".join(resume(mmr1, copy, "trainer.max_steps=4").split())
    rates = [row["lr"] for row in read_jsonl(copy / "metrics.jsonl")]
    assert f"the learning rate of step 3 is {rates[2]:.3g}, and was to be 0" in said
    kept = resume(mmr1, run, "trainer.max_steps=4", "optimizer.scheduler.steps=2")
    assert "learning rate" not in kept
    assert [row["lr"] for row in read_jsonl(run / "metrics.jsonl")][2:] == [0, 0]
