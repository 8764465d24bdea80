"""Values of a dataset's columns of media -> ``MediaRef``, with the options beside them.

Options say how a video is sampled, and how large the model sees a medium.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image, ImageOps

from mmr1.registry import suggest
from mmr1.types import MediaKind, MediaRef
from mmr1.vision.images import to_rgb
from mmr1.vision.paths import confine, local_name, resolve_media

# Where a mapping holds its medium. Bytes first: the path beside them names a file of its author.
_HOLDERS = ("bytes", "path", "url", "image", "video")
URL_SAFE = str.maketrans("-_", "+/")
"""From the alphabet of URL-safe base64 to the usual one."""
_DATA_URL = re.compile(r"data:[\w/+.-]+;base64,")
_MODES_OF_PNG = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]{100,}={0,2}\s*")


def media_refs(kind: MediaKind, value: Any, root: Path) -> list[MediaRef]:
    """The media of a column: nothing, one value, or a list of them.

    A value is a path, ``{"bytes": …, "path": …}`` as Hugging Face datasets store it, the part of a
    chat message with its options beside it, encoded bytes, base64 (with or without a ``data:``
    prefix), or a PIL image.

    Raises:
        ValueError: The value is none of these, or names no file under the root.
    """
    if value is None or (isinstance(value, str) and not value):
        return []
    if isinstance(value, list | tuple):
        return [ref for item in value for ref in media_refs(kind, item, root)]
    return [_media_ref(kind, value, root)]


def _media_ref(kind: MediaKind, value: Any, root: Path) -> MediaRef:
    options: dict[str, Any] = {}
    if isinstance(value, Mapping):
        options = options_of(value)
        value = next((value[key] for key in _HOLDERS if value.get(key)), None)
    if isinstance(value, bytes):
        return MediaRef(kind, data=value, options=options)
    if isinstance(value, Path):
        return MediaRef(kind, path=value, options=options)
    if isinstance(value, str):
        if (data := _decoded(value)) is not None:
            return MediaRef(kind, data=data, options=options)
        return MediaRef(kind, path=locate(root, value), options=options)
    if hasattr(value, "save") and hasattr(value, "mode"):  # a PIL image, decoded by a loader
        return MediaRef(kind, data=_png(value), options=options)
    raise ValueError(f"the {kind} column holds {type(value).__name__}, neither a path nor bytes")


def _png(image: Image.Image) -> bytes:
    """The upright image, in RGB where PNG lacks its mode."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode not in _MODES_OF_PNG:
        upright = to_rgb(upright)
    buffer = io.BytesIO()
    upright.save(buffer, "PNG")
    return buffer.getvalue()


def _decoded(text: str) -> bytes | None:
    """The bytes of a base64 text, or None for a path."""
    if prefix := _DATA_URL.match(text):
        text = text[prefix.end() :]
    elif not _BASE64.fullmatch(text):
        return None
    try:
        return base64.b64decode("".join(text.split()).translate(URL_SAFE), validate=True)
    except binascii.Error as error:
        raise ValueError(f"media in base64 that cannot be decoded: {error}") from None


def locate(root: Path, name: str) -> Path:
    """The media file ``name`` of a dataset, which may be a path of another machine.

    A relative name is used as it is. An absolute one (``/root/data//images/1.jpg``) begins with
    folders of the machine that wrote it. Of its endings that exist under the root, the longest is
    used. An ending has at least one folder, because a bare file name could match another split.

    Raises:
        ValueError: No such file, or the name leads out of the root.
    """
    local = local_name(name)
    if local.lower().endswith((".m3u8", ".m3u")):
        raise ValueError(
            f"'{name}' is a playlist, which names the parts of a video; join them, as ffmpeg -i "
            f"{PurePosixPath(name).name} -c copy {PurePosixPath(name).stem}.mp4 does"
        )
    if not local.startswith("/"):
        return resolve_media(root, name)
    path = PurePosixPath(local)
    if ".." in path.parts:
        return resolve_media(root, name)
    inside = path.is_relative_to(root.resolve())
    if inside and Path(path).is_file():
        return resolve_media(root, str(path))
    for start in range(1, len(path.parts) - 1):
        tail = "/".join(path.parts[start:])
        if confine(root, tail).is_file():
            return resolve_media(root, tail)
    raise ValueError(
        f"media file '{name}' does not exist under {root}, nor does the end of its path; unpack "
        "the media there, or set the media root to the folder they are in"
    )


MEDIA_OPTIONS = {
    "fps": float,
    "start": float,
    "end": float,
    "nframes": int,
    "min_frames": int,
    "max_frames": int,
    "min_pixels": int,
    "max_pixels": int,
    "total_pixels": int,
    "shuffle": int,
}
"""Names of the options and the types of their values. Times are in seconds."""

# As qwen-vl-utils names them.
_RENAMED = {"video_start": "start", "video_end": "end"}
_FIXED_SIZE = ("resized_height", "resized_width")


def options_of(part: Mapping[str, Any]) -> dict[str, Any]:
    """The options among the keys of a chat part in the form of qwen-vl-utils.

    Raises:
        ValueError: If the part fixes the size in pixels, which no record can, or asks for the
            sound of a video.
    """
    if part.get("use_audio_in_video"):
        raise ValueError(
            "'use_audio_in_video': images and videos are read, and no sound; leave it out"
        )
    if fixed := [key for key in _FIXED_SIZE if part.get(key) is not None]:
        raise ValueError(f"'{fixed[0]}' fixes a size; set min_pixels and max_pixels instead")
    renamed = {_RENAMED.get(key, key): value for key, value in part.items()}
    return {k: v for k, v in renamed.items() if k in MEDIA_OPTIONS and v is not None}


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of a medium.

    Raises:
        ValueError: If an option is unknown, or its value is not a number of its type.
    """
    for name, value in options.items():
        if name not in MEDIA_OPTIONS:
            raise ValueError(
                f"unknown media option '{name}'{suggest(name, MEDIA_OPTIONS)}; "
                f"known are {', '.join(MEDIA_OPTIONS)}"
            )
        whole = MEDIA_OPTIONS[name] is int
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0 or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"the media option {name}={value!r} is not {kind} from 0 on")
