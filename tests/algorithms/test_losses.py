"""Losses and their weights: numbers worked by hand, plain readings, known limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.algorithms import ratios
from mmr1.algorithms.interface import LossInputs
from mmr1.config import AlgorithmConfig
from mmr1.config.file import config_from
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.types import Completion, Prompt, Reward, RolloutGroup, Sample, ScoredGroup, Status

# Two sequences of 1 and 3 tokens.
MASK = torch.tensor([[True, False, False], [True, True, True]])


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.4),  # clipped at 1.2
        (1.5, -2.0, 3.0),  # the minimum keeps the worse, unclipped one
        (0.5, 2.0, -1.0),
        (0.5, -2.0, 1.6),  # clipped at 0.8
    ],
)
def test_ppo_clip_by_hand(ratio, advantage, expected):
    loss = ratios.ppo_clip(
        torch.tensor(math.log(ratio)), torch.tensor(0.0), torch.tensor(advantage), 0.2, 0.2
    )
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_the_clip_fraction_counts_where_the_gradient_is_cut_off():
    rho = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    logprobs = rho.log()
    ratios.ppo_clip(logprobs, torch.zeros(5), advantages, 0.2, 0.2).sum().backward()
    cut = ratios.clip_fraction_mask(logprobs.detach(), torch.zeros(5), advantages, 0.2, 0.2)
    assert cut.tolist() == (rho.grad == 0).tolist() == [True, False, False, True, False]


def test_clip_fraction_has_two_bounds():
    """True exactly where autograd finds no gradient; the bounds differ, so neither serves both."""
    rho = torch.tensor([0.85, 0.95, 1.3, 1.5]).repeat_interleave(2).requires_grad_()
    advantages = torch.tensor([1.0, -1.0]).repeat(4)
    ratios.ppo_clip(rho.log(), torch.zeros(8), advantages, 0.1, 0.4).sum().backward()
    cut = ratios.clip_fraction_mask(rho.detach().log(), torch.zeros(8), advantages, 0.1, 0.4)
    assert cut.tolist() == (rho.grad == 0).tolist()
    assert cut.nonzero()[:, 0].tolist() == [1, 6]  # 0.85 of A < 0, 1.5 of A > 0


OUTLIERS = {
    "token": [[1, 1, 1], [0, 0, 1], [0, 0, 0], [1, 0, 1]],
    "sequence": [[0, 0, 0], [1, 1, 1], [0, 0, 0], [0, 0, 0]],
    "geometric": [[1, 1, 1], [1, 1, 1], [0, 0, 0], [1, 1, 1]],
}


@pytest.mark.parametrize("form", ["none", "token", "sequence"])
@pytest.mark.parametrize("outlier_form", OUTLIERS)
def test_rollout_weights_drop_outliers_by_hand(form, outlier_form):
    """A bound of 2 allows ratios from 1/2 to 2: of tokens, their product, or its geometric mean.

    The products are 2.25, 1, 0.04 and 2.8, the means 1.5, 1, 0.34 and 1.67. The last token of the
    first and of the last row does not count, though its ratio is 100.
    """
    rho = [[1.5, 1.5, 100.0], [4.0, 0.25, 1.0], [0.4, 0.4, 0.25], [1.0, 2.8, 100.0]]
    logprobs, q = torch.tensor(rho).log() - 3.0, torch.full((4, 3), -3.0)
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[[0, 3], 2] = False
    tokens = [[1.5, 1.5, 1.0], [3.0, 0.25, 1.0], [0.4, 0.4, 0.25], [1.0, 2.8, 1.0]]
    plain = {
        "none": torch.ones(4, 3),
        "token": torch.tensor(tokens),  # at most 3
        "sequence": torch.tensor([[2.25], [1.0], [0.04], [2.8]]).expand(4, 3),
    }[form]
    kept = torch.tensor(OUTLIERS[outlier_form])
    weights = ratios.rollout_importance_weights(logprobs, q, mask, form, 3.0, 2.0, outlier_form)
    torch.testing.assert_close(weights, plain * kept)
    torch.testing.assert_close(
        ratios.rollout_importance_weights(logprobs, q, mask, form, 3.0), plain
    )


def test_weights_by_hand():
    third, quarter = 1 / 3, 1 / 4
    sequence = [[0.5, 0, 0], [0.5 * third] * 3]
    token = [[quarter, 0, 0], [quarter] * 3]
    constant = [[0.05, 0, 0], [0.05] * 3]  # 1 / (2 sequences * 10 tokens)
    for name, expected in (
        ("seq-mean-token-mean", sequence),
        ("token-mean", token),
        ("seq-mean-token-sum-norm", constant),
    ):
        weights = ratios.token_weights(MASK, name, 10)
        torch.testing.assert_close(weights, torch.tensor(expected))


def test_a_masked_sequence_does_not_count():
    mask = torch.cat([MASK, torch.zeros(1, 3, dtype=torch.bool)])
    for name in ("seq-mean-token-mean", "token-mean"):
        with_it = ratios.token_weights(mask, name, 10)[:2]
        torch.testing.assert_close(with_it, ratios.token_weights(MASK, name, 10))


RATIO = math.log(2)


@pytest.mark.parametrize(("advantage", "expected"), [(-1.0, 3.0), (-0.5, 1.5), (1.0, -1.2)])
def test_dual_clip_by_hand(advantage, expected):
    # Ratio 5: -A * 5 is bounded by -A * 3 where A < 0; clipped at 1.2 elsewhere as before.
    a = torch.tensor(advantage)
    loss = ratios.ppo_clip(torch.tensor(math.log(5.0)), torch.tensor(0.0), a, 0.2, 0.2)
    assert float(ratios.dual_clip(loss, a, 3.0)) == pytest.approx(expected)


def test_response_logprobs_by_hand():
    logprobs = torch.tensor([[-1.0, 9.0, 9.0], [-1.0, -2.0, -3.0]])
    total = ratios.response_logprobs(logprobs, MASK)
    assert total.tolist() == [[-1] * 3, [-6] * 3]
    assert ratios.response_logprobs(logprobs, MASK, per_token=True).tolist() == [[-1] * 3, [-2] * 3]


def test_importance_weights_by_hand():
    logprobs = torch.tensor([[RATIO, 9.0, 9.0], [RATIO, -RATIO, RATIO]], requires_grad=True)
    old = torch.zeros(2, 3)

    def weights(form: str) -> list[float]:
        actual = ratios.importance_weights(logprobs, old, MASK, form)
        assert not actual.requires_grad
        return actual[MASK].tolist()

    assert weights("token") == pytest.approx([2, 2, 0.5, 2])
    assert weights("per_decision") == pytest.approx([2, 2, 1, 2])
    assert weights("sequence") == pytest.approx([2, 2, 2, 2])


@pytest.mark.parametrize(("ratio", "weight"), [(6.0, 5.0), (2.0, 2.0), (0.1, 0.1)])
def test_cispo_by_hand(ratio, weight):
    logprobs = torch.tensor(math.log(ratio), requires_grad=True)
    loss = ratios.cispo(logprobs, torch.tensor(0.0), torch.tensor(2.0), 1.0, 4.0)
    assert loss.item() == pytest.approx(-weight * 2 * math.log(ratio))
    loss.backward()
    assert float(logprobs.grad) == pytest.approx(-weight * 2)  # clipped, and never 0


def test_sapo_by_hand():
    # Ratio 2, tau 1: 4 sigmoid(1); ratio 2, tau 2 for the negative one: 2 sigmoid(2).
    def actual(advantage: float) -> float:
        a = torch.tensor(advantage)
        return float(ratios.sapo(torch.tensor(RATIO), torch.tensor(0.0), a, 1.0, 2.0))

    assert actual(1.0) == pytest.approx(-4 / (1 + math.exp(-1)))
    assert actual(-1.0) == pytest.approx(2 / (1 + math.exp(-2)))


def test_value_loss_by_hand():
    values, old, returns = (
        torch.tensor([1.0, 0.1]),
        torch.tensor([0.0, 0.0]),
        torch.tensor([2.0, 2]),
    )
    assert ratios.value_loss(values, old, returns, None).tolist() == pytest.approx([0.5, 1.805])
    # Within 0.2 of the old value: (0.2 - 2)^2 / 2 is the larger; 0.1 is within.
    assert ratios.value_loss(values, old, returns, 0.2).tolist() == pytest.approx([1.62, 1.805])


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """New and old log-probs, one advantage per row, and a ragged mask."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (4, 1), generator=generator)
    new = -torch.rand(4, 5, generator=generator, dtype=torch.float64)
    old = new + torch.randn(4, 5, generator=generator, dtype=torch.float64) / 3
    advantages = torch.randn(4, 1, generator=generator, dtype=torch.float64).expand(4, 5)
    return new.requires_grad_(), old, advantages, torch.arange(5) < lengths


