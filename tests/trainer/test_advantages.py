"""Advantages against numbers worked by hand and a slow plain reading of the papers."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmr1.trainer import advantages

ALL = torch.ones(1, 4, dtype=torch.bool)


def test_grpo_by_hand():
    # mean 0.5; squared deviations 0.25 * 4, sample variance 1/3, deviation 0.57735.
    rewards = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    expected = torch.tensor([[0.5, -0.5, 0.5, -0.5]]) / math.sqrt(1 / 3)
    torch.testing.assert_close(advantages.grpo(rewards, ALL), expected, atol=1e-5, rtol=0)


def test_rloo_by_hand():
    # 1.5 - (0 + 0.5 + 1)/3 = 1;  0 - 3/3 = -1;  0.5 - 2.5/3 = -1/3;  1 - 2/3 = 1/3.
    rewards = torch.tensor([[1.5, 0.0, 0.5, 1.0]])
    expected = torch.tensor([[1.0, -1.0, -1 / 3, 1 / 3]])
    torch.testing.assert_close(advantages.rloo(rewards, ALL), expected)


@pytest.mark.parametrize("name", ["grpo", "rloo"])
@pytest.mark.parametrize("value", [0.0, 0.1, 1.5, 1e6])
def test_equal_rewards_give_exactly_nothing(name, value):
    rewards = torch.full((1, 7), value)
    valid = torch.ones(1, 7, dtype=torch.bool)
    assert (getattr(advantages, name)(rewards, valid) == 0).all()


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_an_invalid_reward_is_outside_the_baseline(name):
    function = getattr(advantages, name)
    rewards = torch.tensor([[1.0, 0.0, 9.0, 1.0]])
    valid = torch.tensor([[True, True, False, True]])
    without = function(rewards[:, [0, 1, 3]], valid[:, [0, 1, 3]])
    found = function(rewards, valid)
    assert found[0, 2] == 0
    torch.testing.assert_close(found[:, [0, 1, 3]], without)


@pytest.mark.parametrize("name", ["grpo", "rloo"])
@pytest.mark.parametrize("kept", [0, 1])
def test_a_group_with_no_baseline_learns_nothing(name, kept):
    rewards = torch.tensor([[1.0, 0.0, 0.5]])
    valid = torch.arange(3)[None] < kept
    assert (getattr(advantages, name)(rewards, valid) == 0).all()


groups = st.lists(
    st.tuples(st.floats(-3, 3, width=32), st.booleans()), min_size=2, max_size=10
).filter(lambda g: sum(v for _, v in g) >= 2 and len({r for r, v in g if v}) > 1)


@given(groups)
def test_against_a_plain_reading(group):
    rewards = torch.tensor([[r for r, _ in group]], dtype=torch.float64)
    valid = torch.tensor([[v for _, v in group]])
    kept = [r for r, v in group if v]
    mean, deviation = statistics.fmean(kept), statistics.stdev(kept)
    grpo = [(r - mean) / (deviation + 1e-6) if v else 0.0 for r, v in group]
    rloo = [r - (sum(kept) - r) / (len(kept) - 1) if v else 0.0 for r, v in group]
    assert advantages.grpo(rewards, valid)[0].tolist() == pytest.approx(grpo, abs=1e-6)
    assert advantages.rloo(rewards, valid)[0].tolist() == pytest.approx(rloo, abs=1e-6)
