"""Media as the vision tower takes them, measured or prepared, and the cache of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from threading import Lock
from typing import Any, Protocol

import torch

from mmr1.types import MediaKind, MediaRef
from mmr1.vision.budget import tokens


@dataclass(frozen=True, slots=True)
class Medium:
    """One image or video as a prompt shows it to the model: prepared, or by its header alone.

    Attributes:
        kind: ``"image"`` or ``"video"``.
        stored: ``[t * h * w, patch_dim]`` float32, normalised pixels in the tower's patch order.
            For a processor that is given whole prompts ``[frames, h, w, 3]`` uint8, pixels. None
            where only the header was read.
        grid: ``(t, h, w)`` in patches, before the spatial merge.
        merge: Side of the square of patches that becomes one token.
        seconds_per_grid: Seconds between two temporal positions (video only).
        digest: Identity of the medium; equal digests have equal patches.
        patch_size: Side of a patch in pixels.
        times: Seconds from the beginning of the video to each temporal patch (video only).
        metadata: Fields of transformers' ``VideoMetadata``, for a processor that is given whole
            prompts (video only).
        counted: Tokens, where another than the grid tells.
        prepared: Gives the medium with what is stored, where it is not; None where nobody needs it.
        prefetch: Has it made in another process, where there is one.
    """

    kind: MediaKind
    stored: torch.Tensor | None = field(compare=False)
    grid: tuple[int, int, int]
    merge: int
    seconds_per_grid: float | None
    digest: str
    patch_size: int = 14
    times: tuple[float, ...] = ()
    metadata: Mapping[str, Any] | None = None
    counted: int | None = None
    prepared: Callable[[], Medium] | None = field(default=None, compare=False)
    prefetch: Callable[[], None] | None = field(default=None, compare=False)

    @property
    def patches(self) -> torch.Tensor:
        """What is stored here, or of the medium that is prepared on each access.

        Raises:
            ValueError: If that is not what the header says.
        """
        if self.stored is not None:
            return self.stored
        assert self.prepared is not None, "of these media only the sizes are known"
        made = self.prepared()
        if (made.grid, made.times) != (self.grid, self.times):
            raise ValueError(
                f"{self.kind} {self.digest}: by its header it has {self.grid} patches, and decoded "
                f"{made.grid}, or other times; write the file anew"
            )
        return made.patches

    @property
    def pixels(self) -> tuple[int, int]:
        """``(width, height)`` as the model sees it, after resizing."""
        _, h, w = self.grid
        return w * self.patch_size, h * self.patch_size

    @property
    def tokens(self) -> int:
        """Merged vision tokens: the length of its placeholder run in the prompt."""
        return tokens(self.grid, self.merge) if self.counted is None else self.counted

    @property
    def kept_bytes(self) -> int:
        """The size that a cache counts: of the patches, or about what the object itself takes."""
        return 1024 if self.stored is None else self.stored.nbytes

    def begin(self) -> None:
        """Announce that the patches will be asked for."""
        if self.prefetch is not None:
            self.prefetch()

    def frames(self, begin: int, end: int) -> Medium:
        """The temporal patches from ``begin`` on, before ``end``."""
        _, h, w = self.grid
        part = replace(self, grid=(end - begin, h, w), digest=f"{self.digest} frames {begin}-{end}")
        if self.stored is not None:
            return replace(part, stored=self.stored[begin * h * w : end * h * w])
        late = replace(self, prefetch=None)
        return replace(part, prepared=lambda: replace(late, stored=late.patches).frames(begin, end))

    def __reduce__(self) -> Any:
        """Pickle patches by value, for other processes.

        Torch would put each of them into shared memory and hold a file descriptor for as long as
        it is kept.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        stored = None if self.stored is None else self.stored.numpy()
        return _from_arrays, ({**values, "stored": stored},)


def _from_arrays(values: dict[str, Any]) -> Medium:
    stored = values["stored"]
    return Medium(**{**values, "stored": None if stored is None else torch.from_numpy(stored)})