def gradient(loss: torch.Tensor, logprobs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = ratios.token_weights(mask, "seq-mean-token-mean").double()
    return torch.autograd.grad((weights * loss).sum(), logprobs)[0]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_on_policy_every_surrogate_has_the_policy_gradient(seed):
    new, _, a, mask = batch(seed)
    old = new.detach()
    expected = gradient(ratios.policy_gradient(new, a), new, mask)
    mean = [ratios.response_logprobs(x, mask, per_token=True) for x in (new, old)]
    for name, loss in {
        "ppo": ratios.ppo_clip(new, old, a, 0.2, 0.28),
        "dual": ratios.dual_clip(ratios.ppo_clip(new, old, a, 0.2, 0.2), a, 3.0),
        "gspo": ratios.ppo_clip(*mean, a, 0.2, 0.2),
        "cispo": ratios.cispo(new, old, a, 0.2, 0.2),
        "sapo": ratios.sapo(new, old, a, 1.0, 1.05),
    }.items():
        actual = gradient(loss, new, mask)
        torch.testing.assert_close(actual, expected, msg=lambda m, name=name: f"{name}: {m}")
    # The R1 paper's ratio has no length in its denominator: the sum of each response's tokens.
    whole = [ratios.response_logprobs(x, mask) for x in (new, old)]
    actual = gradient(ratios.ppo_clip(*whole, a, 0.2, 0.2), new, mask)
    torch.testing.assert_close(actual, -a * mask / 4)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_surrogates_against_plain_readings(seed):
    new, old, a, mask = batch(seed)
    actual = {
        "ppo": ratios.ppo_clip(new, old, a, 0.2, 0.28),
        "r1": ratios.ppo_clip(
            *(ratios.response_logprobs(x, mask) for x in (new, old)), a, 0.2, 0.2
        ),
        "gspo": ratios.ppo_clip(
            *(ratios.response_logprobs(x, mask, True) for x in (new, old)), a, 0.2, 0.2
        ),
        "sapo": ratios.sapo(new, old, a, 1.0, 1.05),
    }

    def clipped(ratio: float, advantage: float, high: float) -> float:
        return -min(ratio * advantage, min(max(ratio, 0.8), 1 + high) * advantage)

    for i, length in enumerate(mask.sum(1).tolist()):
        gaps = [float(new[i, t] - old[i, t]) for t in range(length)]
        advantage = float(a[i, 0])
        tau = 1.0 if advantage > 0 else 1.05
        for t, gap in enumerate(gaps):
            plain = {
                "ppo": clipped(math.exp(gap), advantage, 0.28),
                "r1": clipped(math.exp(sum(gaps)), advantage, 0.2),
                "gspo": clipped(math.exp(sum(gaps) / length), advantage, 0.2),
                "sapo": -advantage * 4 / tau / (1 + math.exp(-tau * (math.exp(gap) - 1))),
            }
            for name, expected in plain.items():
                assert float(actual[name][i, t]) == pytest.approx(expected), name


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000))
def test_gspo_is_grpo_for_completions_of_one_token(seed):
    new, old, a, _ = (x[:, :1] for x in batch(seed))
    mask = torch.ones_like(new, dtype=torch.bool)
    gspo = ratios.ppo_clip(
        *(ratios.response_logprobs(x, mask, per_token=True) for x in (new, old)), a, 0.2, 0.2
    )
    torch.testing.assert_close(gspo, ratios.ppo_clip(new, old, a, 0.2, 0.2))


