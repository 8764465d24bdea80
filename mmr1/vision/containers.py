"""Containers of videos: only listed kinds are opened, recognised by their first bytes.

FFmpeg also reads playlists, scripts and manifests (HLS, DASH, concat). They name other files, also
outside the media root, or addresses.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

_BOXES = (b"ftyp", b"styp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"uuid")
_STARTS = (
    b"\x1aE\xdf\xa3",  # Matroska, WebM
    b"RIFF",  # AVI
    b"OggS",
    b"FLV",
    b"0&\xb2u\x8ef\xcf\x11",  # ASF, WMV
    b"GIF8",
    b".RMF",
    b"DKIF",  # IVF
    b"YUV4MPEG2",
    b"nut/multimedia",
    b"\x89PNG",  # APNG
    b"\x00\x00\x01",  # MPEG program and elementary streams, H.264, HEVC
    b"\x00\x00\x00\x01",
)
_FORMATS = (
    "mov,matroska,avi,ogg,flv,asf,gif,rm,ivf,yuv4mpegpipe,nut,apng,mpeg,mpegvideo,mpegts,h264,hevc,"
    "m4v,obu"
)
"""FFmpeg's names of the same. It guesses by more than the first bytes, and may open no other."""

_HEAD = 200


def open_video(source: str | bytes) -> Any:
    """PyAV's container of a file or of its bytes, to be used as a context.

    Raises:
        ValueError: If the source is not a video by its first bytes.
        av.FFmpegError: It cannot be opened.
    """
    import av

    if isinstance(source, bytes):
        _check_head(source[:_HEAD])
    else:
        with Path(source).open("rb") as file:
            _check_head(file.read(_HEAD))
    options = {"format_whitelist": _FORMATS, "protocol_whitelist": "file"}
    return av.open(io.BytesIO(source) if isinstance(source, bytes) else source, options=options)


def new_video(path: Path) -> Any:
    """Return PyAV's container of a file that is written, to be used as a context."""
    import av

    return av.open(str(path), "w")


def _check_head(head: bytes) -> None:
    if head.startswith(_STARTS) or head[4:8] in _BOXES or _is_transport_stream(head):
        return
    what = f"it begins with {head[:8]!r}" if head else "it is empty"
    raise ValueError(
        f"cannot be decoded as a video: {what}, unlike MP4, Matroska, AVI, MPEG and the other "
        "containers that are opened; re-encode it as MP4"
    )


def _is_transport_stream(head: bytes) -> bool:
    """True for packets of 188 bytes that begin with 0x47; on Blu-ray 4 bytes precede each."""
    return any(head[i : i + 1] == head[i + size : i + size + 1] == b"G" for i, size in _PACKETS)


_PACKETS = ((0, 188), (4, 192))
