"""Videos: sampled as qwen-vl-utils samples, decoded in a killable process under a deadline."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmr1.files import stamp
from mmr1.lifetime import Deadline, Stopwatch, start_persistent
from mmr1.rewards.sandbox.walls import REQUIRED, warn_of_missing_walls
from mmr1.types import MediaRef
from mmr1.vision.budget import (
    VideoBudget,
    VideoHeader,
    fit_frame,
    sampled_indices,
    shown_frames,
    video_grid,
)
from mmr1.vision.paths import SUSPECT_BYTES, check_bytes
from mmr1.vision.views import altered

if TYPE_CHECKING:  # reading headers must not wait for torch and transformers to load
    import torch
    from transformers.video_utils import VideoMetadata
import re
from collections.abc import Mapping

DEADLINE = Deadline(wall_s=600.0, cpu_s=60.0)
"""What one video may take. A decoder that waits, as for a disk that is gone, uses no CPU time."""
CHECK_DEADLINE = Deadline(wall_s=18_000.0, cpu_s=1800.0)
"""What it may take to decode all of one video."""

BACKENDS = {"auto": "av", "pyav": "av", "decord": "decord"}
"""Decoders of videos and their packages. ``auto`` is PyAV, which alone tells damaged images."""


def check_backend(name: str) -> None:
    """Check that ``data.video.backend`` is installed and that its libraries are there.

    Raises:
        ValueError: If the backend or one of its libraries is missing.
    """
    package = BACKENDS[name]
    if package == "av":
        return  # mmr1 requires it
    try:
        importlib.import_module(package)
    except ModuleNotFoundError:
        raise ValueError(
            f"data.video.backend={name}: {package} is not installed; run `pip install {package}`, "
            "or leave the key out"
        ) from None
    except (ImportError, OSError, RuntimeError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise ValueError(
            f"data.video.backend={name}: {package} cannot be loaded ({reason}); leave the key out"
        ) from None


def load_video(
    ref: MediaRef, budget: VideoBudget | None = None, deadline: Deadline = DEADLINE
) -> tuple[torch.Tensor, VideoMetadata]:
    """Sample, decode and resize a video.

    ``ref.options`` may hold ``fps`` or ``nframes``, ``min_frames``, ``max_frames``, ``start`` and
    ``end`` in seconds, ``min_pixels``, ``max_pixels`` and ``total_pixels``; and ``shuffle``, a
    seed, to put the sampled frames into another order, or another view of them
    (:func:`mmr1.vision.views.altered`).

    Returns:
        The frames ``[T, 3, H, W]`` uint8, already of the size the model sees (give processors
        ``do_resize=False, do_sample_frames=False``), and the metadata that processors want; its
        ``sampled_fps`` is the rate of the sampled frames.

    Raises:
        ValueError: Names the file: it cannot be decoded within the deadline, holds fewer frames
            than its header declares or than are asked for, or has damaged frames. Nothing is ever
            put in their place.
    """
    budget = (budget or VideoBudget()).of(ref.options)
    with on_disk(ref) as path:
        header = _probed(ref, path, deadline)
        try:
            indices = _indices(ref, header, budget)
            size = fit_frame(header.width, header.height, len(indices), budget)
        except ValueError as error:
            raise ValueError(f"{ref}: {error}") from error
        indices = shown_frames(indices, budget)
        request = {"indices": indices, "size": size, "backend": budget.backend}
        facts, data = ask(ref, path, {"task": "decode", **request}, deadline)

    import torch

    pixels = np.frombuffer(data, np.uint8).reshape(facts["shape"])
    if "shuffle" in ref.options:
        pixels = pixels[np.random.default_rng(ref.options["shuffle"]).permutation(len(pixels))]
    pixels = np.moveaxis(altered(np.moveaxis(pixels, 1, -1), ref.options), -1, 1)
    metadata = _metadata(ref, header, indices)
    metadata.video_backend = facts["backend"]
    return torch.from_numpy(pixels), metadata


def _metadata(ref: MediaRef, header: VideoHeader, indices: list[int]) -> VideoMetadata:
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(
        total_num_frames=_covered(ref, header, indices),
        fps=header.fps,
        width=header.width,
        height=header.height,
        duration=header.frames / header.fps,
        frames_indices=indices,
    )


def _covered(ref: MediaRef, header: VideoHeader, indices: list[int]) -> int:
    """Frames of the part between start and end: what the sampled rate is relative to."""
    if "start" in ref.options or "end" in ref.options:
        return indices[-1] - indices[0] + 1
    return max(header.frames, len(indices))


def probe_video(ref: MediaRef, deadline: Deadline = DEADLINE) -> VideoHeader:
    """Count the frames and read their times and size; only the first one is decoded.

    Raises:
        ValueError: Names the file; see :func:`load_video`.
    """
    with on_disk(ref) as path:
        return _probed(ref, path, deadline)


def _probed(ref: MediaRef, path: str, deadline: Deadline) -> VideoHeader:
    if ref.path is None or ref.path.name.endswith(".frames.json"):
        return _header(ask(ref, path, {"task": "probe"}, deadline)[0])
    return _header_of_file(ref.path, path, stamp(ref.path), deadline)


@lru_cache(maxsize=64)
def _header_of_file(
    named: Path, path: str, _stamp: tuple[int, ...], deadline: Deadline
) -> VideoHeader:
    """The header of a file, cached as a video is asked about several times in a row."""
    return _header(ask(MediaRef("video", named), path, {"task": "probe"}, deadline)[0])


def check_video(ref: MediaRef, deadline: Deadline = CHECK_DEADLINE) -> VideoHeader:
    """Decode every frame.

    Raises:
        ValueError: Names the file; see :func:`load_video`.
    """
    with on_disk(ref) as path:
        return _header(ask(ref, path, {"task": "check"}, deadline)[0])


def _header(facts: dict[str, Any]) -> VideoHeader:
    return VideoHeader(**{field.name: facts[field.name] for field in fields(VideoHeader)})


def sampled_grid(ref: MediaRef, budget: VideoBudget) -> tuple[int, int, int]:
    """``(t, h, w)`` in patches of a video, without decoding it."""
    header = probe_video(ref)
    budget = budget.of(ref.options)
    try:
        count = len(_indices(ref, header, budget))
        return video_grid(header.width, header.height, count, budget)
    except ValueError as error:
        raise ValueError(f"{ref}: {error}") from error


def sampled_times(ref: MediaRef, budget: VideoBudget) -> list[float]:
    """Seconds from its first frame to each sampled frame of a video, without decoding it."""
    header, indices = _sampled(ref, budget)
    return [index / header.fps for index in indices]


def sampled_metadata(ref: MediaRef, budget: VideoBudget) -> VideoMetadata:
    """The metadata that :func:`load_video` gives, without decoding the video."""
    return _metadata(ref, *_sampled(ref, budget))


def _sampled(ref: MediaRef, budget: VideoBudget) -> tuple[VideoHeader, list[int]]:
    header = probe_video(ref)
    try:
        budget = budget.of(ref.options)
        return header, shown_frames(_indices(ref, header, budget), budget)
    except ValueError as error:
        raise ValueError(f"{ref}: {error}") from error


def _indices(ref: MediaRef, header: VideoHeader, budget: VideoBudget) -> list[int]:
    """The sampled frames; all of a list of frames, whose last may be shown twice."""
    if ref.path is not None and ref.path.name.endswith(".frames.json"):
        indices = list(range(header.frames))
        return indices + indices[-1:] * (-len(indices) % budget.temporal)
    return sampled_indices(header, budget, ref.options)


def patch_times(times: Sequence[float], temporal: int) -> list[float]:
    """The time of each temporal patch: halfway between its first and its last frame."""
    return [(times[i] + times[i + temporal - 1]) / 2 for i in range(0, len(times), temporal)]


class _Decoder:
    """The process behind this module. Started when first needed, replaced when it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def ask(self, request: dict[str, Any], deadline: Deadline) -> tuple[dict[str, Any], bytearray]:
        """Send one request. Raises TimeoutError (killed) or EOFError (it crashed)."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            watch = Stopwatch(deadline, process.pid)
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                return self._receive(process, watch)
            except BaseException:  # the answer that is still under way belongs to nobody
                self.close()
                raise

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._owner = os.getpid()
            self._process = start_persistent(_start)
        return self._process

    def _receive(
        self, process: subprocess.Popen[bytes], watch: Stopwatch
    ) -> tuple[dict[str, Any], bytearray]:
        assert process.stdout is not None
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)

            def more() -> None:
                while not selector.select(watch.wait_s):
                    if (limit := watch.passed) is not None:
                        raise TimeoutError(limit)
                block = os.read(process.stdout.fileno(), 1 << 20)  # type: ignore[union-attr]
                if not block:
                    raise EOFError
                received.extend(block)

            while (end := received.find(b"\n")) < 0:
                more()
            facts = json.loads(received[:end])
            while len(received) < end + 1 + facts["bytes"]:
                more()
        return facts, received[end + 1 :]

    def close(self) -> None:
        """Kill the process."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
        self._process = None


