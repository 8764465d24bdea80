"""A tiny model that gives numbers, and its numbers by an independent road."""

from __future__ import annotations

import copy

import torch

from mmr1.config import NewLoraConfig
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.scalar_model import PackedScalarModel, ScalarModel
from tests.padded_forward import padded_hidden


def new_scalar_model(
    parts, read="before", budget: int = 10_000, lora: NewLoraConfig | None = None, std: float = 0.1
):
    """Over a copy of the tiny model, its head drawn at random."""
    family, model, media, _ = parts
    own = copy.deepcopy(model)
    torch.manual_seed(0)
    scalar = ScalarModel(own if lora is None else add_adapters(own, lora, False))
    torch.nn.init.normal_(scalar.head.weight, std=std)
    backbone = PackedModel(
        scalar.backbone,
        ModelInputs(family, media),
        Distribution(forbidden=family.forbidden_ids),
        budget,
    )
    return PackedScalarModel(scalar, backbone, read)


def padded_values(scalar_model: PackedScalarModel, parts, read: str) -> list[torch.Tensor]:
    """Every sequence whole and padded; the head on the hidden states, row by row."""
    family, _, media, groups = parts
    inputs = [group_input(family, media, s.group) for s in groups]
    model = scalar_model.model
    hidden = padded_hidden(model.backbone, inputs)
    starts = [len(g.prompt_ids) - (read == "before") for g in inputs for _ in g.completions]
    lengths = [len(row) for g in inputs for row in g.completions]
    values = model.head(hidden)[..., 0]
    return [
        row[start : start + length]
        for row, start, length in zip(values, starts, lengths, strict=True)
    ]
