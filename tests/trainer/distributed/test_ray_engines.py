"""Engines on Ray that die or hang: replaced with the weights they had, and asked again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from mmr1.config import Config
from mmr1.data.record import read_records
from mmr1.rollout.engine import Request
from mmr1.trainer.distributed.cluster import on_ray
from mmr1.trainer.distributed.errors import WorkerLostError
from mmr1.trainer.distributed.ray_engines import RayEngines
from mmr1.trainer.models.loading import load_model
from mmr1.types import RolloutGroup
from mmr1.vision.families.loading import load_family

pytest.importorskip("ray", reason="Ray is not installed")


def config(tiny_model: Path, tmp_path: Path, **rollout: object) -> Config:
    return Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        data={"media_workers": 0},
        rollout={
            "engine": "hf",
            "max_model_len": 96,
            "sampling": {"max_tokens": 8},
            "timeout_s": 120,
            "max_restarts": 2,
            **rollout,
        },
        trainer={"threads": 1, "output_dir": str(tmp_path)},
        resources={"engines": 2},
    )


@pytest.fixture(scope="module")
def requests(tiny_model, mixed) -> list[Request]:
    family = load_family(str(tiny_model))
    return [Request(family.render_prompt(s), 2, i) for i, s in enumerate(read_records(mixed)[:4])]


@pytest.fixture
def engines(tiny_model, tmp_path) -> Iterator[RayEngines]:
    """With weights of their own: not those that the model's folder has."""
    settings = config(tiny_model, tmp_path)
    torch.manual_seed(1)
    weights = {
        name: weight + 0.02 * torch.randn_like(weight)
        for name, weight in load_model(settings.model).state_dict().items()
    }
    with on_ray(settings) as cluster:
        cluster.engines.load_weights(weights, 7)
        yield cluster.engines


def processes() -> list[psutil.Process]:
    """The engines of this test, the oldest first."""
    family = psutil.Process().children(recursive=True)
    return sorted((p for p in family if "Engine" in p.name()), key=lambda p: p.create_time())


def tokens(groups: list[RolloutGroup]) -> list[list[int]]:
    assert {c.policy_version for g in groups for c in g.completions} == {7}
    return [c.token_ids.tolist() for g in groups for c in g.completions]


def test_engines_that_die_or_hang_are_replaced_with_the_weights_they_had(
    engines, requests, tiny_model, tmp_path, caplog
):
    sampling = config(tiny_model, tmp_path).rollout.sampling
    expected = tokens(engines.generate(requests, sampling))
    os.kill(processes()[0].pid, signal.SIGKILL)
    assert tokens(engines.generate(requests, sampling)) == expected
    assert engines.restarted == 1
    assert "was lost" in caplog.text
    assert "replaced, 1 of 2 times" in caplog.text

    hung = processes()[0]
    hung.suspend()
    engines._timeout_s = 15
    assert tokens(engines.generate(requests, sampling)) == expected
    assert engines.restarted == 2
    assert len(processes()) == 2
    assert not hung.is_running()

    os.kill(processes()[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match=r"rollout\.max_restarts=2 are used up"):
        engines.generate(requests, sampling)
