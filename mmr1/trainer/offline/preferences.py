"""Learning from completions that are preferred to others: examples and one step on pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from mmr1.config import DpoConfig
from mmr1.config.dpo import load_preference_loss
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.models.optimizer import Optimizer, check_finite
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.offline.preference_losses import LossOnPairs, PairScores
from mmr1.types import RolloutGroup, StepStats


@dataclass(frozen=True, slots=True)
class Preference:
    """A prompt with completions that are wanted or not.

    Attributes:
        group: The prompt and its completions. For pairs: the chosen one, then the rejected one.
        desirable: Is each completion wanted? KTO's last completion answers another prompt and has
            no entry.
        reference: Log-probs of the completions under the reference, each summed over its tokens.
        weights: Of each completion in KTO's loss; empty: 1 each.
    """

    group: RolloutGroup
    desirable: tuple[bool, ...]
    reference: tuple[float, ...]
    weights: tuple[float, ...] = ()


PAIR = (True, False)
"""``Preference.desirable`` of a pair."""


def preferences_of(
    groups: Sequence[RolloutGroup],
    desirable: Sequence[tuple[bool, ...]],
    logprobs: Callable[[Sequence[RolloutGroup]], torch.Tensor],
    config: DpoConfig,
) -> list[Preference]:
    """Take the model as it is now as the reference: no second one is ever needed.

    Args:
        logprobs: Gives its log-probs ``[B, R]`` of completion tokens, at temperature 1.
    """
    sums = torch.zeros(sum(len(group.completions) for group in groups))
    if config.loss_spec.needs_reference:
        sums = logprobs(groups).sum(-1)
    ends = torch.tensor([0] + [len(group.completions) for group in groups]).cumsum(0).tolist()
    return [
        Preference(group, wanted, tuple(sums[start:end].tolist()))
        for group, wanted, (start, end) in zip(groups, desirable, pairwise(ends), strict=True)
    ]


def pair_step(
    packed_model: PackedModel,
    optimizer: Optimizer,
    pairs: Sequence[Preference],
    config: DpoConfig,
) -> StepStats:
    """One optimizer step on the mean loss of the pairs; of all ranks' pairs, where there are any.

    With ``dpo.nll_coef`` the chosen completion's mean negative log-likelihood per token is added
    (arXiv 2404.19733, equation 1), so that training does not lower its probability too.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    loss_on_pairs: LossOnPairs = load_preference_loss(config.loss_type)
    packed_model.model.train()
    total = packed_model.process_group.total
    groups = [pair.group for pair in pairs]
    lengths = completion_mask(groups).sum(-1).view(-1, 2)  # [P, 2]
    counts = total({"pairs": len(pairs), "tokens": float(lengths.sum())})
    reference = torch.tensor([pair.reference for pair in pairs])
    sums_of: dict[str, float] = defaultdict(float)
    for batch in packed_model.batches(groups, whole=True):
        sums = packed_model.token_scores(batch).logprobs.sum(-1).view(-1, 2)
        if not batch.groups:
            packed_model.backward(sums.sum())
            continue
        indices = batch.rows[::2] // 2  # of this micro-batch's pairs
        scores = PairScores(sums, reference[indices].to(sums), lengths[indices].to(sums))
        preference, rewards = loss_on_pairs(scores, config)
        nll = -sums[:, 0] / scores.lengths[:, 0]
        loss = (preference + config.nll_coef * nll).sum() / counts["pairs"]
        packed_model.backward(loss)
        sums_of["loss"] += float(loss.detach())
        for name, values in {
            "dpo/loss": preference,
            "dpo/nll": nll,
            "dpo/chosen": rewards[:, 0],
            "dpo/rejected": rewards[:, 1],
            "dpo/accuracy": rewards[:, 0] > rewards[:, 1],
        }.items():
            sums_of[name] += float(values.detach().float().sum()) / counts["pairs"]
    stats = total(sums_of)
    check_finite(stats["loss"])
    lr = optimizer.lr
    return {
        **stats,
        "grad_norm": optimizer.step(),
        "lr": lr,
        "tokens/completion": counts["tokens"],
    }
