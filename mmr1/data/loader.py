"""The samples of a run's steps: those that the sampler draws, if their media can be decoded.

What a header shows is checked before a run starts. Whether the pixels behind it are whole shows
only when they are decoded, and that is when a sample is first drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmr1.data.quarantine import Quarantine
from mmr1.data.sampler import Curriculum, Sampler
from mmr1.logs import report_fault
from mmr1.types import Sample

if TYPE_CHECKING:  # it loads torch
    from mmr1.vision.prepare import MediaCache

logger = logging.getLogger(__name__)


class MediaCheck:
    """Decides once for each sample whether its media can be decoded; quarantines it if not.

    Args:
        media: Decodes them, once for this check and for those who use them.
        quarantine: Has counted the rows of the datasets.
    """

    def __init__(self, media: MediaCache, quarantine: Quarantine) -> None:
        self.media = media
        self.quarantine = quarantine
        self._sound: set[tuple[str, str]] = set()
        self._unsound: dict[tuple[str, str], str] = {}

    def usable(self, dataset: str, sample: Sample) -> bool:
        """True if all media of this sample can be decoded. Waits until that is known.

        Raises:
            ValueError: They cannot, and no sample or no further one may be left out.
        """
        key = (dataset, sample.id)
        if key in self._sound or key in self._unsound:
            return key in self._sound
        reason = next(filter(None, map(self.media.failure, sample.media)), None)
        if reason is None:
            self._sound.add(key)
            return True
        where = self.quarantine.named(dataset, sample.id)
        message = f"sample '{sample.id}' of {dataset} is left out: {where}: {reason}"
        report_fault(logger, "media/left_out", message)
        self._leave_out(dataset, sample.id, reason)
        return False

    def left_out(self) -> list[list[str]]:
        """``[dataset, id, reason]`` of each sample that cannot be decoded, as JSON values."""
        return [[*key, reason] for key, reason in self._unsound.items()]

    def restore(self, left_out: list[list[str]]) -> None:
        """Take over the results of an earlier run."""
        for dataset, name, reason in left_out:
            if (dataset, name) not in self._unsound:
                self._leave_out(dataset, name, reason)

    def _leave_out(self, dataset: str, name: str, reason: str) -> None:
        self._unsound[dataset, name] = reason
        self.quarantine.drop(dataset, name, reason)
        self.quarantine.check(dataset)


class SampleLoader:
    """A sampler's samples without those whose media cannot be decoded.

    Nor those that ``curriculum`` does not accept. In the place of such a sample comes the next one.
    So the order is still a function of the seed
    and the data, and a resumed run continues it exactly.
    """

    def __init__(
        self, sampler: Sampler, check: MediaCheck, curriculum: Curriculum | None = None
    ) -> None:
        self._sampler = sampler
        self._check = check
        self.curriculum = curriculum

    def next(self, count: int) -> list[Sample]:
        """The next ``count`` samples.

        Raises:
            ValueError: Too many samples had to be left out.
        """
        return [sample for _, sample in self.draw(count)]

    def draw(self, count: int) -> list[tuple[str, Sample]]:
        """The next ``count`` samples, each with the name of its dataset.

        Raises:
            ValueError: Too many samples had to be left out.
        """
        samples: list[tuple[str, Sample]] = []
        while len(samples) < count:
            drawn = self._sampler.draw(count - len(samples))
            if self.curriculum is not None:
                drawn = [(d, s) for d, s in drawn if self.curriculum.accepts(s)]
            self._check.media.prefetch(m for _, sample in drawn for m in sample.media)
            samples += [(d, s) for d, s in drawn if self._check.usable(d, s)]
        return samples

    def prefetch(self, count: int) -> None:
        """Begin to decode the media of the samples that come next."""
        self._check.media.prefetch(m for s in self._sampler.peek(count) for m in s.media)

    def state_dict(self) -> dict[str, Any]:
        """The state that the rest of the order depends on, as JSON values."""
        state = {**self._sampler.state_dict(), "left_out": self._check.left_out()}
        if self.curriculum is not None:
            state["curriculum"] = self.curriculum.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where the loader of ``state`` stood.

        Raises:
            ValueError: See ``Sampler.load_state_dict``.
        """
        self._sampler.load_state_dict(state)
        self._check.restore(state.get("left_out", []))
        if self.curriculum is not None:
            self.curriculum.load_state_dict(state["curriculum"])
