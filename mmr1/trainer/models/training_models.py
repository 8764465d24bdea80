"""Policy, reference and critic of a run, built the same in one process and on each rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mmr1.algorithms.advantages.distillation import DistillationAdvantage, ServedModel, TeacherModel
from mmr1.algorithms.ratios import Correction, rollout_importance_weights
from mmr1.config import Config, KlFull, StoredLoraConfig
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.micro_batches import ProcessGroup
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.critic import LocalCritic, build_critic
from mmr1.trainer.models.loading import (
    LoadModel,
    build_packed_model,
    check_same_tokens,
    feature_cache,
    load_here,
    router_use,
)
from mmr1.trainer.models.lora import has_adapters
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.models.reference import AdapterReference, FrozenReference, ServedReference
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class TrainingModels:
    """The models of a run and their optimizers, built before anything is written.

    Attributes:
        model: The policy's, which the engine ``hf`` samples from.
        reference: Model that the policy starts from, or another; None where neither
            ``algorithm.kl`` nor a teacher needs one.
        critic: None for algorithms without one.
        features: Features of a frozen vision tower, shared with the engine ``hf``.
    """

    model: Any
    policy: LocalPolicy
    reference: FrozenReference | AdapterReference | ServedReference | None
    critic: LocalCritic | None
    features: FeatureCache | None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The policy's, and the critic's if there is one."""
        return [learns.optimizer for learns in (self.policy, self.critic) if learns is not None]


def build_training_models(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> TrainingModels:
    """Load the model, its reference and its critic.

    Args:
        process_group: The ranks that compute together, if any.
        load: Where there are any, it spreads a model over them.
    """
    algorithm, rates = config.algorithm, config.optimizer.lr_of_parts
    model = load(config.model, True, "model.path", lr_of_parts=rates)
    inputs = ModelInputs(family, media)
    features = feature_cache(config)
    sampling = config.rollout.sampling
    packed_model = build_packed_model(config, model, inputs, sampling, features, process_group)
    measured = None
    if isinstance(algorithm.kl, KlFull):
        packed_model = replace(packed_model, jsd_beta=algorithm.kl.jsd_beta)
    reference = _reference(config, packed_model, load)
    packed_model = replace(packed_model, routers=router_use(config, model))
    if isinstance(algorithm.kl, KlFull):
        assert not isinstance(reference, ServedReference), "the configuration refuses it"
        measured = reference
    passes = algorithm.ppo_epochs
    policy = LocalPolicy(
        packed_model,
        build_algorithm(algorithm),
        Optimizer(model, config.optimizer, config.policy_steps * passes * config.mini_batches),
        passes=passes,
        reference=measured,
        distil_demonstrations=algorithm.ptx is not None and algorithm.ptx.loss == "distillation",
        correction=_correction(config),
        sync_adapters_only=config.model.sync_adapters_only,
        router_loss_coefficient=algorithm.router_aux_loss_coef or 0.0,
    )
    critic = build_critic(config, inputs, process_group, load)
    return TrainingModels(model, policy, reference, critic, features)


def _correction(config: Config) -> Correction | None:
    weights = config.algorithm.rollout_correction.importance_sampling
    rejection = config.algorithm.rollout_correction.rejection_sampling
    if config.resolved_rollout_is == "none" and rejection is None:
        return None
    return partial(
        rollout_importance_weights,
        form=config.resolved_rollout_is,
        cap=math.inf if weights is None else weights.threshold,
        outlier=None if rejection is None else rejection.threshold,
        outlier_form="token" if rejection is None else rejection.level,
    )


def _reference(
    config: Config, policy: PackedModel, load: LoadModel
) -> FrozenReference | AdapterReference | ServedReference | None:
    chosen = config.algorithm.reference
    if chosen is None:
        return None
    distils = isinstance(config.algorithm.advantage, DistillationAdvantage)
    section = "algorithm.advantage.teacher" if distils else "algorithm.kl.reference"
    if isinstance(chosen, ServedModel):
        context = policy.process_group.context
        return ServedReference(chosen.url, policy.inputs, context, section)
    path = chosen.path if isinstance(chosen, TeacherModel) else None
    if path is None and has_adapters(policy.model):
        reference = AdapterReference(policy)  # which needs no second model
        if isinstance(config.model.lora, StoredLoraConfig):
            reference.refresh()  # the policy at the start, not the model below its adapters
        return reference
    own, key = config.model.changed(lora=None), "model.path"
    if path is not None:
        key = f"{section}.path"
        check_same_tokens(config.model.path, path, key, own.trust_remote_code)
        own = own.changed(path=path)
    model = load(own, False, key, offload=chosen.offload)
    frozen = replace(policy, model=model)
    if path is not None:  # its vision tower is another one
        frozen = replace(frozen, features=FeatureCache())
    moved = chosen.offload and policy.process_group.size == 1
    return FrozenReference(policy, frozen, offload=moved)
