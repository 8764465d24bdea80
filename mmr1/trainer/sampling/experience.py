"""Build the ``Experience`` of an update from scored groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

import torch

from mmr1.config import AlgorithmConfig, DistillationAdvantage, KlFull, KlReward
from mmr1.trainer.algorithms import Algorithm
from mmr1.trainer.algorithms.algorithm import AdvantageInputs, UpdateTokens
from mmr1.trainer.algorithms.coefficients import Coefficients
from mmr1.trainer.algorithms.kl import ESTIMATORS
from mmr1.trainer.algorithms.losses import LossAggMode, token_weights
from mmr1.trainer.algorithms.reward_scaling import scaled_rewards
from mmr1.trainer.algorithms.terms import sampled_estimator
from mmr1.trainer.algorithms.token_choice import high_entropy
from mmr1.trainer.forward.sequences import TokenScores, completion_mask
from mmr1.trainer.models.mini_batches import mini_batch_of, rows_of
from mmr1.trainer.sampling.sampled_tokens import SampledTokens, after_picture
from mmr1.types import Experience, Reward, RolloutGroup, ScoredGroup


class SupportsLogprobs(Protocol):
    """A model that computes log-probs of completions: the policy or the reference."""

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient, sequences in group order."""
        ...


class SupportsScores(SupportsLogprobs, Protocol):
    """The policy."""

    def scores(self, groups: Sequence[RolloutGroup]) -> TokenScores:
        """Log-probs and entropies, ``[B, R]`` float32 without gradient."""
        ...


class SupportsValues(Protocol):
    """A critic."""

    def values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient, sequences in group order."""
        ...

    def final_values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B]``: of the state after the last token."""
        ...


def build_experience(
    scored: Sequence[ScoredGroup],
    algorithm: Algorithm,
    config: AlgorithmConfig,
    policy: SupportsScores,
    reference: SupportsLogprobs | None = None,
    coefficients: Coefficients | None = None,
    max_tokens: int | None = None,
    critic: SupportsValues | None = None,
    reward_weights: Mapping[str, float] = MappingProxyType({}),
) -> Experience:
    """Advantages, masks and the log-probs that the loss compares with.

    ``old_logprobs`` need a forward pass only when several updates share the rollout, the KL is in
    the reward or tokens are compared. Otherwise they are the update's own log-probs, detached.

    Args:
        reference: None when there is no KL term.
        coefficients: Their current values; by default those of the configuration.
        max_tokens: Longest completion in tokens; only ``seq-mean-token-sum-norm`` reads it.
        critic: Its values are computed once here; the critic's updates are clipped around them.
        reward_weights: Of the reward functions, by name; advantages of each function need them.

    Raises:
        ValueError: The groups are not of one size.
    """
    _check_sizes(scored)
    coefficients = coefficients or Coefficients(config)
    groups = [s.group for s in scored]
    completions = [c for g in groups for c in g.completions]

    advantage, choose = algorithm.advantage, algorithm.policy_loss.choose
    ref_logprobs = None
    if reference is not None and not isinstance(config.kl, KlFull):  # which the update computes
        ref_logprobs = reference.logprobs(groups)
    is_distilled = isinstance(config.advantage, DistillationAdvantage)
    kl_in_reward = reference is not None and (is_distilled or isinstance(config.kl, KlReward))
    old_logprobs = entropy = None
    if config.loss.token_share < 1:
        scores = policy.scores(groups)
        old_logprobs, entropy = scores.logprobs, scores.entropy
    elif config.has_several_updates or kl_in_reward or choose is not None:
        old_logprobs = policy.logprobs(groups)

    sampled_mask = counted = completion_mask(groups)
    if not advantage.step_supervision:
        counted = sampled_mask & torch.tensor([r.valid for s in scored for r in s.rewards])[:, None]
    mask = counted
    if config.mask_truncated_completions:  # out of the loss, but not out of the baselines
        mask = counted & ~torch.tensor([c.truncated for c in completions])[:, None]
    kl_penalty = torch.zeros(1).expand(counted.shape)
    if kl_in_reward:
        assert old_logprobs is not None
        assert ref_logprobs is not None
        estimate = ESTIMATORS[sampled_estimator(config)]
        kl_penalty = coefficients.kl * estimate(old_logprobs, ref_logprobs)
    inputs = _advantage_inputs(scored, counted, kl_penalty, reward_weights)
    inputs = scaled_rewards(inputs, config, algorithm.reward_state)
    steps = mini_batch_of(len(scored), config.ppo_mini_batch_size)
    scopes = steps if config.loss.agg_scope == "mini-batch" else (0,) * len(scored)
    if critic is not None:
        inputs = replace(inputs, values=critic.values(groups) * counted)
        if config.critic is not None and config.critic.bootstrap_truncated:
            is_cut = torch.tensor([c.truncated for c in completions])
            inputs = replace(inputs, final_values=critic.final_values(groups) * is_cut)
    sampled = SampledTokens(sampled_mask)
    of_sampled = sampled.of(inputs)
    advantages = sampled.spread(advantage.of_tokens(of_sampled)) * mask
    returns = None
    if advantage.returns is not None:
        returns = sampled.spread(advantage.returns(of_sampled))
    # Tokens are compared within their mini-batch.
    parts = [rows_of(scored, steps, step)[:, None] & mask for step in range(max(steps) + 1)]
    chosen = None
    if choose is not None:
        assert old_logprobs is not None
        tokens = [UpdateTokens(old_logprobs, advantages, part) for part in parts]
        chosen = torch.stack([choose(of_part) for of_part in tokens]).any(0)
    if entropy is not None:
        kept = [high_entropy(entropy, part, config.loss.token_share) for part in parts]
        advantages = advantages * torch.stack(kept).any(0)
    return Experience(
        groups=tuple(scored),
        completion_mask=mask,
        advantages=advantages,
        loss_weights=_loss_weights(scored, mask, scopes, algorithm.loss_agg_mode, max_tokens),
        mini_batches=max(steps) + 1,
        mini_batch_of=steps,
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        values=inputs.values,
        returns=returns,
        chosen=chosen,
        learning=_learning(advantages, chosen, scored, steps) if algorithm.needs_signal else None,
        after_picture=after_picture(groups),
        kl_coef=coefficients.kl,
        ppo_kl_coef=coefficients.ppo_kl,
        entropy_coef=coefficients.entropy,
    )


