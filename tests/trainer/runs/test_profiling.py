"""A run whose steps are profiled and whose checkpoints are the model alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from transformers import AutoModelForImageTextToText

from mmr1.config.file import load_config
from mmr1.trainer.runs.step import profiled, rank_trace_path
from mmr1.trainer.sft import run_sft
from mmr1.trainer.train import run_training
from tests.trainer.resumption import LENGTH_REWARD, rl


@pytest.fixture(scope="module")
def run(tiny_model, digits, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "length.py").write_text(LENGTH_REWARD)
    (folder / "accident").write_text("")
    keys = {"max_steps": 3, "profile_steps": [2], "save_only_model": True}
    run_training(rl(tiny_model, digits, folder / "length.py", folder / "run", **keys))
    return folder / "run"


def test_a_profiled_step_is_a_trace_with_its_phases(run):
    (trace,) = (run / "profile").iterdir()
    assert trace.name == "step_000002.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = [event.get("name") for event in events]
    phases = ("rollout", "reward", "experience", "update", "sync")
    assert [names.count(f"mmr1/{phase}") for phase in phases] == [1] * 5
    assert names.count("mmr1/optimizer") == 2  # ppo_epochs
    assert any(name == "aten::mm" for name in names)


def test_a_checkpoint_of_the_model_alone(run, tiny_model, digits, tmp_path):
    folders = sorted((run / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["step_000002", "step_000003"]
    for folder in folders:
        assert not (folder / "training").exists()
        assert AutoModelForImageTextToText.from_pretrained(folder).num_parameters() > 0
    length = run.parent / "length.py"
    longer = rl(tiny_model, digits, length, run, max_steps=4, save_only_model=True)
    with pytest.raises(ValueError, match=r"step_000003 is a model alone .* as model\.path"):
        run_training(longer, resume=True)
    sft = [f"model.path={tiny_model}", f"data.train={digits}/sft.jsonl"]
    keys = ["trainer.save_only_model=true", f"trainer.output_dir={tmp_path}/sft"]
    with pytest.raises(ValueError, match=r"only mmr1 train writes checkpoints of the model alone"):
        run_sft(load_config(None, [*sft, *keys], "sft"))
    with pytest.raises(ValueError, match=r"only mmr1 train writes traces of steps"):
        run_sft(load_config(None, [*sft, keys[1], "trainer.profile_steps=[1]"], "sft"))


def test_ranks_are_told_of_the_step_and_write_beside_it(tmp_path):
    """What they write: ``tests/trainer/distributed/test_ray.py``."""
    told: list[object] = []

    class Ranks:
        def begin_trace(self) -> None:
            told.append("begin")

        def end_trace(self, file: Path) -> None:
            told.extend([file.exists(), rank_trace_path(file, 2).name])

    keys = ["model.path=a", "trainer.profile_steps=[3]", "resources.ranks=2"]
    trainer = load_config(None, [*keys, f"trainer.output_dir={tmp_path}"]).trainer
    with profiled(trainer, 3, Ranks()):
        told.append(3)
    assert told == ["begin", 3, True, "step_000003_rank_00002.json.gz"]
