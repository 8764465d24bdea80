"""A video whose header lies."""

from __future__ import annotations

from pathlib import Path

from tests.vision.media import write_video


def lying_avi(path: Path, declared: int) -> Path:
    """An AVI whose header declares another number of frames than it holds."""
    write_video(path, frames=20, codec="mpeg4")
    data = bytearray(path.read_bytes())
    for tag, offset in ((b"avih", 8 + 16), (b"strh", 8 + 32)):
        at = data.index(tag) + offset
        assert int.from_bytes(data[at : at + 4], "little") == 20
        data[at : at + 4] = declared.to_bytes(4, "little")
    path.write_bytes(data)
    return path
