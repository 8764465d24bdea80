"""Build the ``Experience`` of an update from scored groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from mmr1.algorithms.interface import AdvantageInputs, UpdateTokens
from mmr1.algorithms.kl import ESTIMATORS
from mmr1.algorithms.ratios import high_entropy, token_weights
from mmr1.config import AlgorithmConfig
from mmr1.trainer.coefficients import Coefficients
from mmr1.trainer.forward.micro_batches import mini_batch_rows
from mmr1.trainer.forward.sequences import (
    TokenScores,
    completion_mask,
    kept_counts,
    length_mask,
    sampled_mask,
)
from mmr1.types import (
    Completion,
    CriticTargets,
    Experience,
    LossCoefficients,
    MiniBatch,
    Reward,
    RolloutGroup,
    ScoredGroup,
    Span,
    TokenBatch,
)

if TYPE_CHECKING:
    from mmr1.trainer.algorithm import Algorithm


class SupportsLogprobs(Protocol):
    """A model that computes log-probs of completions: the policy or the reference."""

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient, sequences in group order."""
        ...


class SupportsScores(SupportsLogprobs, Protocol):
    """A model that computes log-probs and entropies: the policy."""

    def scores(self, groups: Sequence[RolloutGroup]) -> TokenScores:
        """Log-probs and entropies, ``[B, R]`` float32 without gradient."""
        ...


class SupportsValues(Protocol):
    """A model that estimates values: the critic."""

    def values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient, sequences in group order."""
        ...

    def final_values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """Values ``[B]`` of the state after the last token."""
        ...


@dataclass(frozen=True, slots=True)
class Models:
    """The models that are asked about the completions of a batch.

    Attributes:
        reference: None when there is no KL term.
        critic: Its values are computed once; the critic's updates are clipped around them.
    """

    policy: SupportsScores
    reference: SupportsLogprobs | None = None
    critic: SupportsValues | None = None


def build_experience(
    scored: Sequence[ScoredGroup],
    algorithm: Algorithm,
    models: Models,
    coefficients: Coefficients | None = None,
) -> Experience:
    """Advantages, masks and the log-probs that the loss compares with.

    Args:
        coefficients: Their current values; by default those of the configuration.

    Raises:
        ValueError: The groups are not of one size.
    """
    config, advantage = algorithm.config, algorithm.advantage
    shown = algorithm.shown(scored)
    groups = [s.group for s in shown]
    coefficients = coefficients or Coefficients(config)

    old_logprobs = old_entropy = ref_logprobs = None
    if models.reference is not None and "reference" in algorithm.scorers:
        ref_logprobs = models.reference.logprobs(groups)
    kl_in_reward = models.reference is not None and algorithm.kl_in_reward
    if algorithm.token_share < 1:
        scores = models.policy.scores(groups)
        old_logprobs, old_entropy = scores.logprobs, scores.entropy
    elif "policy" in algorithm.scorers:
        old_logprobs = models.policy.logprobs(groups)

    sampled = counted = completion_mask(groups)
    if not advantage.step_supervision:
        counted = sampled & torch.tensor([r.valid for s in scored for r in s.rewards])[:, None]
    mask = counted
    if config.mask_truncated_completions:  # out of the loss, but not out of the baselines
        mask = counted & ~_truncated(groups)[:, None]

    inputs = _advantage_inputs(scored, counted, algorithm)
    if kl_in_reward and ref_logprobs is not None:
        assert old_logprobs is not None
        estimate = ESTIMATORS[algorithm.kl_estimator](old_logprobs, ref_logprobs)
        inputs = replace(inputs, kl_penalty=coefficients.kl * estimate)
    if models.critic is not None:
        inputs = _with_values(inputs, models.critic, groups, config)
    advantages = run_on_sampled_tokens(advantage.of_tokens, inputs, sampled) * mask
    critic = None
    if advantage.returns is not None and inputs.values is not None:
        returns = run_on_sampled_tokens(advantage.returns, inputs, sampled)
        critic = CriticTargets(inputs.values, returns)

    parts = mini_batch_rows(scored, config.ppo_mini_batch_size)
    chosen = None
    if old_entropy is not None or algorithm.policy_loss.choose is not None:
        advantages, chosen = _chosen(advantages, mask, parts, algorithm, old_logprobs, old_entropy)

    ptx = 0.0 if config.ptx is None else config.ptx.coef
    weighed = (coefficients.kl, coefficients.entropy, ptx)
    learning = _learning(advantages, chosen, parts, len(scored[0].rewards), algorithm)
    tokens = TokenBatch(
        mask=mask,
        advantages=advantages,
        loss_weights=_loss_weights(mask, parts, algorithm),
        rollout_logprobs=_rollout_logprobs(groups, mask.shape),
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        chosen=chosen,
        after_picture=after_picture(groups),
        versions=_versions(groups, mask.shape),
        kept=kept_counts(groups),
        other_view=_other_view(groups, mask.shape) if shown is scored else None,
    )
    return Experience(
        groups=tuple(shown),
        tokens=tokens,
        mini_batches=tuple(MiniBatch(part & learning) for part in parts),
        coefficients=LossCoefficients(*weighed),
        critic=critic,
    )


def _with_values(
    inputs: AdvantageInputs,
    critic: SupportsValues,
    groups: Sequence[RolloutGroup],
    config: AlgorithmConfig,
) -> AdvantageInputs:
    """The inputs with the critic's values of the states."""
    values, final_values = critic.values(groups) * inputs.mask, None
    if config.critic is not None and config.critic.bootstrap_truncated:
        final_values = critic.final_values(groups) * _truncated(groups)
    return replace(inputs, values=values, final_values=final_values)