def _loss_weights(
    scored: Sequence[ScoredGroup],
    mask: torch.Tensor,
    scopes: Sequence[int],
    loss_agg_mode: LossAggMode,
    max_tokens: int | None,
) -> torch.Tensor:
    """``[B, R]``: ``token_weights`` of the groups of each scope by themselves."""
    if not any(scopes):
        return token_weights(mask, loss_agg_mode, max_tokens)
    weights = torch.zeros(mask.shape)
    for scope in range(max(scopes) + 1):
        rows = rows_of(scored, scopes, scope)
        weights[rows] = token_weights(mask[rows], loss_agg_mode, max_tokens)
    return weights


def _learning(
    advantages: torch.Tensor,
    chosen: torch.Tensor | None,
    scored: Sequence[ScoredGroup],
    steps: Sequence[int],
) -> torch.Tensor:
    """``[B]`` bool: the sequences with an advantage, or with a token that the loss treats apart.

    Of a mini-batch without any the first group, so that every step has an entropy and a log-prob
    gap to log.
    """
    has_signal = advantages.ne(0).any(dim=1)
    if chosen is not None:
        has_signal |= chosen.any(dim=1)
    for step in set(steps):
        if not has_signal[rows_of(scored, steps, step)].any():
            has_signal |= rows_of(scored, range(len(scored)), steps.index(step))
    return has_signal


def reward_matrix(rows: Sequence[Sequence[Reward]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards and their validity, ``[G, n]`` each; an invalid reward is 0 and masked."""
    rewards = [[0.0 if r.value is None else r.value for r in row] for row in rows]
    valid = [[r.valid for r in row] for row in rows]
    return torch.tensor(rewards, dtype=torch.float32), torch.tensor(valid)


def _check_sizes(scored: Sequence[ScoredGroup]) -> None:
    sizes = {len(s.rewards): s.group.prompt.sample.id for s in scored}
    if len(sizes) > 1:
        listed = ", ".join(f"{size} of sample '{id_}'" for size, id_ in sizes.items())
        raise ValueError(
            f"the groups of a step have different numbers of completions: {listed}; every prompt "
            "needs rollout.n of them, so look at the rollout engine"
        )


def _advantage_inputs(
    scored: Sequence[ScoredGroup],
    mask: torch.Tensor,
    kl_penalty: torch.Tensor,
    reward_weights: Mapping[str, float],
) -> AdvantageInputs:
    rewards, valid = reward_matrix([s.rewards for s in scored])
    baselines = [[s.greedy] for s in scored if s.greedy is not None]
    greedy, greedy_valid = reward_matrix(baselines) if baselines else (None, None)
    step_rewards, step_ends = _step_rewards(scored, mask.shape)
    return AdvantageInputs(
        rewards,
        valid,
        mask,
        kl_penalty,
        greedy,
        greedy_valid,
        step_rewards,
        step_ends,
        components=component_matrix([s.rewards for s in scored], list(reward_weights)),
        weights=torch.tensor(list(reward_weights.values())),
    )


def component_matrix(rows: Sequence[Sequence[Reward]], names: Sequence[str]) -> torch.Tensor:
    """``[F, G, n]``: the unweighted values of these reward functions; 0 without a valid reward."""
    values = [
        [[(r.components[name] if r.valid else None) or 0.0 for r in row] for row in rows]
        for name in names
    ]
    return torch.tensor(values, dtype=torch.float32)


def _step_rewards(
    scored: Sequence[ScoredGroup], shape: torch.Size
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """``[B, R]`` each: rewards at the tokens that end steps, and True at these tokens.

    Rewards of steps that end at the same token add up.
    """
    rows = [steps for s in scored for steps in s.steps or ()]
    if not rows:
        return None, None
    rewards, ends = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    for row, steps in enumerate(rows):
        for token, reward in steps:
            rewards[row, token] += reward
            ends[row, token] = True
    return rewards, ends
