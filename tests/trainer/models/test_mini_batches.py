"""Several optimizer steps per rollout, each on a part of it, by an independent road."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from mmr1.algorithms.interface import LossInputs
from mmr1.config import AlgorithmConfig
from mmr1.config.file import load_config
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.distributed.all_ranks import cut_groups
from mmr1.trainer.distributed.ray_policy import (
    parts_of_update,
    select_groups,
    split_update,
)
from mmr1.trainer.forward.micro_batches import mini_batch_rows
from mmr1.trainer.forward.sequences import group_input
from mmr1.types import MiniBatch
from tests.conftest import REWARDS
from tests.padded_forward import padded_scores
from tests.trainer.models import test_critic
from tests.trainer.models.policies import assert_close, experience, naive_gradient, policy
from tests.trainer.models.recorded_updates import Gradients, recorded

TWO_AND_ONE = {"ppo_mini_batch_size": 2}  # of the three groups


@pytest.mark.parametrize("scope", ["mini-batch", "rollout"])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_each_step_learns_from_its_part_alone(parts, mode, scope):
    """Weights by the mini-batch: EasyR1 and verl divide by the mini-batch's tokens or sequences.
    By the rollout: TRL's dapo divides by the tokens of the whole generation batch over the number
    of its optimizer steps (TRL 1.16, ``grpo_trainer.py``, loss_type dapo).
    """
    config = AlgorithmConfig(
        name="rloo", loss={"agg_mode": mode, "agg_scope": scope}, **TWO_AND_ONE
    )
    own, model = policy(parts, config)
    gradients = recorded(own, model)
    own.update(experience(parts, config, own))
    advantages = [[r - (sum(row) - r) / 3 for r in row] for row in REWARDS]
    family, _, media, scored = parts
    counts = [
        sum(len(c.token_ids) if mode == "token-mean" else 1 for c in s.group.completions)
        for s in scored
    ]
    assert len(gradients) == 2
    for actual, part in zip(gradients, (slice(0, 2), slice(2, 3)), strict=True):
        expected = naive_gradient((family, model, media, scored[part]), mode, advantages[part])
        share = sum(counts[part]) / (sum(counts) / 2) if scope == "rollout" else 1.0
        assert_close(actual, {name: share * g for name, g in expected.items()})


def test_the_second_step_is_clipped_around_the_policy_before_the_first(parts):
    config = AlgorithmConfig(
        loss={
            "clip_ratio_low": 0.001,
            "clip_ratio_high": 0.001,
            "agg_mode": "seq-mean-token-mean",
        },
        **TWO_AND_ONE,
    )
    own, model = policy(parts, config, lr=1e-2)
    batch = experience(parts, config, own)
    moved: list[torch.nn.Module] = []
    gradients: Gradients = []
    step = own.optimizer.step

    def watched() -> dict[str, float]:
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
        moved.append(copy.deepcopy(model))
        return step()

    own.optimizer.step = watched
    stats = own.update(batch)
    assert own.version == 2

    family, _, media, scored = parts
    naive = moved[1]  # as the second step found it
    naive.zero_grad()
    inputs = [group_input(family, media, scored[2].group)]
    new = padded_scores(naive, inputs, Distribution(forbidden=family.forbidden_ids)).logprobs
    loss, clipped, tokens = torch.zeros(()), 0, 0
    for row in range(4):
        length = len(scored[2].group.completions[row].token_ids)
        a = batch.tokens.advantages[8 + row, 0]
        for t in range(length):
            rho = (new[row, t] - batch.tokens.old_logprobs[8 + row, t]).exp()
            loss = loss - torch.min(rho * a, rho.clamp(0.999, 1.001) * a) / length / 4
            tokens += bool(a != 0)  # the others are left out of the step
            clipped += bool((a > 0 and rho > 1.001) or (a < 0 and rho < 0.999))
    loss.backward()
    assert_close(gradients[1], {n: p.grad for n, p in naive.named_parameters()})
    # The first step clips nothing: its ratios are 1. The mean is over the steps.
    assert clipped > 0
    assert stats["loss/clip_fraction"] == pytest.approx(clipped / tokens / 2)


def test_one_mini_batch_of_all_is_no_mini_batch(parts):
    gradients = []
    for config in (AlgorithmConfig(), AlgorithmConfig(ppo_mini_batch_size=3)):
        own, model = policy(parts, config)
        gradients.append(recorded(own, model))
        own.update(experience(parts, config, own))
    (whole,), (one,) = gradients
    assert_close(one, whole, 1e-6)


def test_a_mini_batch_without_signal_still_has_something_to_log(parts):
    config = AlgorithmConfig(ppo_mini_batch_size=1)  # the second group's rewards are all equal
    own, model = policy(parts, config)
    gradients = recorded(own, model)
    stats = own.update(experience(parts, config, own))
    assert stats["entropy"] > 0
    assert [max(g.abs().max() for g in of.values()) > 0 for of in gradients] == [True, False, True]


def test_the_critic_has_mini_batches_too(parts):
    own = test_critic.critic(parts, updates=2)
    own._mini_batch_size = 2
    batch = test_critic.experience(parts, own)
    own.optimizer.steps_taken = 1  # not the first, before which the head is moved
    gradients = recorded(own, own._scalar_model.model)
    own.update(batch)
    assert len(gradients) == 4
    for index, rows in enumerate((range(8), range(8, 12))):
        other = test_critic.new_scalar_model(parts)
        total, tokens = torch.zeros(()), 0
        for row, values in enumerate(test_critic.padded_values(other, parts, "before")):
            if row not in rows:
                continue
            for t, value in enumerate(values):
                total = total + (value - float(batch.critic.returns[row, t])) ** 2 / 2
                tokens += 1
        (total / tokens).backward()
        trained = {n: p.grad for n, p in other.model.named_parameters() if p.requires_grad}
        for of_pass in (gradients[index], gradients[2 + index]):
            assert_close(of_pass, trained)


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_gets_a_share_of_every_mini_batch(parts, ranks):
    config = AlgorithmConfig(**TWO_AND_ONE)
    own, _ = policy(parts, config)
    batch = experience(parts, config, own)
    members = mini_batch_rows(batch.groups, config.ppo_mini_batch_size)
    batch = replace(batch, mini_batches=tuple(map(MiniBatch, members)))  # all learn
    shares = split_update(batch, lambda prompt: 1.0, ranks)
    assert sorted(g for share in shares for g in share) == [0, 1, 2]
    assert sum(bool({0, 1} & set(share)) for share in shares) == 2
    for share in shares:
        selected = select_groups(batch, share)
        of_selected = [[g in (0, 1) for g in share], [g == 2 for g in share]]
        for mini_batch, members in zip(selected.mini_batches, of_selected, strict=True):
            rows = [m for m, g in zip(members, share, strict=True) for _ in batch.groups[g].rewards]
            assert mini_batch.learning.tolist() == rows


@pytest.mark.parametrize("ranks", [4, 8])
def test_groups_are_cut_for_more_ranks_than_groups(parts, ranks):
    """Two groups and one of four completions: each rank that can have a row of each has one."""
    config = AlgorithmConfig(**TWO_AND_ONE)
    own, _ = policy(parts, config)
    batch = experience(parts, config, own)
    own_parts = parts_of_update(batch, lambda prompt: 1.0, ranks)
    for index, whole in enumerate(batch.mini_batches):
        learning = [part.mini_batches[index].learning for part in own_parts]
        assert sum(map(int, map(torch.sum, learning))) == whole.learning.sum()
        assert sum(bool(rows.any()) for rows in learning) == min(ranks, whole.learning.sum())
        weights = [
            part.tokens.loss_weights[rows].sum()
            for part, rows in zip(own_parts, learning, strict=True)
        ]
        torch.testing.assert_close(sum(weights), batch.tokens.loss_weights[whole.learning].sum())
    for part in own_parts:
        rows = [reward for scored in part.groups for reward in scored.rewards]
        assert len(rows) == len(part.tokens.mask) == len(part.mini_batches[0].learning)
    groups = [scored.group for scored in batch.groups]
    pieces = cut_groups(groups, ranks)
    assert len(pieces) >= ranks
    assert [c for g in pieces for c in g.completions] == [c for g in groups for c in g.completions]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algorithm.ppo_mini_batch_size=5"], "=5, data.train_batch_size=16: the first does not"),
        (
            [
                *("algorithm.ptx.data=x", "algorithm.ptx.batch_size=3"),
                "algorithm.ppo_mini_batch_size=4",
            ],
            "each mini-batch of a rollout takes its share",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(overrides, said):
    with pytest.raises(ValueError, match=said):
        load_config(None, ["model.path=a", *overrides])


def test_the_preset_of_a_policy_gradient_is_clipped_where_the_plain_loss_is_not():
    """RLOO at ratio 2 and advantage 1: no gradient beyond the clip; ``-A log p`` has no clip."""
    old, one = torch.zeros(1, 1), torch.ones(1, 1)
    for keys, expected in (({"loss": "reinforce"}, -1.0), ({}, 0.0)):
        new = torch.full((1, 1), math.log(2), requires_grad=True)
        inputs = LossInputs(new, old, one, one, one.bool())
        build_algorithm(AlgorithmConfig(name="rloo", **keys)).loss(inputs).sum().backward()
        assert new.grad.item() == expected
