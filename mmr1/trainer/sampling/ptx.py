"""Demonstrations for the PTX term (InstructGPT, arXiv 2203.02155): which a step is shown."""

from __future__ import annotations

from collections.abc import Callable

from mmr1.config import Config
from mmr1.data.quarantine import Quarantine
from mmr1.data.responses import assistant_text, demonstration
from mmr1.data.sampler import Sampler
from mmr1.data.sources import load_samples
from mmr1.types import Prompt, RolloutGroup, Sample
from mmr1.vision.families.family import ModelFamily


class Demonstrations:
    """A walk through the demonstrations, ``size`` a step; where it is follows from the step."""

    def __init__(self, sampler: Sampler, size: int, show: Callable[[Sample], RolloutGroup]) -> None:
        self._sampler = sampler
        self._size = size
        self._show = show

    def of_step(self, number: int) -> tuple[RolloutGroup, ...]:
        """The demonstrations of step ``number`` (from 1); steps are asked for in rising order."""
        behind = (number - 1) * self._size - self._sampler.position
        assert behind >= 0, "a step was asked for again"
        self._sampler.next(behind)
        return tuple(self._show(sample) for sample in self._sampler.next(self._size))


def build_demonstrations(
    config: Config, family: ModelFamily, render: Callable[[Sample], Prompt]
) -> Demonstrations | None:
    """The demonstrations of ``data.ptx``, or None.

    Raises:
        ValueError: The data are not sound, or a record has no answer to learn from.
    """
    if config.data.ptx is None:
        return None
    quarantine = Quarantine(None, config.data.max_bad_fraction)
    samples = load_samples(config.data.ptx, config.data, quarantine)
    for sample in samples:
        try:
            assistant_text(sample)
        except ValueError as error:
            raise ValueError(f"data.ptx: {error}") from None
    return Demonstrations(
        Sampler(samples, config.seed),
        config.algorithm.ptx_batch_size,
        lambda sample: demonstration(family, render(sample)),
    )
