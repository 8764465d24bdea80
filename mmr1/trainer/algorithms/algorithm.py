"""What an algorithm is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mmr1.trainer.losses import Aggregation


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a token loss may use. All ``[B, R]``.

    Attributes:
        logprobs: Under the policy, differentiable.
        old_logprobs: Under the policy that the update started from, detached.
        advantages: 0 outside the mask.
        entropy: Of the policy's distribution at each token, differentiable.
        ref_logprobs: Under the reference policy, or None when KL is off.
    """

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    entropy: torch.Tensor
    ref_logprobs: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An advantage and a loss.

    Attributes:
        advantages: ``(rewards [G, n], valid [G, n]) -> [G, n]``.
        token_loss: ``LossInputs -> [B, R]``, to be minimised.
        aggregation: How token losses are added up; see ``losses.token_weights``.
        metrics: Extra tensors ``[B, R]`` to log as token means, by metric name.
        needs_signal: False when a group of equal rewards still has a gradient (a KL or entropy
            term); True lets the update leave such groups out.
    """

    advantages: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    token_loss: Callable[[LossInputs], torch.Tensor]
    aggregation: Aggregation
    metrics: Callable[[LossInputs], dict[str, torch.Tensor]]
    needs_signal: bool
