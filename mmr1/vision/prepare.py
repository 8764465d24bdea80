"""Prepared media: patches and grids as the vision tower takes them, and their cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, fields
from threading import Lock
from typing import Any, Literal, Protocol

import torch

from mmr1.types import MediaRef


@dataclass(frozen=True, slots=True)
class PreparedMedia:
    """One image or video, ready for the vision tower.

    Attributes:
        kind: ``"image"`` or ``"video"``.
        patches: ``[t * h * w, patch_dim]`` float32, normalised pixels in the tower's patch order.
            For a processor that is given whole prompts ``[frames, h, w, 3]`` uint8, pixels.
        grid: ``(t, h, w)`` in patches, before the spatial merge.
        merge: Side of the square of patches that becomes one token.
        seconds_per_grid: Seconds between two temporal positions (video only).
        digest: Identity of the medium; equal digests have equal patches.
        patch_size: Side of a patch in pixels.
        times: Seconds from the beginning of the video to each temporal patch (video only).
        metadata: Fields of transformers' ``VideoMetadata``, for a processor that is given whole
            prompts (video only).
        counted: Tokens, where another than the grid tells.
    """

    kind: Literal["image", "video"]
    patches: torch.Tensor
    grid: tuple[int, int, int]
    merge: int
    seconds_per_grid: float | None
    digest: str
    patch_size: int = 14
    times: tuple[float, ...] = ()
    metadata: Mapping[str, Any] | None = None
    counted: int | None = None

    @property
    def pixels(self) -> tuple[int, int]:
        """``(width, height)`` as the model sees it, after resizing."""
        _, h, w = self.grid
        return w * self.patch_size, h * self.patch_size

    @property
    def tokens(self) -> int:
        """Merged vision tokens: the length of its placeholder run in the prompt."""
        if self.counted is not None:
            return self.counted
        t, h, w = self.grid
        return t * h * w // self.merge**2

    def __reduce__(self) -> Any:
        """Between processes patches go by value.

        Torch would put each of them into shared memory and hold a file descriptor for as long as
        it is kept.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _from_arrays, ({**values, "patches": self.patches.numpy()},)


def _from_arrays(values: dict[str, Any]) -> PreparedMedia:
    return PreparedMedia(**{**values, "patches": torch.from_numpy(values["patches"])})


class MediaWorkers(Protocol):
    """Processes that prepare media (``mmr1/vision/preparers.py``)."""

    def submit(self, media: MediaRef) -> Future[PreparedMedia]: ...


class MediaCache:
    """Prepared media by digest: one processor call per medium, however many prompts use it.

    Bounded by the bytes of the patches; the least recently used go first. Threads may share it.

    Args:
        prepare: Prepares a medium in this process.
        max_bytes: Of the patches that are kept.
        workers: Prepare media in other processes; then this one never does.

    Attributes:
        processor_calls: How many media were prepared.
    """

    def __init__(
        self,
        prepare: Callable[[MediaRef], PreparedMedia],
        max_bytes: int = 2 * 1024**3,
        workers: MediaWorkers | None = None,
    ) -> None:
        self._prepare = prepare
        self._workers = workers
        self._max_bytes = max_bytes
        self._kept: dict[str, PreparedMedia] = {}
        self._pending: dict[str, Future[PreparedMedia]] = {}
        self._bytes = 0
        self._lock = Lock()
        self.processor_calls = 0

    def __getitem__(self, media: MediaRef) -> PreparedMedia:
        digest = media.digest()
        with self._lock:
            if digest in self._kept:
                return self._touch(digest)
            pending = self._pending.get(digest)
            if pending is None and self._workers is None:
                return self._keep(digest, self._prepare_here(media))
            pending = pending or self._submit(media, digest)
        try:
            prepared = pending.result()  # not under the lock: others go on meanwhile
        except BaseException:
            with self._lock:
                self._pending.pop(digest, None)
            raise
        with self._lock:
            if self._pending.pop(digest, None) is not None:
                self._keep(digest, prepared)
        return prepared

    def failure(self, media: MediaRef) -> str | None:
        """Why a medium cannot be prepared, or None. Waits until that is known.

        What another process has prepared stays with it until it is asked for by ``[]``: so the
        media of a whole step can be checked, however few of them are kept.
        """
        try:
            pending = self._pending_of(media)
            if pending is None:
                self[media]
            else:
                pending.result()
        except (ValueError, OSError) as error:
            return str(error)
        return None

    def prefetch(self, media: Iterable[MediaRef]) -> None:
        """Begin to prepare these in other processes; nothing where there are none."""
        if self._workers is None:
            return
        for medium in media:
            with suppress(OSError):  # a file that is gone: whoever asks for it will be told
                self._pending_of(medium)

    def _pending_of(self, media: MediaRef) -> Future[PreparedMedia] | None:
        """What another process does with it; None where it is kept, or prepared in this one."""
        digest = media.digest()
        with self._lock:
            if digest in self._kept or self._workers is None:
                return None
            return self._pending.get(digest) or self._submit(media, digest)

    def is_ready(self, media: MediaRef) -> bool:
        """Is it prepared, so that ``[]`` returns at once?"""
        digest = media.digest()
        with self._lock:
            pending = self._pending.get(digest)
            return digest in self._kept or (pending is not None and pending.done())

    def _submit(self, media: MediaRef, digest: str) -> Future[PreparedMedia]:
        assert self._workers is not None
        self.processor_calls += 1
        self._pending[digest] = self._workers.submit(media)
        return self._pending[digest]

    def _prepare_here(self, media: MediaRef) -> PreparedMedia:
        prepared = self._prepare(media)
        self.processor_calls += 1
        return prepared

    def _touch(self, digest: str) -> PreparedMedia:
        self._kept[digest] = self._kept.pop(digest)  # last: dicts keep insertion order
        return self._kept[digest]

    def _keep(self, digest: str, prepared: PreparedMedia) -> PreparedMedia:
        self._kept[digest] = prepared
        self._bytes += prepared.patches.nbytes
        while self._bytes > self._max_bytes and len(self._kept) > 1:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._bytes -= oldest.patches.nbytes
        return prepared
