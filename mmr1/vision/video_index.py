"""The frames of a video by their timestamps, from its packets: which there are, when each is shown.

Nothing but the first frame is decoded. The decoder checks its frames against this index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer

from mmr1.vision.budget import VideoHeader
from mmr1.vision.images import MAX_PIXELS

MAX_FRAMES = 1_000_000
"""Longer videos are refused (9 hours at 30 frames a second)."""
MAX_MISSING = 0.05
"""Share of the frames a header declares that may be missing from the file."""

WITHOUT_TIMES = {"avi"}
"""Containers that keep frames in the order of decoding, with no time at which one is shown."""


@dataclass(frozen=True, slots=True)
class VideoIndex:
    """Every frame that is shown, in the order in which they are.

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
        ValueError: No frames, no frame rate, too large or too long, turned by no right angle, or
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
        raise ValueError("not one of its frames can be decoded")
    turned = quarter_turned(display_matrix(frame))
    return (frame.height, frame.width) if turned else (frame.width, frame.height)


def _rate(times: np.ndarray, nominal: float) -> float:
    """Frames per second: the nominal rate if the timestamps keep it, or else their own."""
    if len(times) == 1 or (nominal and is_regular(times, nominal)):
        return nominal
    span = float(times[-1] - times[0])
    return (len(times) - 1) / span if span > 0 else nominal


def is_regular(times: np.ndarray, fps: float) -> bool:
    """Is every frame shown within half a frame of where a constant rate has it?"""
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
    data = next((d for d in beside if d.type.name == "DISPLAYMATRIX"), None)
    if data is None:
        return 1, 0, 0, 1
    a, b, _, c, d = np.frombuffer(data, np.int32)[:5] / 65536
    unit = (round(float(a)), round(float(b)), round(float(c)), round(float(d)))
    if unit not in _RIGHT_ANGLES or np.abs(np.array((a, b, c, d)) - unit).max() > 0.01:
        raise ValueError("its picture is turned by no right angle; re-encode it upright")
    return unit


_RIGHT_ANGLES = {
    *((a, 0, 0, d) for a in (-1, 1) for d in (-1, 1)),
    *((0, b, c, 0) for b in (-1, 1) for c in (-1, 1)),
}


def quarter_turned(matrix: tuple[int, int, int, int]) -> bool:
    """Are width and height swapped?"""
    return matrix[0] == 0


def upright(pixels: np.ndarray, matrix: tuple[int, int, int, int]) -> np.ndarray:
    """``[H, W, 3]`` as it is to be shown; a view."""
    a, b, c, d = matrix
    if quarter_turned(matrix):
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    return pixels[:: d or 1, :: a or 1]
