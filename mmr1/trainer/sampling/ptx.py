"""Batches of demonstrations for the PTX term (InstructGPT, arXiv 2203.02155)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmr1.config import Config
from mmr1.data.responses import assistant_text, demonstration
from mmr1.data.sampler import MediaCheck, SampleLoader, Sampler
from mmr1.data.sources import load_samples
from mmr1.types import Prompt, RolloutGroup, Sample
from mmr1.vision.families.family import ModelFamily


class Demonstrations:
    """``size`` demonstrations per step, in the order of their loader."""

    def __init__(
        self, loader: SampleLoader, size: int, make_group: Callable[[Sample], RolloutGroup]
    ) -> None:
        self._loader = loader
        self._size = size
        self._make_group = make_group

    def next(self) -> tuple[RolloutGroup, ...]:
        """The demonstrations of the next step."""
        return tuple(self._make_group(sample) for sample in self._loader.next(self._size))

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(state)


def build_demonstrations(
    config: Config,
    family: ModelFamily,
    render: Callable[[Sample], Prompt],
    check: MediaCheck,
) -> Demonstrations | None:
    """The demonstrations of ``algorithm.ptx.data``, or None.

    Raises:
        ValueError: The data cannot be used, or a record has no demonstration.
    """
    ptx = config.algorithm.ptx
    if ptx is None:
        return None
    samples = load_samples(ptx.data, config.data, check.quarantine)
    for sample in samples:
        try:
            assistant_text(sample)
        except ValueError as error:
            raise ValueError(f"algorithm.ptx.data: {error}") from None
    return Demonstrations(
        SampleLoader(Sampler({ptx.data: samples}, config.seed), check),
        ptx.batch_size,
        lambda sample: demonstration(family, render(sample), check.media),
    )
