"""Decoders beside PyAV, for the frames of a video that PyAV has looked over.

What each gets wrong was measured on the files of ``tests/vision/test_video_truth.py``, and is
refused. Neither tells a damaged picture from a whole one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np

from mmr1.extras import needs_extra

Frames = Iterator[np.ndarray]

MP4, MATROSKA = "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"
READS = {
    "decord": {MP4, MATROSKA, "flv", "asf", "avi", "mpeg"},
    "torchcodec": {MP4, MATROSKA, "flv", "asf", "gif"},
}
"""Containers of which each gives the right frames, in FFmpeg's names.

decord 0.6 leaves out the first frames of a transport stream and repeats the last; it opens no GIF.
torchcodec 0.13 gives others of H.264 in AVI and in transport streams, and of MPEG-2 in its own.
"""


def frames_by(backend: str, path: str, container: str, count: int, wanted: Sequence[int]) -> Frames:
    """The wanted frames ``[H, W, 3]``, upright, in ascending order, as often as each is wanted.

    Args:
        count: Frames that the video shows, as PyAV counts them.

    Raises:
        ValueError: The backend does not read such a file, or counts other frames.
    """
    if container not in READS[backend]:
        raise _refusal(backend, f"does not give the frames of a container '{container}'")
    try:
        yield from {"decord": _decord, "torchcodec": _torchcodec}[backend](path, count, wanted)
    except (RuntimeError, StopIteration, IndexError) as error:  # decord's own is one as well
        reason = str(error).strip().splitlines() or ["its frames end too early"]
        raise _refusal(backend, f"cannot decode it: {reason[-1]}") from None


def _decord(path: str, count: int, wanted: Sequence[int]) -> Frames:
    """The frames by decord, which decodes all up to the last one.

    After a jump, decord 0.6 gives others: of MPEG-1, MPEG-2, MPEG-4 and WMV, of H.264 in AVI or
    without key frames.
    """
    with needs_extra("decord", "data.video.backend=decord"):
        import decord

    decord.logging.set_level(decord.logging.QUIET)
    reader = decord.VideoReader(path, num_threads=1)
    _check_count("decord", len(reader), count)
    left = Counter(wanted)
    for place in range(wanted[-1] + 1):
        frame = reader.next()
        if place in left:
            yield from repeat(frame.asnumpy(), left[place])


def _torchcodec(path: str, count: int, wanted: Sequence[int]) -> Frames:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, num_ffmpeg_threads=1, dimension_order="NHWC")
    _check_count("torchcodec", len(decoder), count)
    for place in wanted:
        yield decoder[place].numpy()


def _check_count(backend: str, counted: int, shown: int) -> None:
    if counted != shown:
        raise _refusal(backend, f"counts {counted} frames where {shown} are shown")


def _refusal(backend: str, what: str) -> ValueError:
    return ValueError(f"{backend} {what}; set data.video.backend to pyav, or re-encode it as MP4")
