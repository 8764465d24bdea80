"""What each phase of a step should take, against the count on the stand-in device."""

from __future__ import annotations

import pytest

from mmr1.estimate.gpu_split import Machine
from mmr1.estimate.load import Load
from mmr1.estimate.step_time import phases
from tests.estimate.models import config_for

LOAD = Load(1124, 1024, 1024)
PEAK = Machine(bandwidth_reached=1.0)
RUN = {
    "data": {"train_batch_size": 1},
    "rollout": {"n": 8, "max_response_length": 1024},
}


def seconds(path, fused=False, **sections) -> dict[str, float]:
    config = config_for(path, **{**RUN, **sections})
    return {phase.name: phase.seconds for phase in phases(config, LOAD, fused, PEAK)}


def test_an_update_of_3b_is_as_it_was_counted(three_b):
    """``scripts/bench/counted_step.py``: 188 ms element-wise, 63 fused, 122 GB in the head."""
    plain, fused = seconds(three_b), seconds(three_b, fused=True)
    assert plain["update: element-wise"] == pytest.approx(0.188, rel=0.15)
    assert fused["update: element-wise"] == pytest.approx(0.063, rel=0.15)
    assert plain["update: log-prob head"] == pytest.approx(122e9 / 3.35e12, rel=0.05)
    # 201.5 TFLOP at seven tenths of the peak, with the attention and the head.
    assert plain["update: products"] == pytest.approx(201.5 / (0.7 * 989), rel=0.1)


def test_what_changes_a_phase(three_b):
    one = seconds(three_b)
    checkpointed = seconds(three_b, model={"gradient_checkpointing": True})
    assert checkpointed["update: products"] == pytest.approx(4 / 3 * one["update: products"])
    offloaded = seconds(three_b, optimizer={"offload": True})
    assert offloaded["AdamW"] > 10 * one["AdamW"]
    # On one GPU the weights do not leave it; an engine on two has them by main memory.
    wide = seconds(three_b, rollout={**RUN["rollout"], "engine": {"tensor_parallel_size": 2}})
    assert wide["weights to the engine"] > 100 * one["weights to the engine"]
    many = config_for(three_b, **{**RUN, "data": {"train_batch_size": 64}})
    (decoding,) = (p for p in phases(many, Load(100, 0, 100), True) if p.name == "decoding")
    assert decoding.seconds == pytest.approx(100 * 64 * 8 * 20e-6)
    assert "host" in decoding.bound
    apart = seconds(three_b, resources={"ranks": 4, "engines": 4}, data={"train_batch_size": 8})
    assert apart["update: products"] == pytest.approx(2 * one["update: products"])