def test_the_off_policy_forms_on_a_two_token_world():
    """The sequence's product makes the old policy's samples give the new policy's gradient."""
    generator = torch.Generator().manual_seed(0)
    # First token by first[2], second by second[first token, 2]; reward[x, y].
    new = torch.randn(3, 2, generator=generator, dtype=torch.float64).requires_grad_()
    old = torch.randn(3, 2, generator=generator, dtype=torch.float64).log_softmax(-1)
    reward = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    pairs = [(x, y) for x in range(2) for y in range(2)]

    def rows(table: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.stack([table[0, x], table[1 + x, y]]) for x, y in pairs])

    logprobs, old_logprobs = rows(new.log_softmax(-1)), rows(old)
    advantages = torch.stack([reward[x, y] for x, y in pairs])[:, None].expand(4, 2)
    exact = (logprobs.sum(1).exp() * advantages[:, 0]).sum()
    expected = torch.autograd.grad(exact, new, retain_graph=True)[0]
    mask = torch.ones(4, 2, dtype=torch.bool)
    weights = ratios.importance_weights(logprobs, old_logprobs, mask, "sequence")
    loss = weights * ratios.policy_gradient(logprobs, advantages)
    estimate = (old_logprobs.sum(1).exp()[:, None] * loss).sum()
    actual = torch.autograd.grad(estimate, new)[0]
    torch.testing.assert_close(actual, -expected)


