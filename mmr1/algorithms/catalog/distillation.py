"""On-policy distillation: a teacher scores the tokens that the student sampled.

Each token's advantage is the log-prob of ``algorithm.advantage.teacher`` less the student's: minus
the one-sample estimate of the reverse KL at that token (GKD, arXiv 2306.13649, with the student's
samples alone; MiniLLM, arXiv 2306.08543). A token answers for itself only: the KL of later tokens
is not added. GRPO's advantage of the rewards is added, so that rewards by rule can be mixed in. It
is 0 where the rewards of a group are equal.

The exact KL over the vocabulary in the loss is any algorithm with ``algorithm.kl.type: full``.
"""

from __future__ import annotations

import torch

from mmr1.algorithms.baselines import grpo
from mmr1.algorithms.interface import Advantage, AdvantageInputs
from mmr1.config import DistillationAdvantage


def build(section: DistillationAdvantage) -> Advantage:
    """The advantage of distillation; ``section.coef`` is in the penalty that the loop gives."""
    return Advantage(_of_tokens)


def _of_tokens(x: AdvantageInputs) -> torch.Tensor:
    return (grpo(x.rewards, x.valid).flatten()[:, None] - x.kl_penalty) * x.mask
