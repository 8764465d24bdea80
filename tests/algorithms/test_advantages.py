"""Advantages against numbers worked by hand and a slow plain reading of the papers."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.algorithms import baselines

ALL = torch.ones(1, 4, dtype=torch.bool)
OUTCOME = ["grpo", "rloo", "dr_grpo", "gpg"]


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_grpo_by_hand():
    # mean 0.5; squared deviations 0.25 * 4, sample variance 1/3, deviation 0.57735.
    rewards = torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    expected = torch.tensor([[0.5, -0.5, 0.5, -0.5]]) / math.sqrt(1 / 3)
    torch.testing.assert_close(baselines.grpo(rewards, ALL), expected, atol=1e-5, rtol=0)


def test_rloo_by_hand():
    # 1.5 - (0 + 0.5 + 1)/3 = 1;  0 - 3/3 = -1;  0.5 - 2.5/3 = -1/3;  1 - 2/3 = 1/3.
    rewards = torch.tensor([[1.5, 0.0, 0.5, 1.0]])
    expected = torch.tensor([[1.0, -1.0, -1 / 3, 1 / 3]])
    torch.testing.assert_close(baselines.rloo(rewards, ALL), expected)


def test_gpg_by_hand():
    # Three groups, one without signal: alpha = 3 / 2 on the differences from the mean.
    rewards = rows([1, 0], [1, 1], [0, 4])
    actual = baselines.gpg(rewards, torch.ones(3, 2, dtype=torch.bool))
    torch.testing.assert_close(actual, rows([0.75, -0.75], [0, 0], [-3, 3]))


def test_reinforce_by_hand():
    rewards, valid = rows([1, 0, 9]), torch.tensor([[True, True, False]])
    assert baselines.moving_average(1.0, 0.5, 0.9) == pytest.approx(0.95)
    torch.testing.assert_close(baselines.reinforce(rewards, valid, 0.25), rows([0.75, -0.25, 0]))


def test_batch_std_against_trl():
    """``(r - group mean) / (std of all rewards + 1e-6)``, TRL's scale_rewards="batch"."""
    rewards, valid = rows([1, 0], [1, 1]), torch.tensor([[True, True], [True, False]])
    deviation = statistics.stdev([1, 0, 1])
    actual = baselines.batch_std(rewards, valid)
    torch.testing.assert_close(actual, rows([0.5, -0.5], [0, 0]) / (deviation + 1e-6))
    assert not baselines.batch_std(rows([1, 1]), torch.ones(1, 2, dtype=torch.bool)).any()