def test_per_decision_importance_of_step_rewards_on_a_two_token_world():
    """The old policy's samples give the exact gradient of the expected sum of step rewards."""
    generator = torch.Generator().manual_seed(0)
    new = torch.randn(3, 2, generator=generator, dtype=torch.float64).requires_grad_()
    old = torch.randn(3, 2, generator=generator, dtype=torch.float64).log_softmax(-1)
    first = torch.randn(2, generator=generator, dtype=torch.float64)  # of the first step
    second = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    pairs = [(x, y) for x in range(2) for y in range(2)]

    def rows(table: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.stack([table[0, x], table[1 + x, y]]) for x, y in pairs])

    logprobs, old_logprobs = rows(new.log_softmax(-1)), rows(old)
    returns = torch.stack([torch.stack([first[x] + second[x, y], second[x, y]]) for x, y in pairs])
    exact = (logprobs.sum(1).exp() * returns[:, 0]).sum()
    expected = torch.autograd.grad(exact, new, retain_graph=True)[0]
    config = AlgorithmConfig(
        name="process_grpo",
        advantage={"step_rewards": "x"},
        loss={"type": "reinforce", "importance": "per_decision", "agg_mode": "seq-mean-token-mean"},
        ppo_epochs=2,
    )
    mask = torch.ones(4, 2, dtype=torch.bool)
    inputs = LossInputs(logprobs, old_logprobs, returns, torch.zeros_like(returns), mask)
    loss = build_algorithm(config).loss(inputs)
    actual = torch.autograd.grad((old_logprobs.sum(1).exp()[:, None] * loss).sum(), new)[0]
    torch.testing.assert_close(actual, -expected)
    # A reward weighs by the ratio up to it, and not by that of the tokens after.
    weights = torch.tensor([[2.0, 6.0, 3.0]])
    to_come = torch.tensor([[1.0 + 10 + 100, 110, 100]])
    weighted = ratios.per_decision_returns(to_come, weights)
    assert weighted.tolist() == [[2.0 + 60 + 300, 360, 300]]


