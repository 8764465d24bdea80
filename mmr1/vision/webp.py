"""The size of a WebP image from its first bytes.

PIL's decoder allocates the whole canvas when it opens such a file, which is slow for a dataset and
fatal for a header that claims 16,383 x 16,383 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = 30
"""Bytes that are enough."""
_EXIF_FLAG = 0x08


@dataclass(frozen=True, slots=True)
class WebpHead:
    """What the first bytes of a WebP image say.

    Attributes:
        size: ``(width, height)`` in pixels.
        may_be_turned: True when the file says that it has EXIF data.
    """

    size: tuple[int, int]
    may_be_turned: bool


def webp_head(head: bytes) -> WebpHead | None:
    """Read the head of a file (RFC 9649), or None when it is no WebP image.

    >>> webp_head(b"RIFF....WEBPVP8X....\\x08...\\x0f\\x00\\x00\\x1f\\x00\\x00")
    WebpHead(size=(16, 32), may_be_turned=True)
    """
    if len(head) < HEAD or head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    kind = head[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(head[i : i + 3], "little") + 1 for i in (24, 27))
        return WebpHead((width, height), bool(head[20] & _EXIF_FLAG))
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return WebpHead(((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1), False)
    if kind == b"VP8 ":
        width, height = (int.from_bytes(head[i : i + 2], "little") & 0x3FFF for i in (26, 28))
        return WebpHead((width, height), False)
    return None
