"""Which sample comes next: a pure function of the seed and of how many were drawn before.

Samples whose media cannot be decoded are left out. What a header shows is checked before a run
starts. Whether the pixels behind it are whole shows only when they are decoded, and that is when a
sample is first drawn.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from mmr1.config.data import CurriculumConfig
from mmr1.data.quarantine import Quarantine
from mmr1.data.rows import ids_of
from mmr1.logs import report_fault
from mmr1.types import Sample, ScoredGroup

if TYPE_CHECKING:  # it loads torch
    from mmr1.vision.prepare import MediaCache

logger = logging.getLogger(__name__)

_ORDER = 2
"""Which way of making permutations; raised with every change of it."""


class Sampler:
    """An endless, reproducible order over one source or a weighted mixture of several.

    Every source is walked through in a fresh permutation per epoch, so no sample comes again
    before all others of its source came. Sources alternate by weight, in a fixed pattern: after
    any number of draws each source is near its share (of two sources: within one draw). The order
    depends neither on the sizes of the requests, nor on who decodes the samples, nor on the names
    of the sources.

    Args:
        sources: The samples, or named lists of them.
        seed: Picks the permutations.
        weights: Share of each named source, any positive scale; equal shares by default.

    Raises:
        ValueError: A source is empty, or the weights do not match the sources.
    """

    def __init__(
        self,
        sources: Sequence[Sample] | Mapping[str, Sequence[Sample]],
        seed: int,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        named = sources if isinstance(sources, Mapping) else {"": sources}
        self._sources = dict(named)
        self._shares = _shares(self._sources, weights)
        self._seed = seed
        self._drawn = dict.fromkeys(self._sources, 0)
        self._orders: dict[str, tuple[int, np.ndarray]] = {}

    def next(self, count: int) -> list[Sample]:
        """The next ``count`` samples."""
        return [sample for _, sample in self.draw(count)]

    def draw(self, count: int) -> list[tuple[str, Sample]]:
        """The next ``count`` samples, each with the name of its source."""
        drawn = []
        first = sum(self._drawn.values()) + 1
        for position in range(first, first + count):
            # The source furthest behind its share; the first of them on a tie.
            name = max(self._shares, key=lambda n: self._shares[n] * position - self._drawn[n])
            samples = self._sources[name]
            epoch, place = divmod(self._drawn[name], len(samples))
            self._drawn[name] += 1
            drawn.append((name, samples[self._order(name, epoch)[place]]))
        return drawn

    def peek(self, count: int) -> list[Sample]:
        """The samples that ``next`` will give."""
        before = dict(self._drawn)
        drawn = self.draw(count)
        self._drawn = before
        return [sample for _, sample in drawn]

    def state_dict(self) -> dict[str, Any]:
        """The state that the rest of the order depends on, as JSON values."""
        return {
            "order": _ORDER,
            "seed": self._seed,
            "drawn": dict(self._drawn),
            "sources": self._identity,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where the sampler of ``state`` stood.

        Raises:
            ValueError: The seed, the samples or the weights are not those of the state, or an
                earlier version of mmr1 saved it.
        """
        if state.get("order") != _ORDER:
            raise ValueError(
                "the sampler cannot resume: an earlier version of mmr1 saved this checkpoint and "
                "drew samples in another order; finish the run with it, or start a new run"
            )
        for what, mine, theirs in (
            ("seed", self._seed, state["seed"]),
            ("data or weights", self._identity, state["sources"]),
        ):
            if mine != theirs:
                raise ValueError(
                    f"the sampler cannot resume: the {what} changed ({theirs} when saved, {mine} "
                    "now); resume with the original data and seed, or start a new run"
                )
        self._drawn = {name: int(state["drawn"][name]) for name in self._sources}

    def _order(self, name: str, epoch: int) -> np.ndarray:
        """The permutation ``[len(source)]`` of this epoch, made once."""
        if self._orders.get(name, (-1,))[0] != epoch:
            # By its place and not its name: a path differs from machine to machine.
            place = list(self._sources).index(name)
            digest = hashlib.sha256(f"{self._seed}/{place}/{epoch}".encode()).digest()
            rng = np.random.default_rng(int.from_bytes(digest))
            self._orders[name] = (epoch, rng.permutation(len(self._sources[name])))
        return self._orders[name][1]

    @cached_property
    def _identity(self) -> dict[str, list[Any]]:
        """The length, share and hash of ids of every source, in their order."""
        return {
            name: [
                len(samples),
                round(self._shares[name], 9),
                hashlib.sha256("\0".join(ids_of(samples)).encode()).hexdigest()[:16],
            ]
            for name, samples in self._sources.items()
        }


