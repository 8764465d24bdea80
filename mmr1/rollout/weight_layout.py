"""Weights as engines expect them: names, type and layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from mmr1.config import Config
from mmr1.rollout.transfer import ParamMeta
from mmr1.vision.families.loading import find_architecture, names_of_hub


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, types and layout of weights in an engine.

    Attributes:
        dtype: Data type of all weights.
        names: Names of weights, where engines know them by others than transformers does.
        in_files: Function that makes the weight of the files from a name and a weight of
            transformers' model.
    """

    dtype: torch.dtype
    in_files: Callable[[str, torch.Tensor], torch.Tensor]
    names: Mapping[str, str]

    def name(self, name: str) -> str:
        return self.names.get(name, name)

    def of(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        return self.in_files(name, weight.detach().to(self.dtype))

    def meta(self, name: str, shape: torch.Size) -> ParamMeta:
        """Describe a weight of transformers' model by its shape."""
        like = torch.empty(shape, device="meta")
        return ParamMeta(self.name(name), self.dtype, tuple(self.of(name, like).shape))


def layout_for(config: Config) -> Layout:
    """The layout of weights in an engine to which they are transferred: that of files."""
    dtype = getattr(torch, config.rollout_dtype)
    model = config.model
    architecture = find_architecture(model.path)
    known = architecture.shares_prompts
    names = {} if known else names_of_hub(model.path, model.trust_remote_code)
    return Layout(dtype, architecture.in_files, names)


@dataclass(frozen=True, slots=True)
class MappingSource:
    """Weights of this process; a ``WeightSource``.

    Attributes:
        device: Where they are sent from.
    """

    weights: Mapping[str, torch.Tensor]
    layout: Layout
    device: str

    def metadata(self) -> list[ParamMeta]:
        return [self.layout.meta(name, self.weights[name].shape) for name in self.weights]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self.weights:
            weight = self.layout.of(name, self.weights[name].to(self.device))
            yield self.layout.name(name), weight
