"""The Ray actor of one rank of the trainer."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from mmr1.config import Config
from mmr1.runtime import set_up_torch
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.distributed.published_weights import PublishedWeights, publish
from mmr1.trainer.forward.sequences import TokenScores
from mmr1.trainer.models.reference import Reference
from mmr1.trainer.models.training_models import build_training_models
from mmr1.types import Experience, RolloutGroup, StepStats
from mmr1.vision.build import family_of, media_cache

Method = TypeVar("Method", bound=Callable[..., Any])


def collective(method: Method) -> Method:
    """A method that all ranks must call together; ``watched`` reports where it hangs."""

    @wraps(method)
    def call(self: Rank, *args: Any, **kwargs: Any) -> Any:
        with fsdp.watched(self.config.resources.collective_timeout_s, self.stacks):
            return method(self, *args, **kwargs)

    return cast(Method, call)


class Rank:
    """One rank of the trainer.

    Attributes:
        stacks: File for the stack traces of a collective call that hangs.
    """

    def __init__(self, config: Config, rank: int) -> None:
        self.config, self._rank = config, rank
        self._listener: socket.socket | None = None
        self.stacks = Path(config.trainer.output_dir).resolve() / f"rank_{rank}.stacks"

    def open_rendezvous(self) -> str:
        """Listen where the ranks will meet; returns ``host:port`` on this rank's node."""
        host = _node_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        return f"{host}:{self._listener.getsockname()[1]}"

    def build(self, address: str) -> None:
        """Load the model and shard it; all ranks must call it together."""
        config, resources = self.config, self.config.resources
        size = resources.ranks
        set_up_torch(config.seed, config.trainer.threads, config.trainer.deterministic)
        mesh = fsdp.join(
            self._rank,
            size,
            address,
            _node_address(),
            resources.collective_timeout_s,
            resources.fsdp_size,
            self._listener,
        )
        family = family_of(config)
        self._models = build_training_models(
            config,
            family,
            media_cache(family, config),
            process_group=fsdp.DistributedProcessGroup(self._rank, size),
            load=lambda model, trains, key: fsdp.load(model, trains, mesh, key),
        )

    @collective
    def logprobs(self, groups: Sequence[RolloutGroup], of_reference: bool) -> torch.Tensor:
        model = self._models.reference if of_reference else self._models.policy
        assert model is not None
        return model.logprobs(groups)

    @collective
    def scores(self, groups: Sequence[RolloutGroup]) -> TokenScores:
        return self._models.policy.scores(groups)

    @collective
    def update(self, experience: Experience) -> StepStats:
        return self._models.policy.update(experience)

    @collective
    def publish(self) -> PublishedWeights | None:
        """Rank 0 puts the weights into the object store; all ranks gather them, one by one."""
        weights = self._models.policy.weights()
        if self._rank == 0:
            return publish(weights)
        deque(weights.values(), maxlen=0)
        return None

    @collective
    def save(self, folder: Path, only_model: bool) -> None:
        self._models.policy.snapshot(only_model=only_model)(folder)

    @collective
    def load(self, checkpoint: Path, state: dict[str, Any]) -> None:
        self._models.policy.load_snapshot(checkpoint)
        self._models.policy.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        return self._models.policy.state_dict()

    @collective
    def refresh_reference(self, share: float) -> None:
        self._reference.refresh(share)

    @collective
    def reference_weights(self) -> dict[str, torch.Tensor] | None:
        return self._from_first(self._reference.weights())

    @collective
    def load_reference(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._reference.load_weights(weights)

    @property
    def _reference(self) -> Reference:
        assert self._models.reference is not None
        return self._models.reference

    def _from_first(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        if self._rank:
            deque(weights.values(), maxlen=0)  # all ranks gather them
            return None
        return {name: tensor.detach().cpu() for name, tensor in weights.items()}


def _node_address() -> str:
    """The address by which Ray reaches this machine."""
    import ray

    return ray.util.get_node_ip_address()
