"""The reference policy of the KL term: a frozen copy, or the policy with its adapters off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from mmr1.trainer.forward.kl_head import Distributions
from mmr1.trainer.forward.micro_batches import MicroBatch
from mmr1.trainer.models.lora import adapter_weights, set_adapter_weights
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.types import RolloutGroup


class Reference(Protocol):
    """What the loop asks of a reference policy."""

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient, sequences in group order."""
        ...

    def refresh(self, share: float = 1.0) -> None:
        """Become the policy as it is now (iterative GRPO), or move towards it.

        Args:
            share: Of the policy in the new weights; the rest are the old ones (TR-DPO, arXiv
                2404.09656).
        """
        ...

    def weights(self) -> Mapping[str, torch.Tensor]:
        """What tells it from the policy's start, by name: for checkpoints."""
        ...

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Become the reference that these weights were taken from."""
        ...


class SupportsDistributions(Protocol):
    """A reference in the policy's own process, for the KL over the vocabulary."""

    def distributions(self, batch: MicroBatch) -> Distributions:
        """What it would draw the batch's completion tokens from. Without gradient."""
        ...


class FrozenReference:
    """A second model, ``own``: the policy as it was, or a model from elsewhere.

    Args:
        offload: It is whole, stays in main memory, and comes to the policy's device to score. Not
            for ``distributions``, which the update asks for in every micro-batch.
    """

    def __init__(self, policy: PackedModel, own: PackedModel, offload: bool = False) -> None:
        self._policy = policy
        self._own = own
        self._offload = offload
        if offload:
            own.model.to("cpu")

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        with self._on_device():
            return self._own.logprobs(groups)

    def distributions(self, batch: MicroBatch) -> Distributions:
        return self._own.distributions(batch)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        if self._offload:
            self._own.model.to(self._policy.model.device)
        try:
            yield
        finally:
            if self._offload:
                self._own.model.to("cpu")

    def refresh(self, share: float = 1.0) -> None:
        policy = self._policy.weights()
        if share == 1:
            self._own.load_weights(policy)
            return
        own = self._own.weights()
        self._own.load_weights({name: own[name].lerp(policy[name], share) for name in own})

    def weights(self) -> Mapping[str, torch.Tensor]:
        return self._own.weights()

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._own.load_weights(weights)


class AdapterReference:
    """The policy's own model with its adapters switched off; once refreshed, as they were then."""

    def __init__(self, policy: PackedModel) -> None:
        self._policy = policy
        self._kept: dict[str, torch.Tensor] | None = None

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        with _adapters(self._policy.model, self._kept):
            return self._policy.logprobs(groups)

    def distributions(self, batch: MicroBatch) -> Distributions:
        with _adapters(self._policy.model, self._kept):
            return self._policy.distributions(batch)

    def refresh(self, share: float = 1.0) -> None:
        assert share == 1, "a mixture of adapters is no adapter; the configuration refuses it"
        self._kept = adapter_weights(self._policy.model)

    def weights(self) -> Mapping[str, torch.Tensor]:
        if self._kept is not None:
            return self._kept
        # Adapters of zeros are none.
        current = adapter_weights(self._policy.model)
        return {name: torch.zeros_like(tensor) for name, tensor in current.items()}

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._kept = dict(weights)


@contextmanager
def _adapters(model: Any, weights: dict[str, torch.Tensor] | None) -> Iterator[None]:
    """The model with these adapters, or with none, inside the block."""
    if weights is None:
        with model.disable_adapter():
            yield
        return
    current = adapter_weights(model)
    set_adapter_weights(model, weights)
    try:
        yield
    finally:
        set_adapter_weights(model, current)
