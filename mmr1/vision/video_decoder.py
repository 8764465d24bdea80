"""Decodes videos in a process of its own, for decoders hang and crash on broken files.

Run by :mod:`mmr1.vision.videos` as ``python -m mmr1.vision.video_decoder``. It reads one JSON
request a line from stdin and answers each on stdout with one JSON line, followed by as many raw
bytes as that line announces. It ends when stdin does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np

from mmr1.types import MediaRef
from mmr1.vision.budget import PixelBudget, VideoBudget, VideoHeader, fit_frame, frame_indices
from mmr1.vision.images import MAX_PIXELS, image_size, load_image
from mmr1.vision.paths import resolve_media

MAX_FRAMES = 1_000_000
"""Longer videos are refused (9 hours at 30 frames a second)."""
MAX_MISSING = 0.05
"""Share of the frames a header declares that may be missing from the file."""
CHUNK = 8
"""Frames decoded at full size at one time."""

Frames = Iterator[np.ndarray]
Shape = tuple[int, int]


def probe(source: str | BinaryIO) -> VideoHeader:
    """Count the frames by walking over the packets; nothing is decoded.

    Raises:
        ValueError: No video, no frames, no frame rate, too large, or the header declares more
            frames than there are.
    """
    with av.open(source, "r") as container:
        if not container.streams.video:
            raise ValueError("holds no video stream")
        stream = container.streams.video[0]
        declared, rate = stream.frames, stream.average_rate or stream.guessed_rate
        width, height = stream.width, stream.height
        if declared > MAX_FRAMES:
            raise ValueError(f"declares {declared:,} frames, more than {MAX_FRAMES:,}; cut it")
        if width * height > MAX_PIXELS:
            raise ValueError(f"declares frames of {width}x{height} pixels; scale it down first")
        count = 0
        for packet in container.demux(stream):
            count += bool(packet.size)
            if count > MAX_FRAMES:
                raise ValueError(f"holds more than {MAX_FRAMES:,} frames; cut it")
    _check_counts(declared, count)
    if not rate or width <= 0 or height <= 0:
        raise ValueError("its header has no frame rate or no frame size; re-encode it")
    return VideoHeader(count, float(rate), width, height)


def _check_counts(declared: int, count: int) -> None:
    if count == 0:
        raise ValueError("holds no frames")
    if declared and abs(declared - count) > max(1, MAX_MISSING * declared):
        raise ValueError(
            f"its header declares {declared} frames but the file holds {count}: it is cut off or "
            "mislabelled, and times in it cannot be trusted; re-encode it"
        )


def _by_decord(path: str, indices: list[int], header: VideoHeader) -> Frames:
    """Frames ``[H, W, 3]`` from decord, until it gives the same picture for two different ones.

    For a frame that it cannot decode, decord silently gives a neighbour. Still pictures look the
    same, so the decision is left to PyAV, which reports broken frames.
    """
    import decord

    reader = decord.VideoReader(path, num_threads=1)
    if len(reader) != header.frames:
        raise ValueError(f"decord finds {len(reader)} frames")
    before = b""
    for start in range(0, len(indices), CHUNK):
        for frame in reader.get_batch(indices[start : start + CHUNK]).asnumpy():
            if (seen := hashlib.blake2b(frame.data, digest_size=16).digest()) == before:
                raise ValueError("decord repeated a frame")
            before = seen
            yield frame


def _by_pyav(path: str, indices: list[int], header: VideoHeader) -> Frames:
    sampled = set(indices)
    decoded = -1
    with av.open(path) as container:
        stream = container.streams.video[0]
        for decoded, frame in enumerate(container.decode(stream)):
            if decoded in sampled:
                if frame.is_corrupt:
                    raise ValueError(f"frame {decoded} is damaged")
                yield frame.to_ndarray(format="rgb24")
            if decoded == indices[-1]:
                return
    raise ValueError(f"{header.frames} frames by its index, but only {decoded + 1} decode")


def decode(request: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """Sample, decode and resize one video: its facts and its frames ``[T, 3, H, W]`` uint8."""
    budget = _budget(request["budget"]).of(request["options"])
    path = request["path"]
    if path.endswith(".frames.json"):
        return _decode_list(Path(path), budget)
    header = probe(path)
    indices = frame_indices(header.frames, header.fps, budget, request["options"])
    shape, fitted = _shapes(header, len(indices), budget)
    facts = {**dataclasses.asdict(header), "indices": indices, "backend": "decord"}
    try:
        pixels = _resize(_by_decord(path, indices, header), len(indices), shape, fitted)
    except Exception as error:  # decord's errors share no type; PyAV has the last word
        facts["backend"] = f"pyav (decord: {str(error).splitlines()[0][-80:]})"
        pixels = _resize(_by_pyav(path, indices, header), len(indices), shape, fitted)
    return facts, pixels


def _shapes(header: VideoHeader, count: int, budget: VideoBudget) -> tuple[Shape, Shape]:
    """``(height, width)`` of the frames as they are and as the model sees them."""
    width, height = fit_frame(header.width, header.height, count, budget)
    return (header.height, header.width), (height, width)


def _budget(values: dict[str, Any]) -> VideoBudget:
    return VideoBudget(**{**values, "frame": PixelBudget(**values["frame"])})


def _resize(frames: Frames, count: int, expected: Shape, size: Shape) -> np.ndarray:
    """Each frame by torchvision's antialiased bicubic, as qwen-vl-utils resizes videos."""
    import torch
    from torchvision.transforms import InterpolationMode, functional

    torch.set_num_threads(1)
    pixels = np.empty((count, 3, *size), np.uint8)
    taken = 0
    for taken, frame in enumerate(frames, 1):
        if frame.shape[:2] != expected:
            raise ValueError(
                f"its frames are {frame.shape[1]}x{frame.shape[0]} pixels where its header says "
                f"{expected[1]}x{expected[0]}; re-encode it (a rotated video: upright)"
            )
        tensor = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)
        pixels[taken - 1] = functional.resize(
            tensor, list(size), InterpolationMode.BICUBIC, antialias=True
        ).numpy()
    if taken != count:
        raise ValueError(f"{count} frames were sampled and {taken} could be decoded")
    return pixels


