"""What a run trains: policy, reference and critic, built in one process or on each rank alike."""

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
from mmr1.trainer.forward.sequences import TokenScores
from mmr1.trainer.models.critic import Critic, build_critic
from mmr1.trainer.models.loading import build_packed_model, feature_cache, load_trainable
from mmr1.trainer.models.lora import has_adapters
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.models.reference import AdapterReference, FrozenReference
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache

Forward = Callable[..., TokenScores]
"""What takes the place of ``packed_scores``."""


@dataclass(frozen=True, slots=True)
class TrainingModels:
    """Built before anything is written.

    Attributes:
        model: The policy's, which the engine ``hf`` samples from.
        reference: What the policy starts from; None without a KL term.
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
    """Load the model and put learners around it.

    Args:
        process_group: The ranks that compute together, if any.
        shard: Spreads a model over them, in place; returns the forward of the sharded model.
    """
    model = load_trainable(config.model)
    features = feature_cache(config)
    # Copied before it is sharded; adapters need no second model.
    needs_copy = config.algorithm.kl_coef > 0 and not has_adapters(model)
    frozen = copy.deepcopy(model).requires_grad_(False).eval() if needs_copy else None
    scorer = replace(
        build_packed_model(
            config,
            model,
            family,
            media,
            config.rollout.sampling.temperature,
            features,
        ),
        process_group=process_group or SingleProcess(),
        forward=shard(model),
    )
    reference = _reference(config, scorer, frozen, shard)
    updates = config.algorithm.ppo_epochs
    policy = LocalPolicy(
        scorer,
        build_algorithm(config.algorithm),
        Optimizer(model, config.optimizer, config.trainer.max_steps * updates),
        updates=updates,
        reference=reference if config.algorithm.kl_estimator == "full" else None,
        correction=_correction(config),
    )
    critic = build_critic(config, family, media)
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
    )


def _reference(
    config: Config, policy: PackedModel, frozen: Any, shard: Callable[[Any], Forward]
) -> FrozenReference | AdapterReference | None:
    if config.algorithm.kl_coef == 0:
        return None
    if frozen is None:
        return AdapterReference(policy)
    own = replace(policy, model=frozen, forward=shard(frozen))
    return FrozenReference(policy, own, config.algorithm.offload_reference)
