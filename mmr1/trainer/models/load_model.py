"""How the models of a run are loaded: whole in this process, or, on ranks, a shard in each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from mmr1.config import ModelConfig
from mmr1.trainer.models.loading import NO_RATES, load_trainable
from mmr1.trainer.models.scalar_model import load_scalar_model


class LoadModel(Protocol):
    """Loads a model."""

    def __call__(
        self,
        config: ModelConfig,
        trains: bool,
        key: str,
        head: bool = False,
        offload: bool = False,
        lr_of_parts: Mapping[str, float] = NO_RATES,
    ) -> Any:
        """
        Args:
            trains: It is to be trained; else it stays as it is.
            key: The configuration's, for errors.
            head: With a scalar head: a ``ScalarModel``.
            offload: Shards stay in main memory. A whole model is moved by who uses it.
            lr_of_parts: Of the ``optimizer`` section; parts of rate 0 are frozen.
        """
        ...


def load_here(
    config: ModelConfig,
    trains: bool,
    key: str,
    head: bool = False,
    offload: bool = False,
    lr_of_parts: Mapping[str, float] = NO_RATES,
) -> Any:
    """The whole model in this process."""
    load = partial(load_trainable, lr_of_parts=lr_of_parts)
    model = load_scalar_model(config, key, load) if head else load(config, key)
    return model if trains else model.requires_grad_(False).eval()
