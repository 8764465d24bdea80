"""Find media in values and names of columns: paths, addresses, encoded bytes, base64."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from mmr1.data.media_values import URL_SAFE

IMAGE_SUFFIXES = frozenset(
    ("png", "jpg", "jpeg", "webp", "bmp", "gif", "tif", "tiff", "avif", "heic", "jp2", "ppm")
)
VIDEO_SUFFIXES = frozenset(
    ("mp4", "avi", "mkv", "webm", "mov", "m4v", "ogv", "mpg", "mpeg", "flv", "wmv", "m3u8")
)
AUDIO_SUFFIXES = frozenset(
    ("wav", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "aiff", "wma")
)
_SUFFIXES = "|".join(sorted(IMAGE_SUFFIXES | VIDEO_SUFFIXES | AUDIO_SUFFIXES))
_LISTED = re.compile(rf"""([^'",\[{{\s][^'",\n]*\.(?:{_SUFFIXES}))['"]""", re.IGNORECASE)
_DATA_URL = re.compile(r"data:(image|video|audio)/[\w.+-]+;base64,")
_HEADERS = {
    b"\x89PNG": "image", b"\xff\xd8\xff": "image", b"GIF8": "image", b"II*\0": "image",
    b"MM\0*": "image", b"\0\0\0\x0cjP": "image", b"\x1aE\xdf\xa3": "video", b"OggS": "video",
    b"\0\0\x01\xba": "video", b"fLaC": "audio", b"ID3": "audio",
}  # fmt: skip
_STILL = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")
LONGEST_PATH = 1024
SHORTEST_BASE64 = 64
"""Characters. The smallest picture in base64 has more."""
_DEPTH, _WIDTH = 4, 256
"""How deep, and how far along a list, media are looked for."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_KINDS = {
    **dict.fromkeys(("image", "images", "img", "imgs", "picture", "pic", "photo"), "image"),
    **dict.fromkeys(("video", "videos", "vid", "clip", "youtube"), "video"),
    **dict.fromkeys(("audio", "audios", "wav", "speech", "sound"), "audio"),
}
_NAMING = frozenset(
    ("id", "ids", "uid", "uuid", "path", "paths", "file", "files", "filename", "filenames", "name",
     "names", "url", "urls", "uri", "key", "hash")
)  # fmt: skip

Leaf = str | bytes | Any
"""A path, an address, encoded bytes, base64 or a PIL image."""


def may_hold_media(value: Any) -> bool:
    """True if :func:`media_in` is worth calling; False for most texts and all numbers."""
    if isinstance(value, str):
        if "." in value[-8:] or value[:1] in ("[", "{"):
            return True
        return len(value) >= SHORTEST_BASE64 and " " not in value[:SHORTEST_BASE64]
    return not isinstance(value, int | float)


def media_in(value: Any, depth: int = _DEPTH) -> Iterator[tuple[str, Leaf]]:
    """``(kind, path or bytes)`` of the media within a value of a column.

    >>> [kind for kind, _ in media_in({"where": ["a.png", {"path": "b.MP4"}], "n": 3})]
    ['image', 'video']
    """
    if isinstance(value, str):
        yield from _in_text(value)
    elif isinstance(value, bytes):
        if (kind := kind_of_bytes(value)) is not None:
            yield kind, value
    elif isinstance(value, Mapping):
        if depth:
            for inner in value.values():
                yield from media_in(inner, depth - 1)
    elif isinstance(value, list | tuple):
        if depth:
            for inner in value[:_WIDTH]:
                yield from media_in(inner, depth - 1)
    elif hasattr(value, "save") and hasattr(value, "mode"):  # a PIL image
        yield "image", value


def _in_text(text: str) -> Iterator[tuple[str, Leaf]]:
    if len(text) <= LONGEST_PATH and (kind := kind_of_path(text)) is not None:
        yield kind, text
    elif text[:1] in ("[", "{"):  # a list or a mapping as a cell of a table holds it
        for match in _LISTED.finditer(text[: 4 * LONGEST_PATH]):
            if kind := kind_of_path(match[1]):
                yield kind, match[1]
    elif len(text) >= SHORTEST_BASE64 and (kind := _kind_of_base64(text)) is not None:
        yield kind, text


_OF_SUFFIX = {"image": IMAGE_SUFFIXES, "video": VIDEO_SUFFIXES, "audio": AUDIO_SUFFIXES}


def kind_of_path(text: str) -> str | None:
    """``image``, ``video`` or ``audio`` for the path or address of one, by its suffix, or None.

    >>> kind_of_path("x/a.PNG"), kind_of_path("https://x.org/v.mp4?t=3"), kind_of_path("See a.png")
    ('image', 'video', None)
    """
    if "." not in text[-8:] and not ("://" in text and "?" in text):
        return None
    name = text.strip()
    if "://" in name:
        name = name.split("?")[0].split("#")[0]
    suffix = name.rpartition(".")[2].lower()
    kind = next((kind for kind, known in _OF_SUFFIX.items() if suffix in known), None)
    return None if kind is None or any(map(str.isspace, name)) else kind


def kind_of_bytes(data: bytes) -> str | None:
    """``image``, ``video`` or ``audio`` by the first bytes of a file, or None."""
    head = bytes(data[:16])
    if head[4:8] == b"ftyp":
        return "image" if head[8:12] in _STILL else "video"
    if head[:4] == b"RIFF":
        return {b"WEBP": "image", b"AVI ": "video", b"WAVE": "audio"}.get(head[8:12])
    if head[:2] == b"BM" and len(data) > 26 and int.from_bytes(data[2:6], "little") == len(data):
        return "image"
    return next((kind for magic, kind in _HEADERS.items() if head.startswith(magic)), None)


def _kind_of_base64(text: str) -> str | None:
    if text[:5] == "data:" and (match := _DATA_URL.match(text)):
        return match[1]
    try:
        return kind_of_bytes(base64.b64decode(text[:64].translate(URL_SAFE), validate=True))
    except (binascii.Error, ValueError):
        return None


@lru_cache(maxsize=1 << 12)
def named_kind(name: str) -> str | None:
    """The kind of medium that a column names, as ``image_id`` and ``videoFile`` do.

    >>> [named_kind(n) for n in ("imageId", "video_path", "image_caption", "video_duration")]
    ['image', 'video', None, None]
    """
    words = [word.lower() for word in _WORD.findall(name)]
    kinds = [_KINDS[word] for word in words if word in _KINDS]
    rest = [word for word in words if word not in _KINDS]
    plain = all(word in _NAMING or word.isdigit() for word in rest)
    return kinds[0] if len(kinds) == 1 and plain else None
