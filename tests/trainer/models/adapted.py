"""A policy of adapters, and its log-probs by the plain model."""

from __future__ import annotations

import copy

import torch

from mmr1.config import AlgorithmConfig, NewLoraConfig, OptimizerConfig
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.models.reference import AdapterReference
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.vision.features import FeatureCache


class Adapted:
    """A policy of adapters over a copy of the tiny model, able to take an update."""

    def __init__(self, parts, freeze_vision_tower: bool = False, **lora: object) -> None:
        family, model, media, self.scored = parts
        torch.manual_seed(0)
        self.model = add_adapters(copy.deepcopy(model), NewLoraConfig(**lora), freeze_vision_tower)
        cache = FeatureCache() if freeze_vision_tower else None
        self.packed_model = PackedModel(
            self.model,
            ModelInputs(family, media),
            Distribution(forbidden=family.forbidden_ids),
            100,
            features=cache,
        )
        self.groups = [s.group for s in self.scored]
        self.reference = AdapterReference(self.packed_model)
        config = AlgorithmConfig(kl={"coef": 0.1})
        algorithm = build_algorithm(config)
        optimizer = Optimizer(
            self.model, OptimizerConfig(lr=0.01, scheduler={"warmup_steps": 0}), 10
        )
        self.policy = LocalPolicy(self.packed_model, algorithm, optimizer, 1)
        self.config, self.algorithm = config, algorithm

    def update(self) -> dict[str, float]:
        batch = build_experience(self.scored, self.algorithm, Models(self.policy, self.reference))
        return self.policy.update(batch)


def logprobs(parts, model) -> torch.Tensor:
    """Of the plain model, without any adapter code."""
    family, _, media, scored = parts
    packed_model = PackedModel(
        model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 10_000
    )
    return packed_model.logprobs([s.group for s in scored])
