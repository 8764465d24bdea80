"""Estimators of the KL divergence KL(policy || reference) from tokens of the policy.

Pure functions of log-probs of the same tokens under both, any shape; see J. Schulman,
"Approximating KL Divergence" (2020). With ``d = ref - log p``, the policy's tokens give
``E[-d] = KL`` and ``E[exp(d)] = 1``.
"""

from __future__ import annotations

import torch


def k3(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """``exp(d) - d - 1``: unbiased, never negative, of low variance; GRPO's choice."""
    d = ref_logprobs - logprobs
    return d.exp() - d - 1