def _start() -> subprocess.Popen[bytes]:
    """The decoder, behind its walls."""
    return subprocess.Popen(
        [sys.executable, "-m", "mmr1.vision.video_decoder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**media_environment(os.environ), "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C and a closed terminal are for its owner
    )


_decoder = _Decoder()
atexit.register(_decoder.close)


def ask(
    ref: MediaRef, path: str, request: dict[str, Any], deadline: Deadline
) -> tuple[dict[str, Any], bytearray]:
    """Answer of the decoder's process. Raises ValueError that names the medium."""
    try:
        facts, data = _decoder.ask({**request, "path": path}, deadline)
    except TimeoutError as error:
        raise ValueError(f"{ref}: not decoded within {error}; re-encode it") from None
    except (EOFError, BrokenPipeError):
        raise ValueError(f"{ref}: the decoder crashed on it; re-encode it") from None
    missing = facts["missing"]
    lacking = [f"{wall} ({missing[wall]})" for wall in REQUIRED if wall in missing]
    if lacking:
        warn_of_missing_walls(
            f"the decoder of videos runs without walls: it lacks {', '.join(lacking)}"
        )
    if "error" in facts:
        raise ValueError(f"{ref}: {facts['error']}")
    return facts, data


@contextmanager
def on_disk(ref: MediaRef) -> Iterator[str]:
    """A path to the medium; for bytes in the record a temporary file."""
    if ref.path is not None:
        if not ref.path.is_file():
            raise ValueError(f"{ref}: no such file")
        if (size := ref.path.stat().st_size) > SUSPECT_BYTES:
            check_bytes(str(ref.path), size)
        yield str(ref.path.absolute())
        return
    with tempfile.NamedTemporaryFile(suffix=".video") as file:
        file.write(ref.read())
        file.flush()
        yield file.name


_KEPT = re.compile(
    r"PATH|HOME|TMPDIR|TZ|LANG|LANGUAGE|LC_[A-Z]+|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|"
    r"PYTHON(PATH|HOME|HASHSEED|UNBUFFERED|FAULTHANDLER)|OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES"
)


def media_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of this process's environment that a decoder gets."""
    return {name: value for name, value in environment.items() if _KEPT.fullmatch(name)}


def forget_environment() -> None:
    """Drop the rest in this process, once what needs it (the hub's token) is loaded."""
    for name in os.environ.keys() - media_environment(os.environ).keys():
        del os.environ[name]
