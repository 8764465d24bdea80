"""Learning from conversations with an environment: the policy's tokens count and no other."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from mmr1.algorithms.interface import AdvantageInputs
from mmr1.config import AlgorithmConfig, OptimizerConfig
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.models.scalar_model import at_the_end
from mmr1.trainer.sampling.experience import Models, build_experience, run_on_sampled_tokens
from mmr1.types import MiniBatch, Reward, ScoredGroup
from mmr1.vision.prepare import MediaCache
from tests.trainer.conversations import conversations, picture
from tests.trainer.forward.plain_conversations import plain_logprobs
from tests.trainer.models.policies import assert_close
from tests.trainer.tiny_groups import family, new_model

REWARDS = [[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]]
ZOOMED, OTHER = picture(1), picture(2, 84, 56)
TURNS = [
    [[4, [3, ZOOMED, 2], 5], [3, [2], 2, [4], 6], [7]],
    [[2, [1, OTHER, 1], 3, [1, ZOOMED, 2], 4], [5], [1, [3], 2]],
]


@pytest.fixture(scope="module")
def learning():
    """A model, its media, and two scored groups of conversations."""
    media = MediaCache(family().prepare_media)
    scored = []
    for seed, (turns, rewards) in enumerate(zip(TURNS, REWARDS, strict=True)):
        group = conversations(family(), media, turns, [picture(7)], seed)
        scored.append(ScoredGroup(group, tuple(Reward(r) for r in rewards)))
    return new_model(), media, scored


def test_the_end_of_a_conversation_is_behind_its_observations(learning):
    groups = [scored.group for scored in learning[2]]
    lengths = [len(c.token_ids) for group in groups for c in group.completions]
    values = torch.arange(max(lengths)).repeat(len(lengths), 1)
    assert at_the_end(values, groups).tolist() == [length - 1 for length in lengths]


@pytest.mark.parametrize("budget", [70, 10_000])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_gradient_is_that_of_the_sampled_tokens(learning, mode, budget):
    model, media, scored = learning
    config = AlgorithmConfig(name="rloo", loss={"type": "reinforce", "agg_mode": mode})
    own = copy.deepcopy(model)
    policy = policy_of(own, media, config, budget)
    caught = {}

    def step() -> dict[str, float]:
        caught.update({n: p.grad.clone() for n, p in own.named_parameters()})
        return {"grad_norm": 0.0, "lr": 0.0}

    policy.optimizer.step = step
    stats = policy.update(build_experience(scored, build_algorithm(config), Models(policy)))

    plain = copy.deepcopy(model)
    counts = [sum(t for t in turns if isinstance(t, int)) for g in TURNS for turns in g]
    advantages = [r - (sum(row) - r) / 2 for row in REWARDS for r in row]
    completions = [(s.group, c) for s in scored for c in s.group.completions]
    loss = torch.zeros(())
    for (group, c), count, advantage in zip(completions, counts, advantages, strict=True):
        logprobs = plain_logprobs(plain, media, group, c, family().forbidden_ids)
        share = sum(counts) if mode == "token-mean" else count * len(counts)
        loss = loss - advantage * logprobs[policys_tokens(c)].sum() / share
    loss.backward()
    assert_close(caught, {n: p.grad for n, p in plain.named_parameters()})
    assert stats["loss"] == pytest.approx(loss.item(), abs=1e-5)


STATES = {
    "one picture": ([3, ZOOMED], [3, ZOOMED], "state", True),
    "two pictures": ([3, ZOOMED], [3, OTHER], "state", False),
    "two pictures, by number": ([3, ZOOMED], [3, OTHER], "turn", True),
}


@pytest.mark.parametrize(("first", "second", "group_by", "same"), STATES.values(), ids=STATES)
def test_the_turns_of_a_group_are_compared_by_hand(first, second, group_by, same):
    """GiGPO without deviations, gamma 0.5 and weight 0.5 of the turns' advantages.

    The environment's function has weight 2. Its rewards, None in between, and the whole rewards:
    0.5, 1.0 and 3.3; 0, None and 0.1; None and 1.0. So the turns have 1.0 and 2.3, 0 and 0.1, 1.0,
    and the returns 2.15 and 2.3, 0.05 and 0.1, 1.0.
    """
    media = MediaCache(family().prepare_media)
    group = conversations(family(), media, [[4, first, 5], [2, second, 6], [3]])
    given = iter([0.5, 1.0, 0.0, None, None])
    paid = [
        replace(
            c,
            spans=tuple(
                replace(s, reward=next(given)) if s.role == "assistant" else s for s in c.spans
            ),
        )
        for c in group.completions
    ]
    rewards = tuple(Reward(r, components={"environment": 0.0}) for r in (3.3, 0.1, 1.0))
    scored = ScoredGroup(replace(group, completions=tuple(paid)), rewards)
    keys = {"gamma": 0.5, "step_advantage_w": 0.5, "scale_rewards": "none", "group_by": group_by}
    config = AlgorithmConfig(advantage={"type": "gigpo", **keys})
    algorithm = build_algorithm(config, reward_weights={"environment": 2.0})
    batch = build_experience([scored], algorithm, Models(None))
    mean, start, later = 4.4 / 3, 3.2 / 3, 1.2 if same else None
    expected = torch.zeros(batch.tokens.advantages.shape)
    for row, (total, returns, turns) in enumerate(
        [(3.3, (2.15, 2.3), (4, 5)), (0.1, (0.05, 0.1), (2, 6)), (1.0, (1.0,), (3,))]
    ):
        expected[row, : turns[0]] = total - mean + 0.5 * (returns[0] - start)
        if len(turns) > 1:
            length = len(paid[row].token_ids)
            of_state = returns[1] - later if later is not None else 0.0
            expected[row, length - turns[1] : length] = total - mean + 0.5 * of_state
    torch.testing.assert_close(batch.tokens.advantages, expected, atol=1e-5, rtol=0)


def policys_tokens(completion) -> torch.Tensor:
    """``[R]`` bool, from the lengths of the turns."""
    whose = [[s.role == "assistant"] * s.tokens for s in completion.spans]
    return torch.tensor([token for span in whose for token in span])


def policy_of(model, media, config, budget=10_000):
    packed_model = PackedModel(
        model, ModelInputs(family(), media), Distribution(forbidden=family().forbidden_ids), budget
    )
    optimizer = Optimizer(
        model,
        OptimizerConfig(lr=0.001, max_grad_norm=1000000000.0, scheduler={"warmup_steps": 0}),
        10,
    )
    return LocalPolicy(packed_model, build_algorithm(config), optimizer, 1)


def test_what_is_logged_is_of_the_sampled_tokens_and_of_those_after_a_picture(learning):
    model, media, scored = learning
    own = copy.deepcopy(model)
    config = AlgorithmConfig(name="rloo")
    policy = policy_of(own, media, config)
    batch = build_experience(scored, build_algorithm(config), Models(policy))
    every = MiniBatch(torch.ones(len(batch.tokens.advantages), dtype=torch.bool))
    batch = replace(batch, mini_batches=(every,))
    stats = policy.update(batch)
    gaps, after = [], []
    for s in scored:
        for c in s.group.completions:
            logprobs = plain_logprobs(model, media, s.group, c, family().forbidden_ids).detach()
            seen = torch.zeros(len(c.token_ids), dtype=torch.bool)
            if c.media:
                first = next(i for i, span in enumerate(c.spans) if span.media)
                seen[sum(span.tokens for span in c.spans[: first + 1]) :] = True
            gaps.append(logprobs[policys_tokens(c)].abs())  # the engine's were 0
            after.append(logprobs[policys_tokens(c) & seen].abs())
    assert stats["rollout/logprob_diff_mean"] == pytest.approx(
        torch.cat(gaps).mean().item(), rel=1e-4
    )
    name = "rollout/logprob_diff_after_image"
    assert stats[name] == pytest.approx(torch.cat(after).mean().item(), rel=1e-4)
    assert 0 < len(torch.cat(after)) < len(torch.cat(gaps))
    cut = torch.zeros_like(batch.tokens.mask)
    cut[:, :3] = batch.tokens.mask[:, :3]  # before the first picture of a tool
    batch = replace(batch, tokens=replace(batch.tokens, mask=cut))
    assert name not in policy.update(batch)


def test_the_gap_of_what_the_newest_weights_sampled_is_logged_apart(learning):
    """The first completion of each group continues with version 3; the others are of version 2."""
    model, media, scored = learning
    config = AlgorithmConfig(name="rloo")
    policy = policy_of(copy.deepcopy(model), media, config)
    policy.version, carried, gaps = 3, [], []
    for s in scored:
        first, *others = (replace(c, policy_version=2) for c in s.group.completions)
        first = replace(first, versions=((2, 4), (3, len(first.token_ids) - 4)))
        logprobs = plain_logprobs(model, media, s.group, first, family().forbidden_ids).detach()
        newest = policys_tokens(first) & (torch.arange(len(first.token_ids)) >= 4)
        gaps.append(logprobs[newest].abs())  # the engine's were 0
        carried.append(replace(s, group=replace(s.group, completions=(first, *others))))
    name = "rollout/logprob_diff_current"
    batch = build_experience(carried, build_algorithm(config), Models(policy))
    every = MiniBatch(torch.ones(len(batch.tokens.advantages), dtype=torch.bool))
    stats = policy.update(replace(batch, mini_batches=(every,)))
    assert stats[name] == pytest.approx(torch.cat(gaps).mean().item(), rel=1e-4)
    assert 0 < stats[name] != pytest.approx(stats["rollout/logprob_diff_mean"])
    plain = build_experience(scored, build_algorithm(config), Models(policy))
    assert name not in policy.update(plain)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "grpo"},
        {"name": "reinforce_pp_baseline"},
        {"name": "reinforce_pp", "advantage": {"gamma": 0.9}, "kl": {"coef": 0.1}},
        {"name": "ppo", "advantage": {"gamma": 0.9, "lam": 0.8}},
    ],
    ids=lambda options: options["name"],
)
def test_advantages_and_returns_are_those_without_the_environments_tokens(options):
    """The same numbers, with gaps and without: discounts and values skip what is between."""
    generator = torch.Generator().manual_seed(0)
    advantage = build_algorithm(AlgorithmConfig(**options)).advantage
    lengths, width = [5, 3, 4, 6], 6
    without = AdvantageInputs(
        rewards=torch.tensor([[1.0, 0.0], [0.5, 2.0]]),
        valid=torch.ones(2, 2, dtype=torch.bool),
        mask=torch.arange(width) < torch.tensor(lengths)[:, None],
        kl_penalty=torch.rand(4, width, generator=generator),
        values=torch.rand(4, width, generator=generator),
    )
    sampled = torch.zeros(4, 10, dtype=torch.bool)
    for row, (length, gaps) in enumerate(zip(lengths, [[2, 3], [], [1], [1, 5, 8]], strict=True)):
        sampled[row, : length + len(gaps)] = True
        sampled[row, gaps] = False

    def spread(values, other):
        wide = torch.full(sampled.shape, other, dtype=values.dtype)
        return wide.masked_scatter(sampled, values[without.mask])

    with_gaps = replace(
        without,
        mask=sampled,
        kl_penalty=spread(without.kl_penalty, 9.0),
        values=spread(without.values, 9.0),
    )
    for compute in filter(None, (advantage.of_tokens, advantage.returns)):
        expected = (compute(without) * without.mask)[without.mask]
        got = run_on_sampled_tokens(compute, with_gaps, sampled)
        torch.testing.assert_close(got[sampled], expected, atol=1e-6, rtol=0)
        assert expected.abs().max() > 0.1


def test_without_gaps_nothing_is_moved():
    mask = torch.arange(6) < torch.tensor([5, 3])[:, None]
    inputs = AdvantageInputs(torch.ones(2, 1), torch.ones(2, 1).bool(), mask, torch.zeros(2, 6))
    given = []

    def compute(x):
        given.append(x)
        return x.kl_penalty

    assert run_on_sampled_tokens(compute, inputs, mask) is inputs.kl_penalty
    assert len(given) == 1
    assert given[0] is inputs