def probe_list(path: Path) -> tuple[VideoHeader, list[Path], list[str]]:
    """A ``.frames.json`` file: ``{"fps": 2, "frames": [{"path": …, "sha256": …}, …]}``.

    The paths lie beside or below it. The hashes make the file an identity of the pictures.
    """
    listed = json.loads(path.read_text(encoding="utf-8"))
    frames, fps = listed["frames"], float(listed["fps"])
    files = [resolve_media(path.parent, f["path"]) for f in frames]
    if not files or fps <= 0:
        raise ValueError("holds no frames" if not files else f"its frame rate is {fps}")
    width, height = image_size(MediaRef("image", files[0]))
    return VideoHeader(len(files), fps, width, height), files, [f["sha256"] for f in frames]


def _decode_list(path: Path, budget: VideoBudget) -> tuple[dict[str, Any], np.ndarray]:
    """All listed frames: whoever wrote the list has sampled; an odd last one is shown twice."""
    header, files, hashes = probe_list(path)
    indices = list(range(len(files)))
    indices += indices[-1:] * (-len(indices) % budget.temporal)

    def read() -> Frames:
        for index in indices:
            data = files[index].read_bytes()
            if hashlib.sha256(data).hexdigest() != hashes[index]:
                raise ValueError(f"{files[index]} is not the frame that was listed")
            yield np.asarray(load_image(MediaRef("image", data=data)))

    pixels = _resize(read(), len(indices), *_shapes(header, len(indices), budget))
    return {**dataclasses.asdict(header), "indices": indices, "backend": "images"}, pixels


def _probe_any(request: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    path = request["path"]
    header = probe_list(Path(path))[0] if path.endswith(".frames.json") else probe(path)
    return dataclasses.asdict(header), np.empty(0, np.uint8)


def _answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    tasks: dict[str, Callable[..., tuple[dict[str, Any], np.ndarray]]] = {
        "probe": _probe_any,
        "decode": decode,
    }
    try:
        facts, pixels = tasks[request["task"]](request)
    except (av.error.FFmpegError, KeyError, TypeError) as error:
        return {"error": f"cannot be decoded as a video: {error}"}, b""
    except (ValueError, OSError, MemoryError) as error:
        return {"error": str(error) or type(error).__name__}, b""
    return {**facts, "shape": pixels.shape}, pixels.tobytes()


def main() -> None:
    """Answer requests until stdin ends."""
    # Decoders print on stdout and stderr as they please; the answers get a descriptor of their own.
    answers = io.BufferedWriter(io.FileIO(os.dup(1), "w"))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    av.logging.set_level(av.logging.PANIC)
    for line in sys.stdin:
        facts, data = _answer(json.loads(line))
        answers.write(json.dumps({**facts, "bytes": len(data)}).encode() + b"\n" + data)
        answers.flush()


if __name__ == "__main__":
    main()
