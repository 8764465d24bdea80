"""decord beside PyAV, for the frames of a video that PyAV has looked over.

What decord gets wrong was measured on the files of ``tests/vision/test_video_truth.py``, and is
refused. It does not tell a damaged picture from a whole one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np

from mmr1.extras import needs_extra

Frames = Iterator[np.ndarray]

MP4, MATROSKA = "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"
READS = {MP4, MATROSKA, "flv", "asf", "avi", "mpeg"}
"""Containers of which decord gives the right frames, in FFmpeg's names.

decord 0.6 leaves out the first frames of a transport stream and repeats the last; it opens no GIF.
"""


def frames_by_decord(path: str, container: str, count: int, wanted: Sequence[int]) -> Frames:
    """Yield the wanted frames ``[H, W, 3]``, upright, in ascending order, each as often as wanted.

    decord decodes all up to the last one: after a jump, decord 0.6 gives others of MPEG-1, MPEG-2,
    MPEG-4 and WMV, and of H.264 in AVI or without key frames.

    Args:
        count: Frames that the video shows, as PyAV counts them.

    Raises:
        ValueError: If decord does not read such a file, or counts other frames.
    """
    if container not in READS:
        raise _refusal(f"does not give the frames of a container '{container}'")
    with needs_extra("decord", "data.video.backend=decord"):
        import decord

    decord.logging.set_level(decord.logging.QUIET)
    try:
        reader = decord.VideoReader(path, num_threads=1)
        if len(reader) != count:
            raise _refusal(f"counts {len(reader)} frames where {count} are shown")
        left = Counter(wanted)
        for place in range(wanted[-1] + 1):
            frame = reader.next()
            if place in left:
                yield from repeat(frame.asnumpy(), left[place])
    except (RuntimeError, StopIteration, IndexError) as error:  # decord's own is one as well
        reason = str(error).strip().splitlines() or ["its frames end too early"]
        raise _refusal(f"cannot decode it: {reason[-1]}") from None


def _refusal(what: str) -> ValueError:
    return ValueError(f"decord {what}; set data.video.backend to pyav, or re-encode it as MP4")
