"""Media as the model reads them: patches and grids, made by the model's own processor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
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
        grid: ``(t, h, w)`` in patches, before the spatial merge.
        merge: Side of the square of patches that becomes one token.
        seconds_per_grid: Seconds between two temporal positions (video only).
        digest: Identity of the medium; equal digests have equal patches.
        patch_size: Side of a patch in pixels.
    """

    kind: Literal["image", "video"]
    patches: torch.Tensor
    grid: tuple[int, int, int]
    merge: int
    seconds_per_grid: float | None
    digest: str
    patch_size: int = 14

    @property
    def pixels(self) -> tuple[int, int]:
        """``(width, height)`` as the model sees it, after resizing."""
        _, h, w = self.grid
        return w * self.patch_size, h * self.patch_size

    @property
    def tokens(self) -> int:
        """Merged vision tokens: the length of its placeholder run in the prompt."""
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


class Submits(Protocol):
    """Prepares media elsewhere (``mmr1/vision/preparers.py``)."""

    def submit(self, media: MediaRef) -> Future[PreparedMedia]: ...


class MediaCache:
    """Prepared media by digest: one processor call per medium, however many prompts use it.

    Bounded by the bytes of the patches; the least recently used go first. Threads may share it.

    Args:
        prepare: Prepares a medium in this process.
        max_bytes: Of the patches that are kept.
        elsewhere: Prepares media in other processes; then this one never does.

    Attributes:
        processor_calls: How many media were prepared.
    """

    def __init__(
        self,
        prepare: Callable[[MediaRef], PreparedMedia],
        max_bytes: int = 2 * 1024**3,
        elsewhere: Submits | None = None,
    ) -> None:
        self._prepare = prepare
        self._elsewhere = elsewhere
        self._max_bytes = max_bytes
        self._kept: dict[str, PreparedMedia] = {}
        self._coming: dict[str, Future[PreparedMedia]] = {}
        self._bytes = 0
        self._lock = Lock()
        self.processor_calls = 0

    def __getitem__(self, media: MediaRef) -> PreparedMedia:
        digest = media.digest()
        with self._lock:
            if digest in self._kept:
                return self._touch(digest)
            coming = self._coming.get(digest)
            if coming is None and self._elsewhere is None:
                return self._keep(digest, self._counted(media))
            coming = coming or self._submit(media, digest)
        try:
            prepared = coming.result()  # not under the lock: others go on meanwhile
        except BaseException:
            with self._lock:
                self._coming.pop(digest, None)
            raise
        with self._lock:
            if self._coming.pop(digest, None) is not None:
                self._keep(digest, prepared)
        return prepared

    def prefetch(self, media: Iterable[MediaRef]) -> None:
        """Begin to prepare these in other processes; nothing where there are none."""
        if self._elsewhere is None:
            return
        with self._lock:
            for medium in media:
                digest = medium.digest()
                if digest not in self._kept and digest not in self._coming:
                    self._submit(medium, digest)

    def is_ready(self, media: MediaRef) -> bool:
        """Would it be there at once?"""
        digest = media.digest()
        with self._lock:
            coming = self._coming.get(digest)
            return digest in self._kept or (coming is not None and coming.done())

    def _submit(self, media: MediaRef, digest: str) -> Future[PreparedMedia]:
        assert self._elsewhere is not None
        self.processor_calls += 1
        self._coming[digest] = self._elsewhere.submit(media)
        return self._coming[digest]

    def _counted(self, media: MediaRef) -> PreparedMedia:
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
