"""Reward models on separate ranks: scoring takes neither memory nor time of the policy's ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from mmr1.config import Config
from mmr1.trainer.distributed.all_ranks import AllRanks
from mmr1.trainer.distributed.cluster import workers
from mmr1.trainer.models.scalar_model import PackedScalarModel
from mmr1.trainer.sampling.reward_models import (
    GroupValues,
    build_reward_models,
    reward_model_paths,
)
from mmr1.types import RolloutGroup

Built = dict[str, PackedScalarModel]


@contextmanager
def reward_model_values(config: Config) -> Iterator[Mapping[str, GroupValues]]:
    """The reward models of a run by path: in this process, or on ``resources.reward_ranks`` ranks
    over which they are sharded, where the run has several processes.

    Raises:
        ValueError: A path is missing, or holds no reward model.
    """
    paths = reward_model_paths(config)
    if not paths or not config.distributed:
        yield {path: model.group_values for path, model in build_reward_models(config).items()}
        return
    resources = config.resources
    own = {"ranks": resources.reward_ranks, "fsdp_size": None, "context_parallel_size": 1}
    alone = config.changed({f"resources.{key}": value for key, value in own.items()})
    beside = resources.ranks + config.engines
    with workers(alone, resources.reward_ranks, 0, build_reward_models, "reward_rank", beside) as (
        ranks,
        _,
    ):
        yield {path: partial(_values, ranks, path) for path in paths}


def _values(ranks: AllRanks[Built], path: str, groups: Sequence[RolloutGroup]) -> torch.Tensor:
    model = ranks.part(lambda built: built[path])
    return model.by_token(PackedScalarModel.group_values, groups)
