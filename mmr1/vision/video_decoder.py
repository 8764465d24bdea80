"""Decodes videos in a separate process, as decoders hang and crash on broken files.

Run by :mod:`mmr1.vision.videos` as ``python -m mmr1.vision.video_decoder``. It reads one JSON
request a line from stdin and answers each on stdout with one JSON line, followed by as many raw
bytes as that line announces. It ends when stdin does.

An index tells the frames by their timestamps, from the packets: nothing but the first frame is
decoded for it. The decoder checks its frames against it. Which frames are wanted, and of what size,
the request says: their arithmetic loads more than this process needs.

FFmpeg is a large program, and the files are a dataset's: behind the walls of the rewards' workers
(:mod:`mmr1.rewards.sandbox.walls`) it can write no file, make no connection and start no program.
It reads what the user can.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer

from mmr1.files import stamp
from mmr1.rewards.sandbox.walls import Limits, drop_network, raise_walls
from mmr1.rewards.sandbox.worker import provide_stand_ins
from mmr1.types import MediaRef
from mmr1.vision.budget import VideoHeader
from mmr1.vision.containers import open_video
from mmr1.vision.images import MAX_PIXELS, image_size, load_image, size_of_all
from mmr1.vision.other_decoders import MATROSKA, MP4, frames_by_decord
from mmr1.vision.paths import resolve_media

MAX_FRAMES = 1_000_000
"""Longer videos are refused (9 hours at 30 frames a second)."""
MAX_MISSING = 0.05
"""Share of the frames a header declares that may be missing from the file."""

WITHOUT_TIMES = {"avi"}
"""Containers that keep frames in the order of decoding, with no time at which one is shown."""


@dataclass(frozen=True, slots=True)
class VideoIndex:
    """The index of a video: every shown frame, in order.

    Attributes:
        header: Number, rate and upright size of the frames.
        stamps: ``[frames]`` presentation timestamps in the stream's time base, ascending.
        times: ``[frames]`` the same in seconds since the file begins.
        keys: Indices of the frames at which decoding can begin, ascending.
        cut: Indices of the frames of which a part is missing in the file.
    """

    header: VideoHeader
    stamps: np.ndarray
    times: np.ndarray
    keys: np.ndarray
    cut: np.ndarray

    def at_even_times(self, indices: list[int]) -> list[int]:
        """The frames on display at the times that ``indices`` have at the constant rate.

        In a video of a constant rate, these are the indices themselves.
        """
        if is_regular(self.times, self.header.fps):
            return indices
        shown_at = self.times[0] + np.array(indices) / self.header.fps
        places = np.searchsorted(self.times, shown_at + 1e-6, side="right") - 1
        return [int(place) for place in places.clip(0)]


def read_index(container: Any, stream: Any) -> VideoIndex:
    """Walk over the packets of a video stream, and decode its first frame for its size.

    Frames that an edit list cuts off are not counted.

    Raises:
        ValueError: No frames, no frame rate, too large or too long, not turned by a right angle, or
            the header declares another number of frames than there are.
    """
    if stream.frames > MAX_FRAMES:
        raise ValueError(f"declares {stream.frames:,} frames, more than {MAX_FRAMES:,}; cut it")
    if stream.width * stream.height > MAX_PIXELS:
        raise ValueError(
            f"declares frames of {stream.width}x{stream.height} pixels; scale it down first"
        )
    packets, stamps, keys, cut = 0, [], [], []
    for packet in container.demux(stream):
        packets += bool(packet.size)
        if packets > MAX_FRAMES:
            raise ValueError(f"holds more than {MAX_FRAMES:,} frames; cut it")
        if packet.size and not packet.is_discard:
            stamps.append(packet.dts if packet.pts is None else packet.pts)
            if packet.is_keyframe:
                keys.append(stamps[-1])
            if packet.is_corrupt:  # its end is missing, or was lost on the way
                cut.append(stamps[-1])
    _check_counts(stream.frames, packets, len(stamps))
    width, height = _first_size(container, stream)
    nominal = float(stream.average_rate or stream.guessed_rate or 0)
    if None in stamps:
        raise ValueError("has frames without any time; re-encode it")
    ordered = np.sort(np.array(stamps))
    begin = 0.0
    if container.format.name not in WITHOUT_TIMES:
        begin = float(ordered[0] * stream.time_base) - (container.start_time or 0) / av.time_base
    times = (ordered - ordered[0]) * float(stream.time_base) + max(begin, 0.0)
    fps = _rate(times, nominal)
    if not fps or width <= 0 or height <= 0:
        raise ValueError("its header has no frame rate or no frame size; re-encode it")
    header = VideoHeader(len(stamps), fps, width, height, float(times[0]))
    places = (np.searchsorted(ordered, np.unique(found)) for found in (keys, cut))
    return VideoIndex(header, ordered, times, *places)


def _check_counts(declared: int, packets: int, shown: int) -> None:
    if shown == 0:
        raise ValueError("holds no frames")
    if declared and abs(declared - packets) > max(1, MAX_MISSING * declared):
        raise ValueError(
            f"its header declares {declared} frames but the file holds {packets}: it is cut off or "
            "mislabelled, and times in it cannot be trusted; re-encode it"
        )


def _first_size(container: Any, stream: Any) -> tuple[int, int]:
    """``(width, height)`` of the first frame, upright."""
    if stream.start_time is not None or container.start_time is not None:
        container.seek(0)
    frame = next(container.decode(stream), None)
    if frame is None:
        raise ValueError("none of its frames can be decoded")
    turned = quarter_turned(display_matrix(frame))
    return (frame.height, frame.width) if turned else (frame.width, frame.height)


def _rate(times: np.ndarray, nominal: float) -> float:
    """Frames per second: the nominal rate if the timestamps keep it, or else their own."""
    if len(times) == 1 or (nominal and is_regular(times, nominal)):
        return nominal
    span = float(times[-1] - times[0])
    return (len(times) - 1) / span if span > 0 else nominal


def is_regular(times: np.ndarray, fps: float) -> bool:
    """True if every frame is shown within half a frame of its time at a constant rate."""
    expected = times[0] + np.arange(len(times)) / fps
    return bool(np.all(np.abs(times - expected) < 0.5 / fps))


def display_matrix(frame: Any) -> tuple[int, int, int, int]:
    """``(a, b, c, d)`` of -1, 0 and 1: pixel (x, y) is shown at (a x + c y, b x + d y).

    Phones store what the sensor saw, and beside it how to turn that upright.

    Raises:
        ValueError: The picture is turned by another angle than a right one.
    """
    # ``frame.side_data`` would keep the container in the frame, and the two would keep each other
    # until the next garbage collection, with all pixels.
    beside: Any = SideDataContainer(frame)  # type: ignore[call-arg]  # its stub lacks it
    data = beside.get("DISPLAYMATRIX")
    if data is None:
        return 1, 0, 0, 1
    a, b, _, c, d = np.frombuffer(data, np.int32)[:5] / 65536
    unit = (round(float(a)), round(float(b)), round(float(c)), round(float(d)))
    if unit not in _RIGHT_ANGLES or np.abs(np.array((a, b, c, d)) - unit).max() > 0.01:
        raise ValueError("its picture is not turned by a right angle; re-encode it upright")
    return unit


_RIGHT_ANGLES = {
    *((a, 0, 0, d) for a in (-1, 1) for d in (-1, 1)),
    *((0, b, c, 0) for b in (-1, 1) for c in (-1, 1)),
}


def quarter_turned(matrix: tuple[int, int, int, int]) -> bool:
    """True if width and height are swapped."""
    return matrix[0] == 0


def upright(pixels: np.ndarray, matrix: tuple[int, int, int, int]) -> np.ndarray:
    """``[H, W, 3]`` turned upright; a view."""
    a, b, c, d = matrix
    if quarter_turned(matrix):
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    return pixels[:: d or 1, :: a or 1]


SEEKABLE = {MP4, MATROSKA}
"""Containers whose timestamps and key frames can be relied on. Others are decoded in order."""

MEMORY = 64 << 30
"""Bytes of address space, of which libraries reserve most and use little."""

SLACK_S = 0.25
"""Seconds that a file may end before its header says, on top of a share: headers round."""

Frames = Iterator[np.ndarray]
Places = Iterator[tuple[int, Any]]
Shape = tuple[int, int]


class _SeekError(Exception):
    """Decoding from the middle gave other frames than the index has there."""


def _stream(container: Any) -> Any:
    """The video stream, not the picture on the cover."""
    stream = container.streams.best("video")
    if stream is None:
        raise ValueError("holds no video stream")
    stream.codec_context.thread_count = 1  # each thread would hold frames of its own
    return stream


def decode(request: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """Decode and resize the wanted frames of one video: ``[T, 3, H, W]`` uint8."""
    path, indices = request["path"], request["indices"]
    width, height = request["size"]

    def resized(frames: Frames, header: VideoHeader) -> np.ndarray:
        shown = (header.height, header.width)
        return _resize(frames, len(indices), shown, (height, width))

    if path.endswith(".frames.json"):
        header, files, hashes = probe_list(Path(path))
        return {"backend": "images"}, resized(_listed(files, hashes, indices), header)
    index, container = _index_of(path, stamp(Path(path)))
    if indices[-1] >= index.header.frames:
        raise ValueError("it was changed while it was read")
    wanted = index.at_even_times(indices)
    if request["backend"] == "decord":
        frames = frames_by_decord(path, container, index.header.frames, wanted)
        return {"backend": "decord"}, resized(frames, index.header)
    try:
        frames = _frames(path, index, wanted, seek=container in SEEKABLE)
        pixels = resized(frames, index.header)
    except _SeekError:
        pixels = resized(_frames(path, index, wanted, seek=False), index.header)
    return {"backend": "pyav"}, pixels


@lru_cache(maxsize=1)
def _index_of(path: str, _stamp: tuple[int, ...]) -> tuple[VideoIndex, str]:
    """The index of a file and the name of its container. A video is probed, and then decoded."""
    with open_video(path) as container:
        return read_index(container, _stream(container)), container.format.name


def check(request: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """Decode every frame of a video, and keep none."""
    path = request["path"]
    if path.endswith(".frames.json"):
        header, files, _ = probe_list(Path(path))
        for file in files:
            load_image(MediaRef("image", file))
    else:
        index, _ = _index_of(path, stamp(Path(path)))
        header = index.header
        _check_end(path)
        for _ in _frames(path, index, list(range(header.frames)), seek=False):
            pass
    return dataclasses.asdict(header), np.empty(0, np.uint8)


def _check_end(path: str) -> None:
    """Check that a file lasts as long as its header says.

    Matroska and WebM state no number of frames, and what is left of a cut file decodes.

    Raises:
        ValueError: If the video ends much earlier.
    """
    with open_video(path) as container:
        if not container.duration:
            return
        stated = container.duration / av.time_base
        begin = (container.start_time or 0) / av.time_base
        end = 0.0
        for packet in container.demux():
            stamp = packet.dts if packet.pts is None else packet.pts
            if stamp is not None and packet.time_base is not None:
                end = max(end, float((stamp + (packet.duration or 0)) * packet.time_base) - begin)
    if end < (1 - MAX_MISSING) * stated - SLACK_S:
        raise ValueError(
            f"ends after {end:.1f} s where its header says {stated:.1f} s: it is cut off; get the "
            "whole file, or re-encode it"
        )


def _frames(path: str, index: VideoIndex, wanted: list[int], seek: bool) -> Frames:
    """The wanted frames ``[H, W, 3]``, in ascending order, upright.

    Raises:
        ValueError: A frame is missing or damaged, or frames and index disagree.
        _SeekError: If the same happens with ``seek``; reading in order may do better.
    """
    with open_video(path) as container:
        stream = _stream(container)
        walk = (
            _seeking(container, stream, index, wanted)
            if seek
            else _in_order(container, stream, index, wanted[-1])
        )
        left, damaged = Counter(wanted), False
        for place, frame in walk:
            # What a damaged frame shows spreads up to the next frame that needs no other.
            whole = not frame.is_corrupt and place not in index.cut
            damaged = not whole or (damaged and not frame.key_frame)
            if place in left and damaged:
                raise ValueError(f"frame {place} is damaged")
            if place in left:
                pixels = upright(frame.to_ndarray(format="rgb24"), display_matrix(frame))
                yield from repeat(pixels, left.pop(place))


def _in_order(container: Any, stream: Any, index: VideoIndex, last: int) -> Places:
    """Each frame up to ``last``, with its place in the index.

    Where a container keeps no times of presentation (H.264 in AVI), a frame comes under the time
    of another. The places are right all the same if the whole file has each time once.
    """
    in_order, place, seen = True, -1, set()
    for place, frame in enumerate(container.decode(stream)):
        if place == len(index.stamps):
            raise ValueError(f"more frames decode than the {place} of its index; re-encode it")
        in_order = in_order and frame.pts == index.stamps[place]
        seen.add(frame.pts)
        if place <= last:
            yield place, frame
        if place >= last and in_order:
            return
    if place + 1 < len(index.stamps):
        raise ValueError(f"{len(index.stamps)} frames by its index, but only {place + 1} decode")
    if seen != {None} and seen != set(index.stamps.tolist()):
        raise ValueError("its frames have other times than its index; re-encode it")


def _seeking(container: Any, stream: Any, index: VideoIndex, wanted: list[int]) -> Places:
    """Frames with their places; frames between two wanted ones are skipped by key frames."""
    place_of = {int(stamp): place for place, stamp in enumerate(index.stamps)}
    frames, after = container.decode(stream), 0
    for target in dict.fromkeys(wanted):
        keys = index.keys[(index.keys > after) & (index.keys <= target)]
        begin = int(keys[-1]) if len(keys) else None
        if begin is not None:
            container.seek(int(index.stamps[begin]), stream=stream)
            frames = container.decode(stream)
        while after <= target:
            frame = next(frames, None)
            place = None if frame is None else place_of.get(frame.pts)
            if place is None or place > (after if begin is None else begin):
                raise _SeekError
            if begin is not None and place < begin:
                continue  # from before the key frame, or in need of frames from there
            if begin is None and place < after:
                raise _SeekError
            yield place, frame
            after, begin = place + 1, None


def _resize(frames: Frames, count: int, expected: Shape, size: Shape) -> np.ndarray:
    """Resize frame by frame: no more than one is held in full size."""
    pixels = np.empty((count, 3, *size), np.uint8)
    taken = 0
    for taken, frame in enumerate(frames, 1):
        if frame.shape[:2] != expected:
            raise ValueError(
                f"its frames are {frame.shape[1]}x{frame.shape[0]} pixels where its header says "
                f"{expected[1]}x{expected[0]}; re-encode it"
            )
        for channel in range(3):
            pixels[taken - 1, channel] = _resize_channel(frame[..., channel], size)
    if taken != count:
        raise ValueError(f"{count} frames were sampled and {taken} could be decoded")
    return pixels


def _resize_channel(channel: np.ndarray, size: Shape) -> np.ndarray:
    """``[H, W]`` by antialiased bicubic, as torchvision's ``resize`` and so qwen-vl-utils has it.

    Channel by channel takes a third of the memory. torchvision itself would take 150 MiB and two
    seconds to import.
    """
    import torch

    torch.set_num_threads(1)
    values = torch.from_numpy(np.ascontiguousarray(channel)).float()[None, None]
    resized = torch.nn.functional.interpolate(
        values, size=size, mode="bicubic", align_corners=False, antialias=True
    )
    return resized[0, 0].clamp_(0, 255).round_().byte().numpy()


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


def _listed(files: list[Path], hashes: list[str], indices: list[int]) -> Frames:
    for index in indices:
        data = files[index].read_bytes()
        if hashlib.sha256(data).hexdigest() != hashes[index]:
            raise ValueError(f"{files[index]} is not the frame that was listed")
        yield np.asarray(load_image(MediaRef("image", data=data)))


def probe(request: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """Count the frames by their packets and read their times; only the first one is decoded."""
    path = request["path"]
    if path.endswith(".frames.json"):
        header, frames, _ = probe_list(Path(path))
        size_of_all(frames)
    else:
        header = _index_of(path, stamp(Path(path)))[0].header
    return dataclasses.asdict(header), np.empty(0, np.uint8)


def _answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes | memoryview]:
    tasks: dict[str, Callable[..., tuple[dict[str, Any], np.ndarray]]] = {
        "probe": probe,
        "decode": decode,
        "check": check,
    }
    try:
        facts, pixels = tasks[request["task"]](request)
    except (av.error.FFmpegError, KeyError, TypeError) as error:
        return {"error": f"cannot be decoded as a video: {error}"}, b""
    except (ValueError, OSError, MemoryError, ImportError) as error:
        return {"error": str(error) or type(error).__name__}, b""
    return {**facts, "shape": pixels.shape}, pixels.data.cast("B")


def main() -> None:
    """Answer requests until stdin ends."""
    # Decoders print on stdout and stderr as they please; the answers get a separate descriptor.
    answers = io.BufferedWriter(io.FileIO(os.dup(1), "w"))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    av.logging.set_level(av.logging.PANIC)
    provide_stand_ins()  # torch is imported when the first frame is resized
    missing = {**drop_network(), **raise_walls(Limits(MEMORY), ["/."], os.getppid())}
    for line in sys.stdin:
        facts, data = _answer(json.loads(line))
        told = {**facts, "bytes": len(data), "missing": missing}
        answers.write(json.dumps(told).encode() + b"\n")
        answers.write(data)
        answers.flush()


if __name__ == "__main__":
    main()
