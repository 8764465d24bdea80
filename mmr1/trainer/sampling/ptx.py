"""Batches of demonstrations for the PTX term (InstructGPT, arXiv 2203.02155)."""

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
    """``size`` demonstrations per step, chosen by the step's number alone."""

    def __init__(
        self, sampler: Sampler, size: int, make_group: Callable[[Sample], RolloutGroup]
    ) -> None:
        self._sampler = sampler
        self._size = size
        self._make_group = make_group

    def of_step(self, number: int) -> tuple[RolloutGroup, ...]:
        """The demonstrations of step ``number`` (from 1); call it with rising numbers."""
        skipped = (number - 1) * self._size - self._sampler.position
        assert skipped >= 0, "steps must rise"
        self._sampler.next(skipped)
        return tuple(self._make_group(sample) for sample in self._sampler.next(self._size))


def build_demonstrations(
    config: Config, family: ModelFamily, render: Callable[[Sample], Prompt]
) -> Demonstrations | None:
    """The demonstrations of ``data.ptx``, or None.

    Raises:
        ValueError: The data cannot be used, or a record has no demonstration.
    """
    if config.data.ptx is None:
        return None
    quarantine = Quarantine(config.data.max_bad_fraction)
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
