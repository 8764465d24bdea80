"""From scored groups to what the update learns from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import Algorithm
from mmr1.trainer.sequences import completion_mask
from mmr1.types import Experience, RolloutGroup, ScoredGroup


class ScoresCompletions(Protocol):
    """A model that can say how probable completions are: the policy or the reference."""

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient, sequences in group order."""
        ...


def reward_matrix(scored: Sequence[ScoredGroup]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards and validity, ``[G, n]`` each; an invalid reward stands as 0 and is masked."""
    rewards = [[0.0 if r.value is None else r.value for r in s.rewards] for s in scored]
    valid = [[r.valid for r in s.rewards] for s in scored]
    return torch.tensor(rewards, dtype=torch.float32), torch.tensor(valid)


def build_experience(
    scored: Sequence[ScoredGroup],
    algorithm: Algorithm,
    config: AlgorithmConfig,
    policy: ScoresCompletions,
    reference: ScoresCompletions | None = None,
) -> Experience:
    """Advantages, masks and the log-probs that the loss compares with.

    ``old_logprobs`` cost a forward pass only when several updates share the rollout; with one they
    are the update's own log-probs, detached. No reference pass without a reference.
    """
    groups = [s.group for s in scored]
    completions = [c for g in groups for c in g.completions]
    ids = [torch.as_tensor(c.token_ids) for c in completions]
    completion_ids = pad_sequence(ids, batch_first=True)  # [B, R]
    mask = completion_mask(groups)
    if config.mask_truncated:
        mask &= ~torch.tensor([c.truncated for c in completions])[:, None]

    rewards, valid = reward_matrix(scored)
    mask &= valid.flatten()[:, None]
    advantages = algorithm.advantages(rewards, valid).flatten()  # [B]
    rollout_logprobs = [torch.as_tensor(c.logprobs) for c in completions]
    return Experience(
        groups=tuple(scored),
        completion_ids=completion_ids,
        completion_mask=mask,
        rollout_logprobs=pad_sequence(rollout_logprobs, batch_first=True),
        advantages=advantages[:, None] * mask,
        old_logprobs=policy.logprobs(groups) if config.updates_per_rollout > 1 else None,
        ref_logprobs=None if reference is None else reference.logprobs(groups),
    )