def test_pass_at_k_by_hand():
    """The best completion gets its lead over the second best, over the deviation."""
    rewards = rows([0.2, 1, 0.6], [1, 1, 0], [5, 1, 7], [3, 3, 3])
    valid = torch.tensor([[True] * 3, [True] * 3, [False, True, False], [True, True, False]])
    lead = 0.4 / (statistics.stdev([0.2, 1, 0.6]) + 1e-6)
    actual = baselines.pass_at_k(rewards, valid)
    torch.testing.assert_close(actual, rows([0, lead, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_gdpo_against_trls_plain_reading(seed):
    """Nan mean and deviation of each function in the group, weights, then over the batch."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 3, (2, 3, 4), generator=generator).double()
    valid = torch.rand(3, 4, generator=generator) > 0.2
    weights = [0.5, 2.0]
    total: dict[tuple[int, int], float] = {}
    for g in range(3):
        kept = [i for i in range(4) if valid[g, i]]
        for i in kept:
            total[g, i] = 0.0
        for k, weight in enumerate(weights):
            rewards = [float(values[k, g, i]) for i in kept]
            deviation = statistics.stdev(rewards) if len(kept) > 1 else 0.0
            for i, reward in zip(kept, rewards, strict=True):
                away = reward - statistics.fmean(rewards)
                total[g, i] += weight * away / (deviation + 1e-6)
    mean = statistics.fmean(total.values()) if total else 0.0
    spread = statistics.stdev(total.values()) if len(total) > 1 else 0.0
    actual = baselines.gdpo(values, torch.tensor(weights), valid)
    for g in range(3):
        for i in range(4):
            expected = (total[g, i] - mean) / (spread + 1e-6) if (g, i) in total else 0.0
            assert float(actual[g, i]) == pytest.approx(expected, abs=1e-5)


def test_gdpo_tells_apart_what_the_sum_does_not():
    """Rewards (1, 0) and (0, 1): equal sums, so GRPO learns nothing; GDPO by weight."""
    values, valid = rows([1, 0], [0, 1])[:, None], torch.ones(1, 2, dtype=torch.bool)
    assert not baselines.grpo(values.sum(0), valid).any()
    actual = baselines.gdpo(values, torch.tensor([2.0, 1.0]), valid)
    assert actual[0, 0] == -actual[0, 1] > 0
    same = values[:, :, :1].expand(2, 1, 2)
    assert not baselines.gdpo(same, torch.tensor([2.0, 1.0]), valid).any()


def test_the_optimal_baseline_by_hand():
    """OPO: ``b = sum of l r / sum of l``; equal lengths give the mean."""
    rewards = rows([1, 0, 1], [1, 1, 1], [1, 0, 9])
    valid = torch.tensor([[True] * 3, [True] * 3, [True, True, False]])
    lengths = torch.tensor([[1, 2, 1], [1, 2, 3], [4, 4, 4]])
    actual = baselines.optimal_baseline(rewards, valid, lengths)
    torch.testing.assert_close(actual, rows([0.5, -0.5, 0.5], [0, 0, 0], [0.5, -0.5, 0]))


def test_remax_by_hand():
    rewards, valid = rows([1, 0], [1, 0]), torch.tensor([[True, True], [True, False]])
    greedy = rows([0.5], [0.0])
    actual = baselines.remax(rewards, valid, greedy, torch.tensor([[True], [True]]))
    torch.testing.assert_close(actual, rows([0.5, -0.5], [1, 0]))
    actual = baselines.remax(rewards, valid, greedy, torch.tensor([[True], [False]]))
    torch.testing.assert_close(actual, rows([0.5, -0.5], [0, 0]))


def test_reinforce_pp_by_hand():
    # Penalties 0.1 and 0.2, reward 1: returns 1 - 0.3 and 1 - 0.2; the other completion 0.
    mask = torch.tensor([[True, True], [True, False]])
    penalty = rows([0.1, 0.2], [0.0, 5.0])
    actual = baselines.reinforce_pp(torch.tensor([1.0, 0.0]).double(), penalty, mask)
    returns = [0.7, 0.8, 0.0]
    mean, deviation = statistics.fmean(returns), statistics.pstdev(returns)
    expected = [(r - mean) / deviation for r in returns]
    assert actual.flatten().tolist() == pytest.approx([*expected, 0.0], abs=1e-5)


def test_a_discounted_return_by_hand():
    """Reward 1 and penalties 0.1, 0.2 at gamma 0.5: 0.8 at the last token, -0.1 + 0.4 before."""
    mask = torch.tensor([[True, True], [True, False]])
    penalty = rows([0.1, 0.2], [0.0, 5.0])
    actual = baselines.reinforce_pp(torch.tensor([1.0, 0.0]).double(), penalty, mask, 0.5)
    returns = [0.3, 0.8, 0.0]
    mean, deviation = statistics.fmean(returns), statistics.pstdev(returns)
    expected = [(r - mean) / deviation for r in returns]
    assert actual.flatten().tolist() == pytest.approx([*expected, 0.0], abs=1e-5)


def test_reinforce_pp_baseline_by_hand():
    # Centred: +-0.5 in the first group, 0 in the second; 2, 1, 1 and 1 tokens.
    mask = torch.tensor([[True, True], [True, False], [True, False], [True, False]])
    rewards = rows([1, 0], [1, 1])
    actual = baselines.reinforce_pp_baseline(rewards, torch.ones(2, 2, dtype=torch.bool), mask)
    tokens = [0.5, 0.5, -0.5, 0.0, 0.0]
    mean, deviation = statistics.fmean(tokens), statistics.pstdev(tokens)
    expected = [(t - mean) / deviation for t in tokens]
    assert actual[mask].tolist() == pytest.approx(expected, abs=1e-5)
    assert (actual[~mask] == 0).all()


def test_process_supervision_by_hand():
    # Step rewards 1, 0 and 1, 1, 0: mean 0.6, sample deviation sqrt(1.2 / 4).
    rewards = rows([0, 1, 0, 0, 0], [1, 0, 1, 0, 0])[None]
    ends = torch.tensor([[0, 1, 0, 1, 0], [1, 0, 1, 0, 1]], dtype=torch.bool)[None]
    up, down = 0.4 / math.sqrt(0.3), -0.6 / math.sqrt(0.3)
    expected = rows(
        [up + down, up + down, down, down, 0],
        [2 * up + down, up + down, up + down, down, down],
    )[None]
    actual = baselines.process_supervision(rewards, ends)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


GIGPO_REWARDS = [[0, 1, 0, 0, 4, 0], [0, 0, 3, 2, 0, 0], [0, 5, 0, 0, 0, 0]]
GIGPO_ENDS = [[0, 1, 0, 0, 1, 0], [0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0]]
GIGPO_STATES = [[0, 7, 0, 0, 8, 0], [0, 0, 7, 7, 0, 0], [0, 9, 0, 0, 0, 0]]


def gigpo(scale: bool) -> torch.Tensor:
    ends, states = torch.tensor(GIGPO_ENDS).bool(), torch.tensor(GIGPO_STATES)
    return baselines.gigpo_turns(rows(*GIGPO_REWARDS), ends, states, 0.5, scale)


def test_turns_of_a_state_by_hand():
    # Returns, gamma 0.5: 1 + 2 = 3, 4; 3 + 1 = 4, 2; 5. State 7 has 3, 4 and 2: mean 3, deviation
    # 1. States 8 and 9 have a turn each. A conversation may be in a state twice.
    expected = rows([0, 0, 0, 0, 0, 0], [1, 1, 1, -1, 0, 0], [0, 0, 0, 0, 0, 0])
    torch.testing.assert_close(gigpo(scale=True), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(gigpo(scale=False), expected)


def test_a_deviation_divides_the_turns_of_a_state():
    # Returns 1, 2, 6: mean 3, sample deviation sqrt((4 + 1 + 9) / 2).
    ends = torch.ones(3, 1, dtype=torch.bool)
    states = torch.zeros(3, 1, dtype=torch.int64)
    actual = baselines.gigpo_turns(rows([1], [2], [6]), ends, states, 0.9)
    expected = rows([-2], [-1], [3]) / math.sqrt(7)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_turns_of_equal_returns_give_exactly_nothing():
    ends, states = torch.ones(7, 1, dtype=torch.bool), torch.zeros(7, 1, dtype=torch.int64)
    same = torch.full((7, 1), 0.1)
    assert (baselines.gigpo_turns(same, ends, states, 0.9) == 0).all()


def test_gae_by_hand():
    # gamma 0.5, lambda 0.5. Deltas: 0 + 0.5 * 2 - 1 = 0, then 3 - 2 = 1; A = [0 + 0.25 * 1, 1].
    actual = baselines.gae(rows([0, 3, 7]), rows([1, 2, 9]), rows([1, 1, 0]).bool(), 0.5, 0.5)
    torch.testing.assert_close(actual, rows([0.25, 1.0, 0.0]))


@pytest.mark.parametrize("name", OUTCOME)
@pytest.mark.parametrize("value", [0.0, 0.1, 1.5, 1e6])
def test_equal_rewards_give_exactly_nothing(name, value):
    rewards = torch.full((1, 7), value)
    valid = torch.ones(1, 7, dtype=torch.bool)
    assert (getattr(baselines, name)(rewards, valid) == 0).all()
    assert (baselines.normalised(rewards, valid) == 0).all()


@pytest.mark.parametrize("name", OUTCOME)
def test_an_invalid_reward_is_outside_the_baseline(name):
    function = getattr(baselines, name)
    rewards = torch.tensor([[1.0, 0.0, 9.0, 1.0]])
    valid = torch.tensor([[True, True, False, True]])
    without = function(rewards[:, [0, 1, 3]], valid[:, [0, 1, 3]])
    actual = function(rewards, valid)
    assert actual[0, 2] == 0
    torch.testing.assert_close(actual[:, [0, 1, 3]], without)


@pytest.mark.parametrize("name", OUTCOME)
@pytest.mark.parametrize("kept", [0, 1])
def test_a_group_with_no_baseline_learns_nothing(name, kept):
    rewards = torch.tensor([[1.0, 0.0, 0.5]])
    valid = torch.arange(3)[None] < kept
    assert (getattr(baselines, name)(rewards, valid) == 0).all()


groups = st.lists(
    st.tuples(st.floats(-3, 3, width=32), st.booleans()), min_size=2, max_size=10
).filter(lambda g: sum(v for _, v in g) >= 2 and len({r for r, v in g if v}) > 1)


@given(groups)
def test_outcome_advantages_against_a_plain_reading(group):
    rewards = torch.tensor([[r for r, _ in group]], dtype=torch.float64)
    valid = torch.tensor([[v for _, v in group]])
    kept = [r for r, v in group if v]
    mean, deviation = statistics.fmean(kept), statistics.stdev(kept)
    plain = {
        "grpo": [(r - mean) / (deviation + 1e-6) if v else 0.0 for r, v in group],
        "dr_grpo": [r - mean if v else 0.0 for r, v in group],
        "gpg": [r - mean if v else 0.0 for r, v in group],
        "rloo": [r - (sum(kept) - r) / (len(kept) - 1) if v else 0.0 for r, v in group],
    }
    for name, expected in plain.items():
        actual = getattr(baselines, name)(rewards, valid)[0].tolist()
        assert actual == pytest.approx(expected, abs=1e-6), name
    n = len(kept)
    scaled = [n / (n - 1) * a for a in plain["dr_grpo"]]
    assert baselines.rloo(rewards, valid)[0].tolist() == pytest.approx(scaled, abs=1e-9)


number = st.floats(-2, 2, width=32)
token_rows = st.lists(st.lists(st.tuples(number, number), min_size=1, max_size=6), min_size=1)


def ragged(batch: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows padded with a number that must not be read, and their mask."""
    width = max(map(len, batch))
    values = [[*row, *[99.0] * (width - len(row))] for row in batch]
    mask = [[i < len(row) for i in range(width)] for row in batch]
    return torch.tensor(values, dtype=torch.float64), torch.tensor(mask)


@settings(deadline=None, max_examples=40)
@given(token_rows, st.floats(0, 1), st.floats(0, 1))
def test_gae_against_its_definition_as_a_sum(batch, gamma, lam):
    rewards, mask = ragged([[r for r, _ in row] for row in batch])
    values, _ = ragged([[v for _, v in row] for row in batch])
    actual = baselines.gae(rewards, values, mask, gamma, lam)
    for row, line in zip(batch, actual.tolist(), strict=True):
        v = [value for _, value in row] + [0.0]
        deltas = [r + gamma * v[t + 1] - v[t] for t, (r, _) in enumerate(row)]
        plain = [
            sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(row))
        ]
        assert line == pytest.approx(plain + [0.0] * (len(line) - len(row)), abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(token_rows, st.floats(0, 1), st.floats(0, 1), number)
def test_gae_goes_on_after_a_truncated_completion(batch, gamma, lam, final):
    """Every other completion is cut off: the state after it has a value."""
    rewards, mask = ragged([[r for r, _ in row] for row in batch])
    values, _ = ragged([[v for _, v in row] for row in batch])
    last = torch.tensor([final if i % 2 else 0.0 for i in range(len(batch))]).double()
    actual = baselines.gae(rewards, values, mask, gamma, lam, last)
    for i, (row, line) in enumerate(zip(batch, actual.tolist(), strict=True)):
        v = [value for _, value in row] + [float(last[i])]
        deltas = [r + gamma * v[t + 1] - v[t] for t, (r, _) in enumerate(row)]
        plain = [
            sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(row))
        ]
        assert line == pytest.approx(plain + [0.0] * (len(line) - len(row)), abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(token_rows, st.floats(0, 1))
def test_the_two_special_cases_of_gae(batch, gamma):
    rewards, mask = ragged([[r for r, _ in row] for row in batch])
    values, _ = ragged([[v for _, v in row] for row in batch])
    one_step = baselines.gae(rewards, values, mask, gamma, 0.0)
    monte_carlo = baselines.gae(rewards, values, mask, gamma, 1.0)
    for i, row in enumerate(batch):
        v = [value for _, value in row] + [0.0]
        for t in range(len(row)):
            error = row[t][0] + gamma * v[t + 1] - v[t]
            returned = sum(gamma**k * r for k, (r, _) in enumerate(row[t:]))
            assert one_step[i, t].item() == pytest.approx(error, abs=1e-6)
            assert monte_carlo[i, t].item() == pytest.approx(returned - v[t], abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(token_rows)
def test_reinforce_pp_against_a_plain_reading(batch):
    penalty, mask = ragged([[k for k, _ in row] for row in batch])
    rewards = [row[0][1] for row in batch]
    returns = [
        reward - sum(k for k, _ in row[t:])
        for reward, row in zip(rewards, batch, strict=True)
        for t in range(len(row))
    ]
    mean, deviation = statistics.fmean(returns), statistics.pstdev(returns)
    actual = baselines.reinforce_pp(torch.tensor(rewards).double(), penalty, mask)
    if deviation > 1e-3:
        expected = [(r - mean) / (deviation + 1e-6) for r in returns]
        assert actual[mask].tolist() == pytest.approx(expected, abs=1e-5)
    assert (actual[~mask] == 0).all()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.tuples(number, st.integers(1, 3)), max_size=4), min_size=2, max_size=4))
def test_process_supervision_against_a_plain_reading(completions):
    """Each completion is a list of steps: a reward and a length in tokens."""
    every = [r for steps in completions for r, _ in steps]
    width = max([sum(n for _, n in steps) for steps in completions] + [1])
    rewards = torch.zeros(len(completions), width, dtype=torch.float64)
    ends = torch.zeros(len(completions), width, dtype=torch.bool)
    for i, steps in enumerate(completions):
        place = -1
        for reward, length in steps:
            place += length
            rewards[i, place], ends[i, place] = reward, True
    actual = baselines.process_supervision(rewards[None], ends[None])[0]
    equal = len(set(every)) < 2
    mean = statistics.fmean(every or [0.0])
    deviation = 1.0 if equal else statistics.stdev(every) + 1e-6
    for i in range(len(completions)):
        for t in range(width):
            later = [j for j in range(t, width) if ends[i, j]]
            plain = 0.0 if equal else sum((rewards[i, j].item() - mean) / deviation for j in later)
            assert actual[i, t].item() == pytest.approx(plain, abs=1e-4)


TINY = 1e-6
TWO = rows([0.0, 2 * TINY])
BOTH = torch.ones(1, 2, dtype=torch.bool)
COLUMN = torch.ones(2, 1, dtype=torch.bool)
SAMPLE, POPULATION = math.sqrt(2) * TINY, TINY
"""Deviations of two numbers that are 2e-6 apart."""


def test_deviations_have_1e_6_added():
    """As in the released implementations; seen where the deviation is as small."""
    states = torch.zeros(2, 1, dtype=torch.int64)
    up = {
        "grpo": baselines.grpo(TWO, BOTH)[0, 1],
        "batch_std": baselines.batch_std(TWO, BOTH)[0, 1],
        "pass_at_k": baselines.pass_at_k(TWO, BOTH)[0, 1] / 2,  # the lead is twice as much
        "process_supervision": baselines.process_supervision(TWO.T[None], COLUMN[None])[0, 1, 0],
        "gigpo_turns": baselines.gigpo_turns(TWO.T, COLUMN, states, 1.0)[1, 0],
    }
    for name, value in up.items():
        assert float(value) == pytest.approx(TINY / (SAMPLE + 1e-6)), name
    of_tokens = {
        "reinforce_pp": baselines.reinforce_pp(TWO[0], torch.zeros(2, 1), COLUMN),
        "reinforce_pp_baseline": baselines.reinforce_pp_baseline(TWO, BOTH, COLUMN),
    }
    for name, value in of_tokens.items():
        assert value[:, 0].tolist() == pytest.approx([-0.5, 0.5]), name  # 1e-6 / (1e-6 + 1e-6)
    # GDPO adds it twice: to the deviation of each function, and to that of their sum.
    one = TINY / (SAMPLE + 1e-6)
    expected = one / (math.sqrt(2) * one + 1e-6)
    got = baselines.gdpo(TWO[None], torch.ones(1), BOTH)[0, 1]
    assert float(got) == pytest.approx(expected, rel=1e-7)
