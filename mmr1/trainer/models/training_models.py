"""Policy, reference and critic of a run, built the same in one process and on each rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mmr1.config import Config
from mmr1.trainer.algorithms import build_algorithm
from mmr1.trainer.algorithms.importance_sampling import (
    Correction,
    rollout_importance_weights,
    unit_weights,
)
from mmr1.trainer.forward.packed import packed_scores
from mmr1.trainer.forward.process_group import ProcessGroup, SingleProcess
from mmr1.trainer.forward.sequences import ModelInputs, TokenScores
from mmr1.trainer.models.critic import Critic, build_critic
from mmr1.trainer.models.loading import (
    build_packed_model,
    check_same_tokens,
    feature_cache,
    load_model,
    load_trainable,
)
from mmr1.trainer.models.lora import has_adapters
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.models.reference import AdapterReference, FrozenReference
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache

Forward = Callable[..., TokenScores]
"""``packed_scores``, or that of a sharded model."""


@dataclass(frozen=True, slots=True)
class TrainingModels:
    """The models of a run and their optimizers, built before anything is written.

    Attributes:
        model: The policy's, which the engine ``hf`` samples from.
        reference: What the policy starts from, or the model of ``algorithm.ref_model_path``; None
            without a KL term.
        critic: None for algorithms without one.
        features: Those of a frozen vision tower, shared with the engine ``hf``.
    """

    model: Any
    policy: LocalPolicy
    reference: FrozenReference | AdapterReference | None
    critic: Critic | None
    features: FeatureCache | None


def build_training_models(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None = None,
    shard: Callable[[Any], Forward] = lambda model: packed_scores,
) -> TrainingModels:
    """Load the model, its reference and its critic.

    Args:
        process_group: The ranks that compute together, if any.
        shard: Spreads a model over them, in place; returns the forward of the sharded model.
    """
    model = load_trainable(config.model)
    inputs = ModelInputs(family, media)
    features = feature_cache(config)
    frozen = _frozen_reference(config, model)  # copied before the policy is sharded
    temperature = config.rollout.sampling.temperature
    packed_model = replace(
        build_packed_model(config, model, inputs, temperature, features),
        process_group=process_group or SingleProcess(),
        forward=shard(model),
    )
    reference = _reference(config, packed_model, frozen, shard)
    passes = config.algorithm.ppo_epochs
    policy = LocalPolicy(
        packed_model,
        build_algorithm(config.algorithm),
        Optimizer(model, config.optimizer, config.policy_steps * passes * config.mini_batches),
        passes=passes,
        reference=reference if config.algorithm.kl_estimator == "full" else None,
        correction=_correction(config),
    )
    critic = build_critic(config, inputs)
    return TrainingModels(model, policy, reference, critic, features)


def _correction(config: Config) -> Correction:
    algorithm = config.algorithm
    if config.resolved_rollout_is == "none" and algorithm.rollout_rs_threshold is None:
        return unit_weights
    return partial(
        rollout_importance_weights,
        form=config.resolved_rollout_is,
        cap=algorithm.rollout_is_threshold,
        outlier=algorithm.rollout_rs_threshold,
        outlier_form=algorithm.rollout_rs,
    )


def _frozen_reference(config: Config, model: Any) -> Any:
    """A second model for the KL term; None without a KL term, or where adapters need none."""
    algorithm = config.algorithm
    if algorithm.kl_coef == 0:
        return None
    if algorithm.ref_model_path is not None:
        key = "algorithm.ref_model_path"
        check_same_tokens(config.model.path, algorithm.ref_model_path, key)
        frozen = load_model(config.model.model_copy(update={"path": algorithm.ref_model_path}), key)
    elif has_adapters(model):
        return None
    else:
        frozen = copy.deepcopy(model)
    return frozen.requires_grad_(False).eval()


def _reference(
    config: Config, policy: PackedModel, frozen: Any, shard: Callable[[Any], Forward]
) -> FrozenReference | AdapterReference | None:
    if config.algorithm.kl_coef == 0:
        return None
    if frozen is None:
        return AdapterReference(policy)
    own = replace(policy, model=frozen, forward=shard(frozen))
    if config.algorithm.ref_model_path is not None:  # its vision tower is another one
        own = replace(own, features=FeatureCache())
    return FrozenReference(policy, own, config.algorithm.offload_reference)