@pytest.mark.parametrize(
    "keys",
    [
        {"loss": {"type": "reinforce", "importance": "sequence"}},
        {
            "loss": {
                "type": "reinforce",
                "importance": "per_decision",
                "top_entropy_quantile": 0.5,
            }
        },
        {"advantage": {"normalize_rewards": True}},
        {"advantage": {"reward_clip_range": (0, 1)}},
    ],
)
def test_process_supervision_without_meaning(keys):
    own = {**keys, "advantage": {"step_rewards": "x", **keys.get("advantage", {})}}
    algorithm = {"name": "process_grpo", "ppo_epochs": 2, **own}
    with pytest.raises(ValueError, match=r"process supervision has|leave one|type 'process' has"):
        config_from({"model": {"path": "a"}, "algorithm": algorithm})


def completion(length: int, truncated: bool = False) -> Completion:
    return Completion(np.arange(length), np.zeros(length, np.float32), "", truncated, 0)


def scored(lengths: list[int], rewards: list[float], truncated: int = -1) -> ScoredGroup:
    completions = tuple(completion(n, i == truncated) for i, n in enumerate(lengths))
    group = RolloutGroup(Prompt(Sample("s", ()), "", ()), completions)
    return ScoredGroup(group, tuple(Reward(r) for r in rewards))


def loss_by_algorithm(name: str, logprobs: torch.Tensor, **config: object) -> float:
    """The loss of two groups: one with signal and unequal lengths, one of equal rewards."""
    groups = [scored([1, 3], [1.0, 0.0]), scored([2, 2], [0.5, 0.5])]
    settings = AlgorithmConfig(name=name, **config)
    algorithm = build_algorithm(settings)
    batch = build_experience(groups, algorithm, Models(None))
    inputs = LossInputs(
        logprobs, logprobs.detach(), batch.tokens.advantages, torch.zeros(4, 3), batch.tokens.mask
    )
    weights = ratios.token_weights(batch.tokens.mask, algorithm.loss_agg_mode)
    return float((weights * algorithm.loss(inputs)).sum())


def test_grpo_loss_by_hand():
    # Group 1: advantages +-0.5 / sqrt(0.5) = +-0.7071, ratios 1; group 2: 0.
    # Per token: (-0.7071 + 3 * 0.7071) / 8 tokens.
    actual = loss_by_algorithm("grpo", torch.zeros(4, 3))
    assert actual == pytest.approx(2 * 0.70710678 / 8, abs=1e-5)
    # Sequence means -0.7071 and +0.7071: the mean over 4 sequences is 0.
    per_completion = {"agg_mode": "seq-mean-token-mean"}
    actual = loss_by_algorithm("grpo", torch.zeros(4, 3), loss=per_completion)
    assert actual == pytest.approx(0, abs=1e-6)


def test_rloo_loss_by_hand():
    # Advantages +1 and -1, ratio 1: token losses -1 and 1. Per token over the batch: (3 - 1) / 8.
    logprobs = torch.full((4, 3), -1.0)
    assert loss_by_algorithm("rloo", logprobs) == pytest.approx(0.25)
    actual = loss_by_algorithm("rloo", logprobs, loss={"agg_mode": "seq-mean-token-mean"})
    assert actual == pytest.approx((1 - 1) / 4, abs=1e-6)
    # The plain policy gradient, log-probs -1 each: -(1)(-1) = 1 and -(-1)(-1) = -1.
    assert loss_by_algorithm("rloo", logprobs, loss="reinforce") == pytest.approx(-0.25)


