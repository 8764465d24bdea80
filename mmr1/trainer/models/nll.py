"""The gradient of a batch of written answers: for SFT, for the PTX term and for distillation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from mmr1.trainer.forward.micro_batches import MicroBatch
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.models.optimizer import check_finite
from mmr1.trainer.models.packed_model import PackedModel, total_loss
from mmr1.trainer.models.reference import SupportsDistributions
from mmr1.types import Metric, RolloutGroup


def add_nll_gradient(
    packed_model: PackedModel, groups: Sequence[RolloutGroup], coefficient: float = 1.0
) -> float:
    """Add ``coefficient`` times the gradient of the negative log-likelihood to the model's.

    The likelihood is the mean per token, and that of the model itself: at temperature 1, whatever
    the rollout's. With several ranks the mean is over the tokens of all, and ``groups`` are this
    rank's.

    Returns:
        That mean, in nats.

    Raises:
        NonFiniteError: The loss is not finite.
    """
    model = replace(packed_model, distribution=packed_model.distribution.of_model())
    return _add_gradient(model, groups, coefficient, lambda b: -model.token_scores(b).logprobs)


def add_distillation_gradient(
    packed_model: PackedModel,
    groups: Sequence[RolloutGroup],
    teacher: SupportsDistributions,
    coefficient: float = 1.0,
) -> float:
    """Add ``coefficient`` times the gradient of the divergence from a teacher to the model's.

    Which divergence, ``packed_model.jsd_beta`` says. The mean is over the tokens of the answers,
    and both models are taken at temperature 1.
    """
    model = replace(packed_model, distribution=packed_model.distribution.of_model())

    def divergence(batch: MicroBatch) -> torch.Tensor:
        reference = teacher.distributions(batch)
        model.model.train()
        kl = model.token_scores(batch, reference).kl
        assert kl is not None, "it was asked for"
        return kl

    return _add_gradient(model, groups, coefficient, divergence)


def _add_gradient(
    model: PackedModel,
    groups: Sequence[RolloutGroup],
    coefficient: float,
    token_loss: Callable[[MicroBatch], torch.Tensor],
) -> float:
    """Add the gradient of the mean ``token_loss(batch)`` ``[b, R]`` over all tokens; returns it."""
    mask, group = completion_mask(groups), model.process_group
    weights = mask / max(group.total({"tokens": float(mask.sum())})["tokens"], 1)
    of_batches = []
    for batch in model.batches(groups):
        losses = token_loss(batch)
        loss = (weights[batch.rows, : losses.shape[1]].to(losses) * losses).sum()
        model.backward(coefficient * loss)
        of_batches.append({"loss": Metric(loss, reduce="sum")})
    mean = total_loss(group, of_batches)
    check_finite(mean)
    return mean
