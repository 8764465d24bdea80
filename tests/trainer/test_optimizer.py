"""AdamW with half-precision weights, and the learning-rate schedules."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from mmr1.config import OptimizerConfig
from mmr1.trainer.optimizer import Optimizer, schedule_factor


def steps_of_one(dtype: torch.dtype, count: int) -> torch.Tensor:
    """A weight of 1 after ``count`` steps of about 1e-4 each, downwards."""
    layer = torch.nn.Linear(1, 1, bias=False).to(dtype)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    optimizer = Optimizer(
        layer, OptimizerConfig(lr=1e-4, warmup_steps=0, schedule="constant"), count
    )
    for _ in range(count):
        layer.weight.sum().backward()
        optimizer.step()
    return layer.weight.detach().float().squeeze()


def test_small_steps_are_not_rounded_away_in_bfloat16():
    # Near 1 bfloat16 has steps of 2**-8: a single update of 1e-4 would leave the weight at 1.
    whole = steps_of_one(torch.float32, 200)
    half = steps_of_one(torch.bfloat16, 200)
    assert float(whole) == pytest.approx(0.98, abs=1e-3)
    assert float(half) == pytest.approx(float(whole), abs=2**-8)


def test_clipping_is_by_the_norm_over_all_parameters():
    layers = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    optimizer = Optimizer(layers, OptimizerConfig(max_grad_norm=1.0), 10)
    for parameter in layers.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    caught: list[torch.Tensor] = []
    optimizer.adamw.step = lambda: caught.extend(p.grad.clone() for p in layers.parameters())
    assert optimizer.step() == pytest.approx(4.0)  # sqrt(4 * 2**2)
    assert [float(g) for g in caught] == pytest.approx([0.5] * 4, abs=1e-5)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_schedules_warm_up_and_never_rise_again(schedule):
    config = OptimizerConfig(warmup_steps=5, schedule=schedule)
    factors = [schedule_factor(s, 50, config) for s in range(50)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert all(a >= b > 0 for a, b in pairwise(factors[5:]))
    assert factors[-1] == 1 if schedule == "constant" else factors[-1] < 0.05
