"""The memory of reward models, and the GPUs that they take."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mmr1.config import Config
from mmr1.estimate.advice import advice
from mmr1.estimate.gpus import Gpus
from mmr1.estimate.load import Load
from mmr1.estimate.memory import GIB, estimate
from mmr1.estimate.proposal import propose
from mmr1.trainer.models.scalar_model import HEAD_FILE
from tests.estimate.models import config_for

LOAD = Load(1280, 1024, 1024)
WEIGHTS = 3.754e9 * 2  # of Qwen2.5-VL-3B in bfloat16


@pytest.fixture(scope="module")
def judge(three_b, tmp_path_factory) -> Path:
    """A reward model of 3B, without its weights."""
    path = tmp_path_factory.mktemp("models") / "judge"
    shutil.copytree(three_b, path)
    save_file({"weight": torch.zeros(1, 2048), "bias": torch.zeros(1)}, path / HEAD_FILE)
    return path


def config_of(model: Path, judge: Path | None, **sections: object) -> Config:
    functions = {"judge": {"type": "reward_model", "path": str(judge)}}
    rewards = {"rewards": functions} if judge else {}
    return config_for(model, **rewards, **sections)


def added(owner: str, model: Path, judge: Path, **sections: object) -> float:
    """Bytes that a reward model adds to a device."""
    held, without = (config_of(model, j, **sections) for j in (judge, None))
    return estimate(held, LOAD).total(owner) - estimate(without, LOAD).total(owner)


def test_it_is_counted_where_it_is(three_b, judge):
    assert WEIGHTS < added("trainer", three_b, judge) < 1.3 * WEIGHTS
    assert added("reward model", three_b, judge) == 0
    ranks = {"ranks": 2}
    assert added("trainer", three_b, judge, resources=ranks) == 0
    alone = added("reward model", three_b, judge, resources=ranks)
    assert WEIGHTS < alone < 1.3 * WEIGHTS
    shared = added("reward model", three_b, judge, resources={**ranks, "reward_ranks": 4})
    assert WEIGHTS / 4 < shared < 0.6 * alone


def test_what_does_not_fit_is_to_be_spread(three_b, judge):
    config = config_of(three_b, judge, resources={"ranks": 8})
    assert not [line for line in advice(config, LOAD, 80 * GIB) if "reward" in line]
    lines = [line for line in advice(config, LOAD, 8 * GIB) if "reward" in line]
    assert lines == ["resources.reward_ranks=2: half of the reward models' weights each"]


def test_one_that_is_yet_to_be_trained_is_taken_for_as_large_as_the_policy(three_b, judge):
    later = added("trainer", three_b, Path("not/there"))
    assert later == added("trainer", three_b, judge)


@pytest.mark.parametrize(("gpus", "ranks"), [(8, 7), (3, 2), (2, 1)])
def test_a_proposal_leaves_it_a_gpu(tiny_model, judge, gpus, ranks):
    config = config_of(tiny_model, judge, resources={"auto": True})
    proposal = propose(config.for_command("train"), Gpus(gpus, 80 * GIB), load=LOAD)
    resources = proposal.config.resources
    assert (resources.ranks, resources.reward_ranks) == (ranks, 1)
    wanted = "beside 1 for the reward models" if ranks > 1 else "leave less than two GPUs"
    assert wanted in str(proposal.why)


def test_one_that_does_not_fit_a_gpu_is_sharded(three_b, judge):
    config = config_of(three_b, judge, rollout={"engine": "hf"}, resources={"auto": True})
    proposal = propose(config.for_command("eval"), Gpus(8, 7 * GIB), load=LOAD)
    resources = proposal.config.resources
    assert resources.reward_ranks > 1
    assert resources.engines == 8 - resources.reward_ranks
