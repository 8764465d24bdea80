"""The gradient of the negative log-likelihood of a batch, for SFT and for the PTX term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmr1.trainer.algorithms.losses import token_weights
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.models.device_sums import DeviceSums
from mmr1.trainer.models.optimizer import check_finite
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.types import RolloutGroup


def add_nll_gradient(
    packed_model: PackedModel, groups: Sequence[RolloutGroup], coefficient: float = 1.0
) -> float:
    """Add ``coefficient`` times the gradient of the mean per token to the model's gradients.

    The likelihood is that of the model itself: at temperature 1, whatever the rollout's.

    Returns:
        That mean, in nats.

    Raises:
        NonFiniteError: The loss is not finite.
    """
    packed_model = replace(packed_model, temperature=1.0)
    weights = token_weights(completion_mask(groups), "token-mean")
    sums = DeviceSums()
    for batch in packed_model.batches(groups):
        logprobs = packed_model.token_scores(batch).logprobs
        loss = -(weights[batch.rows, : logprobs.shape[1]].to(logprobs) * logprobs).sum()
        if loss.requires_grad:  # not of a text where only the projector is trained
            (coefficient * loss).backward()
        sums.add("loss", loss)
    total = sums.read().get("loss", 0.0)
    check_finite(total)
    return total