@pytest.mark.parametrize("name", ["rloo", "remax", "reinforce", "gpg"])
@pytest.mark.parametrize("updates", [1, 2])
def test_a_completion_can_be_one_action(name, updates):
    """TRL's RLOO: the mean over completions of ``-min(rho A, clip(rho) A)``, rho of the sum."""
    config = AlgorithmConfig(
        name=name,
        loss={"type": "sequence_ppo", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2},
        ppo_epochs=updates,
    )
    new, old, a, mask = batch(3)
    if updates == 1:
        old = new.detach()
    a = a[:, :1].expand(a.shape)
    inputs = LossInputs(new, old, a, torch.zeros_like(new), mask)
    weights = ratios.token_weights(mask, config.loss.aggregation).double()
    loss = (weights * build_algorithm(config).loss(inputs)).sum()
    actual = torch.autograd.grad(loss, new)[0]
    total = torch.zeros((), dtype=new.dtype)
    for row in range(len(mask)):
        kept = [t for t in range(mask.shape[1]) if mask[row, t]]
        rho = torch.exp(sum(new[row, t] for t in kept) - sum(old[row, t] for t in kept))
        surrogate = torch.min(rho * a[row, 0], rho.clamp(0.8, 1.2) * a[row, 0])
        total = total - surrogate / len(mask)
    torch.testing.assert_close(actual, torch.autograd.grad(total, new)[0])


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from(["grpo", "gspo", "cispo", "sapo", "rloo"]))
def test_far_completions_of_negative_advantage_are_masked(seed, name):
    """DeepSeek-V3.2: M = 0 where A < 0 and the mean of log q - log p is above the threshold."""
    new, old, a, mask = batch(seed)
    rollout = old + torch.linspace(-0.4, 0.6, 20, dtype=torch.float64).view(4, 5)
    inputs = LossInputs(new, old, a, torch.zeros_like(new), mask, rollout_logprobs=rollout)
    masked = build_algorithm(
        AlgorithmConfig(name=name, rollout_correction={"off_policy_mask_threshold": 0.1})
    )
    plain = build_algorithm(AlgorithmConfig(name=name)).loss(inputs)
    actual = masked.loss(inputs)
    told = masked.metrics(inputs)["off_policy_masked"]
    for i, length in enumerate(mask.sum(1).tolist()):
        gap = sum(float(rollout[i, t] - new[i, t]) for t in range(length)) / length
        is_masked = float(a[i, 0]) < 0 and gap > 0.1
        expected = torch.zeros(length).double() if is_masked else plain[i, :length]
        torch.testing.assert_close(actual[i, :length], expected)
        assert told[i, :length].tolist() == [float(is_masked)] * length


def test_dr_grpos_denominator_does_not_shrink_with_masked_completions():
    """TRL's dr_grpo: ``sum / (B * max_completion_length)``, a quarter of four rows masked."""
    mask = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
    weights = ratios.token_weights(mask, "seq-mean-token-sum-norm", max_tokens=8)
    assert weights.tolist() == [[1 / 32, 1 / 32], [1 / 32, 0], [1 / 32, 1 / 32], [0, 0]]


@pytest.mark.parametrize(
    ("mode", "weight"),
    [
        ("seq-mean-token-mean", 1.0),
        ("token-mean", 1.0),
        ("token-sum", 1.0),
        ("seq-mean-token-sum", 1.0),
        ("seq-mean-token-sum-norm", 1 / 8),
    ],
)
def test_weights_of_one_token_and_of_none(mode, weight):
    """A mean of one number is that number; a mini-batch without tokens weighs nothing."""
    one = torch.tensor([[False, True, False]])
    assert ratios.token_weights(one, mode, 8).tolist() == [[0.0, weight, 0.0]]
    assert not ratios.token_weights(torch.zeros(2, 3).bool(), mode, 8).any()


