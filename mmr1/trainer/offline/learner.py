"""Build what learns from the examples of a run, here or on ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from mmr1.config import Config
from mmr1.progress import doing
from mmr1.trainer.distributed.cluster import learner_on_ray
from mmr1.trainer.distributed.rank_actor import Build
from mmr1.trainer.forward.micro_batches import ProcessGroup
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.learner import PolicyLearner, ScalarLearner
from mmr1.trainer.models.load_model import LoadModel
from mmr1.trainer.models.loading import build_packed_model, feature_cache
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.scalar_model import PackedScalarModel, Supervision
from mmr1.types import RolloutGroup, StepStats
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache

Example = TypeVar("Example")


def policy_learner(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None,
    load: LoadModel,
    learn: Callable[[PackedModel, Optimizer, Sequence[Example]], StepStats],
    features: FeatureCache | None = None,
) -> PolicyLearner[Example]:
    """The policy of ``model.path``, for ``trainer.max_steps`` steps."""
    model = load(config.model, True, "model.path", lr_of_parts=config.optimizer.lr_of_parts)
    inputs = ModelInputs(family, media)
    packed_model = build_packed_model(config, model, inputs, 1.0, features, process_group)
    optimizer = Optimizer(model, config.optimizer, config.trainer.steps)
    return PolicyLearner(packed_model, optimizer, learn, config.rollout.sampling.temperature)


def scalar_learner(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None,
    load: LoadModel,
    learn: Callable[[PackedScalarModel, Optimizer, Sequence[Example]], StepStats],
    supervision: Supervision,
) -> ScalarLearner[Example]:
    """The reward model of ``model.path``, for ``trainer.max_steps`` steps."""
    rates = config.optimizer.lr_of_parts
    model = load(config.model, True, "model.path", head=True, lr_of_parts=rates)
    inputs, features = ModelInputs(family, media), feature_cache(config)
    backbone = build_packed_model(config, model.backbone, inputs, 1.0, features, process_group)
    optimizer = Optimizer(model, config.optimizer, config.trainer.steps)
    return ScalarLearner(PackedScalarModel(model, backbone, "at"), optimizer, learn, supervision)


def itself(group: RolloutGroup) -> RolloutGroup:
    """The prompt and completions of an example that is nothing more."""
    return group


@contextmanager
def learning(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    build: Build[Any],
    group_of: Callable[[Any], RolloutGroup],
) -> Iterator[Any]:
    """What ``build`` builds, here or on ``resources.ranks`` ranks.

    Args:
        group_of: The prompt and completions of an example.
    """
    if config.resources.ranks == 1:
        with doing("loading the model"):
            learner = build(config, family, media)
        yield learner
        return
    with learner_on_ray(config, build, group_of) as (learner, _):
        yield learner