def _shares(
    sources: Mapping[str, Sequence[Sample]], weights: Mapping[str, float] | None
) -> dict[str, float]:
    if not sources or not all(sources.values()):
        empty = ", ".join(repr(n) for n, samples in sources.items() if not samples) or "all"
        raise ValueError(f"nothing to sample from (empty: {empty}); give every source samples")
    weights = dict.fromkeys(sources, 1.0) if weights is None else weights
    if set(weights) != set(sources) or min(weights.values()) <= 0:
        raise ValueError(
            f"weights {dict(weights)} do not fit the sources {sorted(sources)}; "
            "give each source one weight above 0"
        )
    total = sum(weights.values())
    return {name: weights[name] / total for name in sources}


MOMENTUM = 0.5
"""Share of a sample's pass rate so far in its new one."""


class Curriculum:
    """The running pass rates of the samples seen so far, and the draws that they decide.

    The same seed and the same rewards give the same draws, also after a resume.
    """

    def __init__(self, config: CurriculumConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._draws = self._skipped = 0
        self._rates: dict[str, float] = {}

    def accepts(self, sample: Sample) -> bool:
        """True if this drawn sample is kept, as one that was never scored always is."""
        self._draws += 1
        rate = self._rates.get(_key(sample))
        if rate is None:
            return True
        digest = hashlib.sha256(f"{self._seed}/{self._draws}".encode()).digest()
        keeps = int.from_bytes(digest[:8]) / 2**64 < self.probability(rate)
        self._skipped += not keeps
        return keeps

    def probability(self, rate: float) -> float:
        """The probability of keeping a sample with this pass rate.

        ``hard``: ``1 - s``, Kimi k1.5's prioritized sampling (arXiv 2501.12599, section 2.3.4).
        ``learnable``: ``4 s (1 - s)``, the variance of a right or wrong answer, which is largest
        where half of them are right (arXiv 2502.12272). Never less than ``floor``.
        """
        hard = self._config.prefer == "hard"
        return max(self._config.floor, 1 - rate if hard else 4 * rate * (1 - rate))

    def learn(self, scored: Iterable[ScoredGroup]) -> None:
        """Take over the pass rates of these groups: ``m s + (1 - m) mean``, at first the mean.

        Raises:
            ValueError: The reward function that tells the pass rate has a value outside 0 to 1.
        """
        for group in scored:
            values = [r.components[self._config.function] for r in group.rewards if r.valid]
            passed = [self._passed(value) for value in values if value is not None]  # or skipped
            if not passed:
                continue
            key = _key(group.group.prompt.sample)
            mean = fmean(passed)
            before = self._rates.get(key, mean)
            self._rates[key] = MOMENTUM * before + (1 - MOMENTUM) * mean

    def stats(self) -> dict[str, float]:
        """The mean pass rate of the samples seen so far, and the share of draws not kept."""
        return {
            "curriculum/pass_rate": fmean(self._rates.values()) if self._rates else 0.0,
            "curriculum/skipped": self._skipped / max(self._draws, 1),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws, "skipped": self._skipped, "rates": dict(self._rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws, self._skipped = state["draws"], state["skipped"]
        self._rates = dict(state["rates"])

    def _passed(self, value: float) -> float:
        if not 0 <= value <= 1:
            raise ValueError(
                f"data.curriculum.function={self._config.function} gave {value:g}: a pass rate is "
                "the mean of values from 0 to 1; name a reward function that has such values"
            )
        return value


def _key(sample: Sample) -> str:
    return f"{sample.source}/{sample.id}"


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
            ValueError: If the media cannot be decoded, and no sample or no further one may be left
                out.
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
    So the order is still a function of the seed and the data, and a resumed run continues it
    exactly.
    """

    def __init__(
        self, sampler: Sampler, check: MediaCheck, curriculum: Curriculum | None = None
    ) -> None:
        self._sampler = sampler
        self._check = check
        self.curriculum = curriculum

    def next(self, count: int) -> list[Sample]:
        """The next ``count`` samples. Raises ValueError if too many samples had to be left out."""
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