def test_off_policy_mask_leaves_tokens_without_disadvantage():
    """Of a completion that is far from its policy: those of advantage 0 or more."""
    new, engine = torch.full((1, 3), -2.0), torch.full((1, 3), -1.0)
    advantages, mask = torch.tensor([[-1.0, 0.0, 1.0]]), torch.ones(1, 3, dtype=torch.bool)
    for threshold, expected in ((0.9, [[True, False, False]]), (1.0, [[False] * 3])):
        masked = ratios.off_policy_sequences(new, engine, advantages, mask, threshold)
        assert masked.tolist() == expected


def test_the_sum_over_all_tokens():
    mask = torch.cat([MASK, torch.zeros(1, 3, dtype=torch.bool)])
    assert torch.equal(ratios.token_weights(mask, "token-sum"), mask.float())


def test_the_sum_of_each_completion_then_their_mean():
    mask = torch.cat([MASK, torch.zeros(1, 3, dtype=torch.bool)])
    weights = ratios.token_weights(mask, "seq-mean-token-sum")
    assert weights.tolist() == [[0.5, 0, 0], [0.5, 0.5, 0.5], [0, 0, 0]]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_bias_corrected_kl_is_trls(level):
    """``rho (exp(d) - d - 1)``, rho of the token or of the sequence, with its gradient."""
    loss = "ppo" if level == "token" else "gspo"
    config = AlgorithmConfig(loss=loss, kl={"coef": 0.3, "use_bias_correction_kl": True})
    new, old, a, mask = batch(7)
    ref = old - 0.2
    inputs = LossInputs(new, old, a, torch.zeros_like(new), mask, ref, 0.3)
    actual = build_algorithm(config).loss(inputs, 0.0)[mask].sum()
    total = torch.zeros((), dtype=new.dtype)
    for row in range(len(mask)):
        kept = [t for t in range(mask.shape[1]) if mask[row, t]]
        mean = sum(new[row, t] - old[row, t] for t in kept) / len(kept)
        for t in kept:
            d = ref[row, t] - new[row, t]
            rho = torch.exp(new[row, t] - old[row, t] if level == "token" else mean)
            total = total + 0.3 * rho * (torch.exp(d) - d - 1)
    torch.testing.assert_close(actual, total)
    torch.testing.assert_close(
        torch.autograd.grad(actual, new)[0], torch.autograd.grad(total, new)[0]
    )


def test_the_perception_term_is_papos():
    """arXiv 2507.06448: ``- coefficient (exp(d) - d - 1)``, d from the log-prob under masked
    pictures, which has no gradient; a prompt without a picture, NaN, has no such term.
    """
    config = AlgorithmConfig(perception={"coef": 0.3})
    algorithm = build_algorithm(config)
    assert not algorithm.needs_signal  # a group of equal rewards still learns to look
    new, old, a, mask = batch(9)
    masked = old - 0.5 * torch.rand_like(old).detach()
    masked[0] = float("nan")
    inputs = LossInputs(new, old, a, torch.zeros_like(new), mask, masked_logprobs=masked)
    actual = algorithm.loss(inputs, 2.0)[mask].sum()
    plain = build_algorithm(AlgorithmConfig())
    total = 2.0 * plain.loss(inputs)[mask].sum()
    for row, t in mask.nonzero().tolist():
        if row > 0:
            d = masked[row, t] - new[row, t]
            total = total - 0.3 * (torch.exp(d) - d - 1)
    torch.testing.assert_close(actual, total)
    own, expected = (torch.autograd.grad(x, new, retain_graph=True)[0] for x in (actual, total))
    torch.testing.assert_close(own, expected)
    assert own.isfinite().all()
    assert (algorithm.metrics(inputs)["perception_kl"][0] == 0).all()


