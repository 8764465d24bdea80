"""What a loss on pairs is given, and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mmr1.config import DpoConfig


@dataclass(frozen=True, slots=True)
class PairScores:
    """P pairs of completions, the chosen one in column 0, the rejected one in column 1.

    Attributes:
        logprobs: ``[P, 2]`` log-probs of whole completions under the policy.
        ref_logprobs: ``[P, 2]``, the same under the reference; 0 for losses without one.
        lengths: ``[P, 2]`` tokens, the end-of-sequence token included.
    """

    logprobs: torch.Tensor
    ref_logprobs: torch.Tensor
    lengths: torch.Tensor

    @property
    def log_ratios(self) -> torch.Tensor:
        """``[P, 2]``: log p / p_ref of whole completions."""
        return self.logprobs - self.ref_logprobs


class PairLoss(NamedTuple):
    """What a loss on pairs gives.

    Attributes:
        loss: ``[P]``.
        rewards: ``[P, 2]`` that the loss implies for the completions; for the metrics only.
    """

    loss: torch.Tensor
    rewards: torch.Tensor


LossOnPairs = Callable[[PairScores, DpoConfig], PairLoss]