def _chosen(
    advantages: torch.Tensor,
    mask: torch.Tensor,
    parts: Sequence[torch.Tensor],
    algorithm: Algorithm,
    logprobs: torch.Tensor | None,
    entropy: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The advantages of the tokens to learn from, and the tokens that the loss treats apart.

    The tokens of each mini-batch are compared with one another.
    """
    chosen = None
    if (choose := algorithm.policy_loss.choose) is not None:
        assert logprobs is not None, "it needs those before the update"
        of_parts = [UpdateTokens(logprobs, advantages, mask & part[:, None]) for part in parts]
        chosen = torch.stack([choose(tokens) for tokens in of_parts]).any(0)
    if entropy is not None:
        share = algorithm.token_share
        kept = [high_entropy(entropy, mask & part[:, None], share) for part in parts]
        advantages = advantages * torch.stack(kept).any(0)
    return advantages, chosen


def _rollout_logprobs(groups: Sequence[RolloutGroup], shape: torch.Size) -> torch.Tensor:
    """``[B, R]`` float32: the engine's log-probs of the completions, followed by zeros."""
    rows = torch.zeros(shape)
    completions = (c for group in groups for c in group.completions)
    for row, completion in zip(rows, completions, strict=True):
        row[: len(completion.logprobs)] = torch.tensor(completion.logprobs)  # Ray's are read-only
    return rows


def _versions(groups: Sequence[RolloutGroup], shape: torch.Size) -> torch.Tensor | None:
    """``[B, R]`` int64: of the weights that sampled each token; -1 behind the completions."""
    completions = [c for group in groups for c in group.completions]
    if not any(c.versions for c in completions):
        return None
    rows = torch.full(shape, -1)
    for row, c in zip(rows, completions, strict=True):
        numbers, counts = zip(*c.versions or [(c.policy_version, len(c.token_ids))], strict=True)
        row[: sum(counts)] = torch.tensor(numbers).repeat_interleave(torch.tensor(counts))
    return rows


def _other_view(groups: Sequence[RolloutGroup], shape: torch.Size) -> torch.Tensor | None:
    """``[B, R]`` bool: the completions that saw another view than their group's prompt has."""
    rows = [bool(c.view) for group in groups for c in group.completions]
    return torch.tensor(rows)[:, None].expand(shape) if any(rows) else None


def _truncated(groups: Sequence[RolloutGroup]) -> torch.Tensor:
    """Truncated completions: ``[B]`` bool."""
    return torch.tensor([c.truncated for g in groups for c in g.completions])


def _loss_weights(
    mask: torch.Tensor,
    parts: Sequence[torch.Tensor],
    algorithm: Algorithm,
) -> torch.Tensor:
    """Token weights ``[B, R]``, over the sequences of each mini-batch, or over all together."""
    if algorithm.config.loss.agg_scope == "rollout":
        return token_weights(mask, algorithm.loss_agg_mode, algorithm.max_tokens) * len(parts)
    if len(parts) == 1:
        return token_weights(mask, algorithm.loss_agg_mode, algorithm.max_tokens)
    weights = torch.zeros(mask.shape)
    for rows in parts:
        weights[rows] = token_weights(mask[rows], algorithm.loss_agg_mode, algorithm.max_tokens)
    return weights


def _learning(
    advantages: torch.Tensor,
    chosen: torch.Tensor | None,
    parts: Sequence[torch.Tensor],
    group_size: int,
    algorithm: Algorithm,
) -> torch.Tensor:
    """Sequences with an advantage, or with a token that the loss treats apart: ``[B]`` bool.

    All of them where another term of the loss has a gradient. Of a mini-batch without any the first
    group, so that every step has an entropy and a log-prob gap to log.
    """
    if not algorithm.needs_signal:
        return torch.ones(len(advantages), dtype=torch.bool)
    has_signal = advantages.ne(0).any(dim=1)
    if chosen is not None:
        has_signal |= chosen.any(dim=1)
    for part in parts:
        rows = part.nonzero()[:, 0]
        if not has_signal[rows].any():
            has_signal[rows[:group_size]] = True
    return has_signal


def reward_matrix(rows: Sequence[Sequence[Reward]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards and their validity, ``[G, n]`` each; an invalid reward is 0 and masked."""
    rewards = [[0.0 if r.value is None else r.value for r in row] for row in rows]
    valid = [[r.valid for r in row] for row in rows]
    return torch.tensor(rewards, dtype=torch.float32), torch.tensor(valid)


def component_matrix(rows: Sequence[Sequence[Reward]], functions: Iterable[str]) -> torch.Tensor:
    """``[F, G, n]``: the value of each reward function, 0 without a valid reward."""
    values = [
        [[(r.components[name] if r.valid else None) or 0.0 for r in row] for row in rows]
        for name in functions
    ]
    return torch.tensor(values, dtype=torch.float32)


def first_advantages(advantages: torch.Tensor) -> torch.Tensor:
    """``[B]``: each completion's advantage; where its tokens differ, the first that is not 0."""
    first = advantages.ne(0).float().argmax(dim=1, keepdim=True)
    return advantages.gather(1, first)[:, 0]


def _advantage_inputs(
    scored: Sequence[ScoredGroup],
    mask: torch.Tensor,
    algorithm: Algorithm,
) -> AdvantageInputs:
    """The inputs without models: rewards alone."""
    rows = [s.rewards for s in scored]
    sizes = {len(s.rewards): s.group.prompt.sample.id for s in scored}
    if len(sizes) > 1:
        listed = ", ".join(f"{size} of sample '{id_}'" for size, id_ in sizes.items())
        raise ValueError(
            f"the groups of a step have different numbers of completions: {listed}; every prompt "
            "needs rollout.n of them, so look at the rollout engine"
        )
    rewards, valid = reward_matrix(rows)
    baselines = [[s.greedy] for s in scored if s.greedy is not None]
    greedy, greedy_valid = reward_matrix(baselines) if baselines else (None, None)
    step_rewards = step_ends = step_states = None
    if algorithm.advantage.step_supervision:
        step_rewards, step_ends = _step_rewards(scored, mask.shape)
    elif algorithm.advantage.turns is not None:
        weight = algorithm.reward_weights.get("environment", 0.0)
        by_state = algorithm.advantage.turns == "state"
        step_rewards, step_ends, step_states = _turn_rewards(scored, mask.shape, weight, by_state)
    inputs = AdvantageInputs(
        rewards=rewards,
        valid=valid,
        mask=mask,
        kl_penalty=torch.zeros(1).expand(mask.shape),
        greedy=greedy,
        greedy_valid=greedy_valid,
        step_rewards=step_rewards,
        step_ends=step_ends,
        step_states=step_states,
        components=component_matrix(rows, algorithm.reward_weights),
        weights=torch.tensor(list(algorithm.reward_weights.values())),
    )
    if not algorithm.scales_rewards:
        return inputs
    return scaled_rewards(inputs, algorithm.config, algorithm.reward_state)


def _step_rewards(
    scored: Sequence[ScoredGroup], shape: torch.Size
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards at the tokens that end steps, and True at these tokens: ``[B, R]`` each.

    Rewards of steps that end at the same token add up.
    """
    rewards, ends = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    for row, steps in enumerate(steps for s in scored for steps in s.steps or ()):
        for token, reward in steps:
            rewards[row, token] += reward
            ends[row, token] = True
    return rewards, ends


def _turn_rewards(
    scored: Sequence[ScoredGroup], shape: torch.Size, weight: float, by_state: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return at the last token of each turn: its reward, True, and a number: ``[B, R]``.

    A turn's reward is the environment's, weighted. The rest of the completion's reward is for the
    last turn, so that the turns add up to it. Turns of a group with the same number answer the
    same text and pictures, or are equally far in their conversations.
    """
    rewards, ends = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    states = torch.zeros(shape, dtype=torch.int64)
    numbers: dict[tuple[int, Any], int] = {}
    rows = (
        (group, completion, reward)
        for group, s in enumerate(scored)
        for completion, reward in zip(s.group.completions, s.rewards, strict=True)
    )
    for row, (group, completion, reward) in enumerate(rows):
        place = 0
        seen: list[tuple[str, tuple[str, ...]]] = []
        turns: list[tuple[int, float]] = []
        for span in completion.spans or (Span("assistant", len(completion.token_ids), ""),):
            place += span.tokens
            if span.role == "tool":
                seen.append((span.text, tuple(medium.digest() for medium in span.media)))
                continue
            state = tuple(seen) if by_state else len(turns)
            turns.append((place - 1, weight * (span.reward or 0.0)))
            states[row, place - 1] = numbers.setdefault((group, state), len(numbers))
            seen = []
        rest = (reward.value or 0.0) - sum(given for _, given in turns)
        for token, given in turns:
            rewards[row, token], ends[row, token] = given, True
        rewards[row, turns[-1][0]] += rest
    return rewards, ends, states


def run_on_sampled_tokens(
    compute: Callable[[AdvantageInputs], torch.Tensor],
    inputs: AdvantageInputs,
    sampled: torch.Tensor,
) -> torch.Tensor:
    """``compute(inputs)`` ``[B, R]``, as if tokens of an environment were not there.

    What it answered is not an action of the policy. So the return of a token, its discount and its
    temporal difference continue at the policy's next token, as if nothing stood between.

    Args:
        sampled: ``[B, R]`` bool, the policy's tokens. They are moved to the beginning of each row,
            and what is computed is moved back.
    """
    if not (~sampled[:, :-1] & sampled[:, 1:]).any():
        return compute(inputs)
    order = (~sampled).long().argsort(dim=1, stable=True)
    values = {f.name: getattr(inputs, f.name) for f in fields(inputs)}
    moved: dict[str, Any] = {
        name: value.gather(1, order)
        for name, value in values.items()
        if isinstance(value, torch.Tensor) and value.shape == order.shape
    }
    of_moved = compute(replace(inputs, **moved))
    return torch.zeros_like(of_moved).scatter(1, order, of_moved)


def after_picture(groups: Sequence[RolloutGroup]) -> torch.Tensor | None:
    """Sampled tokens after the first picture that an environment showed: ``[B, R]`` bool.

    None where none was shown.
    """
    completions = [c for g in groups for c in g.completions]
    if not any(c.spans and c.media for c in completions):
        return None
    mask = torch.zeros_like(length_mask([len(c.token_ids) for c in completions]))
    for row, completion in zip(mask, completions, strict=True):
        if completion.media:
            start = _first_picture(completion)
            row[start : len(completion.token_ids)] = sampled_mask(completion)[start:]
    return mask


def _first_picture(completion: Completion) -> int:
    """The number of tokens before the span of the first picture."""
    before = 0
    for span in completion.spans:
        if span.media:
            break
        before += span.tokens
    return before


COUNT, MEAN, SQUARES = "rewards/count", "rewards/mean", "rewards/squares"


def scaled_rewards(
    x: AdvantageInputs, config: AlgorithmConfig, state: dict[str, float]
) -> AdvantageInputs:
    """The inputs with rewards, the greedy ones too, scaled as the configuration says.

    ``clip((r - mean) / (std + eps), low, high)``, or one of the two (arXiv 2307.04964: reward
    normalization and clipping).

    Args:
        state: The moments of all rewards before; this batch's are added.
    """
    rewards, greedy = x.rewards, x.greedy
    if config.normalize_rewards:
        add_rewards(state, rewards[x.valid])
        rewards = torch.where(x.valid, normalised(rewards, state), 0.0)
        greedy = None if greedy is None else normalised(greedy, state)
    if config.reward_clip_range is not None:
        low, high = config.reward_clip_range
        rewards = rewards.clamp(low, high)
        greedy = None if greedy is None else greedy.clamp(low, high)
    return replace(x, rewards=rewards, greedy=greedy)


def add_rewards(state: dict[str, float], rewards: torch.Tensor) -> None:
    """Add ``[N]`` rewards to the running count, mean and sum of squared differences from it.

    The parallel form of Welford's algorithm (Chan, Golub and LeVeque 1979).
    """
    if len(rewards) == 0:
        return
    before, mean = state.get(COUNT, 0.0), state.get(MEAN, 0.0)
    values = rewards.double()
    gap = float(values.mean()) - mean
    total = before + len(values)
    squares = float((values - values.mean()).square().sum())
    state[SQUARES] = state.get(SQUARES, 0.0) + squares + gap**2 * before * len(values) / total
    state[MEAN] = mean + gap * len(values) / total
    state[COUNT] = total


def normalised(rewards: torch.Tensor, state: dict[str, float], eps: float = 1e-6) -> torch.Tensor:
    """``(r - mean) / (std + eps)``, the sample deviation of all rewards so far."""
    freedom = max(state.get(COUNT, 0.0) - 1, 1.0)
    deviation = (state.get(SQUARES, 0.0) / freedom) ** 0.5
    return (rewards - state.get(MEAN, 0.0)) / (deviation + eps)
