"""Experiment trackers beside ``metrics.jsonl``. A tracker that hangs or fails does not stop a run.

Every tracker has a separate thread. One that waits for a server does not delay the next step. One
that raises is dropped for the rest of the run, with a warning. ``metrics.jsonl`` and ``rollouts/``
always hold everything.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol, Self

from PIL import Image

from mmr1.config import Config
from mmr1.config.file import redacted
from mmr1.logs import report_fault
from mmr1.registry import TRACKERS
from mmr1.types import Completion, MediaRef, ScoredGroup, StepStats
from mmr1.vision.images import load_image

logger = logging.getLogger(__name__)

TABLE_ROWS = 64
"""Completions in one rollout table; the report shows all of them."""
WAITING = 10_000
"""Pending calls after which a slow tracker is dropped."""
CLOSE_S = 30.0
"""Seconds that a tracker has at the end of the run to flush its pending calls."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a rollout table.

    Attributes:
        images: The prompt's first image, if it has one, and those that tools showed.
    """

    id: str
    prompt: str
    answer: str
    completion: str
    reward: float | None
    status: str
    advantage: float | None
    images: tuple[MediaRef, ...] = ()


COLUMNS = ("id", "prompt", "answer", "completion", "reward", "status", "advantage")


class Tracker(Protocol):
    """The methods that a tracker must have; all calls come from one thread."""

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """Log the metrics of one step, under the names of ``metrics.jsonl``."""
        ...

    def log_rollouts(self, step: int, rows: Sequence[Row]) -> None:
        """Log some of the step's completions as a table, with images if the tracker shows them."""
        ...

    def close(self) -> None:
        """Finish the run; nothing is logged after this."""
        ...


@dataclass(frozen=True, slots=True)
class Start:
    """The run that a tracker is started for.

    Attributes:
        folder: The run's directory.
        name: The run's name.
        tags: Its tags; those of a tracker without tags are in ``config`` only.
        config: The resolved configuration, without credentials.
    """

    folder: Path
    project: str
    name: str
    tags: tuple[str, ...]
    config: dict[str, Any]


def check_trackers(names: Iterable[str]) -> None:
    """Check that all trackers exist, before anything is written.

    The file of a tracker names the package that it needs in ``PACKAGE``, if any.

    Raises:
        ValueError: A tracker cannot be loaded, or its package is not installed.
    """
    for name in names:
        package = getattr(inspect.getmodule(TRACKERS.load(name)), "PACKAGE", None)
        if package is not None and importlib.util.find_spec(package) is None:
            wanted = f"'mmr1[{name}]'" if name in TRACKERS.builtin else package
            raise ValueError(
                f"trainer.tracking.report_to names '{name}', whose package {package} is not "
                f"installed; pip install {wanted}, or leave it out"
            )


class Trackers:
    """The trackers of a run: a context that flushes them when it ends."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._threads: list[_Thread] = []

    def log(self, stats: StepStats) -> None:
        """Log a line of ``metrics.jsonl``."""
        numbers = {name: float(value) for name, value in stats.items() if name != "step"}
        step = int(stats["step"])
        for thread in self._threads:
            thread.put(lambda tracker: tracker.log(step, numbers))

    def log_rollouts(
        self,
        step: int,
        scored: Sequence[ScoredGroup],
        advantages: Iterable[float | None] = repeat(None),
    ) -> None:
        """Log the first completions of a step; only RL has advantages."""
        if self._threads:
            rows = rollout_rows(scored, advantages)
            for thread in self._threads:
                thread.put(lambda tracker: tracker.log_rollouts(step, rows))

    def __enter__(self) -> Self:
        """Start the trackers."""
        tracking, folder = self._config.trainer.tracking, self._folder
        if tracking is None:
            return self
        name = tracking.run_name or folder.resolve().name
        shown = redacted(self._config)
        start = Start(folder, tracking.project_name, name, tracking.tags, shown)
        self._threads = [
            _Thread(name.rpartition("/")[2], partial(_start, name, start))
            for name in dict.fromkeys(tracking.report_to)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join()


def _start(name: str, start: Start) -> Tracker:
    tracker: Tracker = TRACKERS.load(name)(start)
    return tracker


class _Thread:
    """The thread of one tracker and the queue of its calls."""

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self._name = name
        self._start = start
        self._calls: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(WAITING)
        self._dropped = threading.Event()
        self._dropping = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, call: Callable[[Tracker], None] | None) -> None:
        if self._dropped.is_set():
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._drop(f"it is {WAITING} calls behind")

    def end(self) -> None:
        self.put(None)

    def join(self) -> None:
        self._thread.join(0 if self._dropped.is_set() else CLOSE_S)
        if self._thread.is_alive() and not self._dropped.is_set():
            self._drop(f"it did not finish within {CLOSE_S:g} s")

    def _run(self) -> None:
        # Catch everything: an error of a tracker must not end the run.
        try:
            tracker = self._start()
            while (call := self._calls.get()) is not None and not self._dropped.is_set():
                call(tracker)
            tracker.close()
        except (Exception, SystemExit) as error:
            self._drop(f"{type(error).__name__}: {' '.join(str(error).split())}")

    def _drop(self, reason: str) -> None:
        with self._dropping:
            if self._dropped.is_set():
                return
            report_fault(
                logger,
                f"tracker/{self._name}",
                f"the tracker '{self._name}' is left out from here on: {reason:.300} "
                "(the run continues; metrics.jsonl has every number)",
            )
            self._dropped.set()  # told by then: nobody waits for a tracker that is dropped


def _text(completion: Completion) -> str:
    """The text of a completion; of a conversation all turns, with a mark for each picture."""
    if not completion.spans:
        return completion.text
    return "\n".join(
        f"[{span.role}] {span.text}{' [picture]' * len(span.media)}" for span in completion.spans
    )


def rollout_rows(scored: Sequence[ScoredGroup], advantages: Iterable[float | None]) -> list[Row]:
    """The first :data:`TABLE_ROWS` completions as rows; ``advantages`` are in group order."""
    rows: list[Row] = []
    values = iter(advantages)
    for group in scored:
        sample = group.group.prompt.sample
        asked = tuple(m for m in sample.media if m.kind == "image")[:1]
        for completion, reward in zip(group.group.completions, group.rewards, strict=True):
            rows.append(
                Row(
                    sample.id,
                    sample.question,
                    str(sample.answer),
                    _text(completion),
                    reward.value,
                    str(reward.status),
                    next(values),
                    (*asked, *completion.media),
                )
            )
    return rows[:TABLE_ROWS]


SIDE = 224
"""Longest side in pixels, of each image."""
_GAP = 4


def strip(images: Sequence[MediaRef]) -> Image.Image:
    """The images side by side, each scaled down so that no side is longer than :data:`SIDE`."""
    shown = [_small_image(ref) for ref in images]
    width = sum(image.width for image in shown) + _GAP * (len(shown) - 1)
    whole = Image.new("RGB", (width, max(image.height for image in shown)), "white")
    left = 0
    for image in shown:
        whole.paste(image, (left, 0))
        left += image.width + _GAP
    return whole


def distinct(rows: Sequence[Row]) -> list[Row]:
    """The first of the rows of a prompt that show the same images."""
    kept: list[Row] = []
    for row in rows:
        if row.images and not any((r.id, r.images) == (row.id, row.images) for r in kept):
            kept.append(row)
    return kept


def _small_image(ref: MediaRef) -> Image.Image:
    image = load_image(ref)
    image.thumbnail((SIDE, SIDE))
    return image