def measured(prepared: Medium) -> Medium:
    """The medium without its patches."""
    return replace(prepared, stored=None)


class MediaWorkers(Protocol):
    """Processes that prepare media (``Preparers`` in ``mmr1/vision/build.py``)."""

    def submit(self, media: MediaRef) -> Future[Medium]: ...


class MediaCache:
    """Prepared media by digest: one processor call per medium, however many prompts use it.

    Bounded by the bytes of the patches; the least recently used go first. Threads may share it.
    Where nobody needs the patches, it is one of measured media.

    Args:
        prepare: Prepares a medium in this process.
        max_bytes: Bytes of the patches that are kept.
        workers: Prepare media in other processes; then this one never does.

    Attributes:
        processor_calls: How many media were prepared.
    """

    def __init__(
        self,
        prepare: Callable[[MediaRef], Medium],
        max_bytes: int = 2 * 1024**3,
        workers: MediaWorkers | None = None,
    ) -> None:
        self._prepare = prepare
        self._workers = workers
        self._max_bytes = max_bytes
        self._kept: dict[str, Medium] = {}
        self._pending: dict[str, Future[Medium]] = {}
        self._bytes = 0
        self._lock = Lock()
        self.processor_calls = 0

    def __getitem__(self, media: MediaRef) -> Medium:
        digest = media.digest()
        with self._lock:
            if digest in self._kept:
                return self._touch(digest)
            pending = self._pending.get(digest)
            if pending is None and self._workers is None:
                return self._keep(digest, self._prepare_here(media))
            pending = pending or self._submit(media, digest)
        try:
            prepared = pending.result()  # not under the lock: others continue meanwhile
        except BaseException:
            with self._lock:
                self._pending.pop(digest, None)
            raise
        with self._lock:
            if self._pending.pop(digest, None) is not None:
                self._keep(digest, prepared)
        return prepared

    def failure(self, media: MediaRef) -> str | None:
        """The reason why a medium cannot be prepared, or None. Waits until that is known.

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

    def _pending_of(self, media: MediaRef) -> Future[Medium] | None:
        """The preparation in another process; None where it is kept, or prepared in this one."""
        digest = media.digest()
        with self._lock:
            if digest in self._kept or self._workers is None:
                return None
            return self._pending.get(digest) or self._submit(media, digest)

    def known(self, media: MediaRef) -> Medium | None:
        """The cached medium; None without preparing anything."""
        with self._lock:
            return self._kept.get(media.digest())

    def is_ready(self, media: MediaRef) -> bool:
        """True if it is prepared, so that ``[]`` returns at once."""
        digest = media.digest()
        with self._lock:
            pending = self._pending.get(digest)
            return digest in self._kept or (pending is not None and pending.done())

    def _submit(self, media: MediaRef, digest: str) -> Future[Medium]:
        assert self._workers is not None
        self.processor_calls += 1
        self._pending[digest] = self._workers.submit(media)
        return self._pending[digest]

    def _prepare_here(self, media: MediaRef) -> Medium:
        prepared = self._prepare(media)
        self.processor_calls += 1
        return prepared

    def _touch(self, digest: str) -> Medium:
        self._kept[digest] = self._kept.pop(digest)  # last: dicts keep insertion order
        return self._kept[digest]

    def _keep(self, digest: str, prepared: Medium) -> Medium:
        self._kept[digest] = prepared
        self._bytes += prepared.kept_bytes
        while self._bytes > self._max_bytes and len(self._kept) > 1:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._bytes -= oldest.kept_bytes
        return prepared


def as_decoded(medium: Medium) -> Any:
    """A PIL image, or ``(frames [T, 3, H, W], VideoMetadata)``, of what holds such.

    A processor that has not seen them takes them so.
    """
    from PIL import Image
    from transformers.video_utils import VideoMetadata

    if medium.kind == "image":
        return Image.fromarray(medium.patches[0].numpy())
    assert medium.metadata is not None
    return medium.patches.permute(0, 3, 1, 2), VideoMetadata(**medium.metadata)
