"""The weights of a transfer as the engines expect them, one put together at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from mmr1.config import Config
from mmr1.rollout.transfer import ParamMeta
from mmr1.rollout.weight_layout import Layout, layout_for
from mmr1.trainer.models.loading import trainable_on_meta
from mmr1.trainer.models.parts import untrained_vision
from mmr1.trainer.models.weights import WholeWeights, model_weights


def left_out(config: Config) -> tuple[str, ...]:
    """Prefixes of the names, in files, of the vision tower and projector that transfers omit.

    None where something is trained in them.
    """
    model = trainable_on_meta(config.model, lr_of_parts=config.optimizer.lr_of_parts)
    layout, vision = layout_for(config), untrained_vision(model)
    names = {name: layout.name(name) for name in model_weights(model)}
    others = [new for name, new in names.items() if name not in vision]
    return tuple(sorted({_beginning(new, others) for name, new in names.items() if name in vision}))


def _beginning(name: str, others: Sequence[str]) -> str:
    """The shortest prefix of the name, up to a dot, that the others lack; else the whole name."""
    ends = (i + 1 for i, letter in enumerate(name) if letter == ".")
    beginnings = (name[:end] for end in ends)
    return next((b for b in beginnings if not any(o.startswith(b) for o in others)), name)


class RankSource:
    """The weights that the ranks have now; a ``WeightSource``.

    A sharded weight is put together when its turn comes, which all ranks must do in step. A sender
    may stop early, so whoever begins a pass also ends it.

    Args:
        read: Gives the weights by their names in transformers' model.

    Attributes:
        failure: Reason why a weight could not be put together.
    """

    def __init__(self, read: Callable[[], Mapping[str, torch.Tensor]], layout: Layout) -> None:
        self.failure: BaseException | None = None
        self._read = read
        self._layout = layout
        self._metadata: list[ParamMeta] = []
        self._pass: Iterator[tuple[str, torch.Tensor]] = iter(())

    def begin(self) -> None:
        """Begin a pass, whose weights iteration gives."""
        if torch.cuda.is_available():
            # Senders pack on separate streams, which do not wait for the optimizer's.
            torch.cuda.synchronize()
        weights = self._read()
        if not self._metadata:
            self._metadata = [self._meta(name, weights) for name in weights]
        self._pass = self._weights(weights)

    def end(self) -> None:
        """Put together what the pass has left, for the ranks that need the others to do so."""
        deque(self._pass, maxlen=0)

    def metadata(self) -> list[ParamMeta]:
        return self._metadata

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._pass

    def _meta(self, name: str, weights: Mapping[str, torch.Tensor]) -> ParamMeta:
        """Describe a weight without gathering its shards."""
        shards = weights.shards if isinstance(weights, WholeWeights) else weights
        return self._layout.meta(name, shards[name].shape)

    def _weights(self, weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            for name in weights:
                yield self._layout.name(name), self._layout.of(name, weights[name])
        except Exception as error:
            self.failure = error
            raise


@dataclass(frozen=True, slots=True)
class KeptSource:
    """Copies of weights in main memory; a ``WeightSource``.

    Attributes:
        device: Where they are sent from.
    """

    described: list[ParamMeta]
    weights: dict[str, torch.Tensor]
    device: str

    def metadata(self) -> list[ParamMeta]:
        return self.described

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self.weights.items():
            yield name, weight.to(self.device)