@pytest.mark.parametrize("name", ["grpo", "dapo", "cispo", "sapo", "rloo", "ppo"])
def test_the_correction_for_the_engine_leaves_kl_and_entropy_alone(name):
    """TRL, verl and OpenRLHF: ``w * policy + beta * kl - coefficient * entropy``."""
    config = AlgorithmConfig(name=name, kl={"type": "loss", "coef": 0.3}, entropy={"coef": 0.2})
    new, old, a, mask = batch(5)
    entropy, ref = torch.rand_like(new), old + 0.1
    inputs = LossInputs(new, old, a, entropy, mask, ref, 0.3, 0.2)
    algorithm = build_algorithm(config)
    weight = torch.rand_like(new)
    policy = build_algorithm(AlgorithmConfig(name=name)).loss(inputs)
    d = ref - new
    expected = weight * policy + 0.3 * (d.exp() - d - 1) - 0.2 * entropy
    torch.testing.assert_close(algorithm.loss(inputs, weight), expected)


def test_with_several_updates_the_loss_is_that_of_decoupled_ppo():
    """AReaL (arXiv 2505.24298): the proximal policy p is not the one that sampled, q.

    ``-min(p / q, 2) min(u A, clip(u) A)`` of each token, u = pi / p.
    """
    new, old, a, mask = batch(11)
    generator = torch.Generator().manual_seed(12)
    sampled = old + torch.randn(old.shape, generator=generator, dtype=old.dtype)
    inputs = LossInputs(new, old, a, torch.zeros_like(new), mask)
    correction = ratios.rollout_importance_weights(old, sampled, mask, "token", 2.0)
    actual = build_algorithm(AlgorithmConfig(ppo_epochs=2)).loss(inputs, correction)[mask].sum()
    total = torch.zeros((), dtype=new.dtype)
    for row, t in mask.nonzero().tolist():
        weight = min(math.exp(float(old[row, t] - sampled[row, t])), 2.0)
        u = torch.exp(new[row, t] - old[row, t])
        clipped = u.clamp(0.8, 1.2)
        total = total - weight * torch.minimum(u * a[row, t], clipped * a[row, t])
    torch.testing.assert_close(actual, total)
    assert 0 < int((correction[mask] == 2.0).sum()) < int(mask.sum())
    torch.testing.assert_close(
        torch.autograd.grad(actual, new)[0], torch.autograd.grad(total, new)[0]
    )


def test_a_penalty_in_the_reward_is_k1_unless_it_is_set():
    """InstructGPT and RLOO: ``r - beta (log p - log reference)``."""
    assert AlgorithmConfig(kl={"coef": 0.1}).kl.estimator == "k3"
    for name in ("grpo", "rloo", "remax", "reinforce_pp_baseline", "ppo"):
        assert AlgorithmConfig(name=name, kl={"type": "reward", "coef": 0.1}).kl.estimator == "k1"
    own = AlgorithmConfig(name="rloo", kl={"type": "reward", "coef": 0.1, "estimator": "k3"})
    assert own.kl.estimator == "k3"


@pytest.mark.parametrize(("mask_truncated_completions", "tokens"), [(False, 4), (True, 1)])
def test_a_truncated_completion_is_kept_or_masked(mask_truncated_completions, tokens):
    config = AlgorithmConfig(mask_truncated_completions=mask_truncated_completions)
    group = scored([1, 3], [1.0, 0.0], truncated=1)
    batch = build_experience([group], build_algorithm(config), Models(None))
    assert int(batch.tokens.mask.sum()) == tokens
    assert (batch.tokens.advantages[~batch.tokens.mask] == 0).all()
    assert batch.tokens.advantages[0, 0] > 0  # the truncated one is still in the baseline


def test_an_invalid_reward_trains_nothing():
    config = AlgorithmConfig()
    group = scored([2, 2, 2], [1.0, 0.0, 0.0])
    rewards = (*group.rewards[:2], Reward(None, Status.TIMEOUT, error="too slow"))
    batch = build_experience(
        [ScoredGroup(group.group, rewards)], build_algorithm(config), Models(None)
    )
    assert not batch.tokens.mask[2].any()
    assert batch.tokens.advantages[0, 0] == -batch.tokens.advantages[1, 0] > 0
