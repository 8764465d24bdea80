"""Pictures and videos as tools take them, and what tools return as JSON.

Imports no torch: tools run in small processes.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from PIL import Image

from mmr1.boxes import Box, SpaceName, check_inside, pixels, to_original
from mmr1.types import MediaRef
from mmr1.vision.containers import open_video
from mmr1.vision.images import load_image, to_rgb

MAX_PARTS = 256
"""Texts and pictures in one answer."""


@dataclass(frozen=True)
class Picture:
    """A picture of the conversation.

    Attributes:
        image: Image with its own pixels, however small the model saw it.
        seen: ``(width, height)`` that the model saw.
        space: Space of a box's numbers (``environment.boxes``); None where it is not known.
    """

    image: Image.Image
    seen: tuple[int, int]
    space: SpaceName | None

    def box(self, numbers: Sequence[float]) -> Box:
        """A box of the policy as ``xyxy`` in the picture's own pixels, inside it.

        Raises:
            ValueError: If the numbers are not a box, the box leaves the image, or the space is not
                known.
        """
        if self.space is None:
            raise ValueError("the space of the model's boxes is not known; set environment.boxes")
        if not isinstance(numbers, list | tuple) or len(numbers) != 4:
            raise ValueError(f"{numbers!r} is not a box [x1, y1, x2, y2]")
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
            raise ValueError(f"{numbers!r} is not a box of four numbers")
        size = self.image.size
        x1, y1, x2, y2 = to_original(tuple(numbers), self.space, size, self.seen)
        return check_inside((x1, y1, x2, y2), pixels(*size), tolerance=max(size))


class Video(bytes):
    """An encoded video file."""

    def frames(self, seconds: Sequence[float]) -> list[Image.Image]:
        """The frames shown at these times, in ascending order of time.

        Raises:
            ValueError: The video cannot be read, or a time is outside of it.
        """
        import av

        try:
            with open_video(self) as container:
                return list(_frames(container, sorted(seconds)))
        except av.FFmpegError as error:
            raise ValueError(f"the video cannot be read: {error}") from error


def _frames(container: Any, seconds: Sequence[float]) -> Iterator[Image.Image]:
    """Each time's frame: the last one that began by then."""
    last, remaining = None, list(seconds)
    if remaining and not (math.isfinite(remaining[0]) and remaining[0] >= 0):
        raise ValueError(f"{remaining[0]!r} is not a time in the video")
    stream = container.streams.video[0]
    start, end = None, 0.0
    for frame in container.decode(stream):
        start = frame.time if start is None else start
        now = frame.time - start
        while last is not None and remaining and now > remaining[0]:
            yield last.to_image()
            remaining.pop(0)
        if not remaining:
            return
        last, end = frame, now + float(1 / (stream.average_rate or 25))
    for time in remaining:
        if last is None or time > end:
            raise ValueError(f"the video ends after {end:.1f} s, before {time:g} s")
        yield last.to_image()


def picture(data: bytes, seen: Sequence[int], space: SpaceName | None) -> Picture:
    """A picture from its encoded bytes. Raises ValueError if it cannot be decoded."""
    width, height = seen
    return Picture(load_image(MediaRef("image", data=data)), (width, height), space)


def to_parts(value: Any, max_pixels: int, max_characters: int) -> list[dict[str, str]]:
    """The result of a tool as JSON: ``{"text": ...}`` and ``{"image": base64 of a PNG}``.

    Text is returned as it is, numbers and dictionaries as JSON, pictures (also :class:`Picture`) as
    pictures, and lists of any of these in their order. ``{"type": "text", "text": ...}`` is its
    text, and with ``image`` its picture.

    Texts after the one that was cut are left out.

    Raises:
        ValueError: If the result is none of these, or a list of more than ``MAX_PARTS``.
    """
    values = list(islice(_flat(value), MAX_PARTS + 1))
    if len(values) > MAX_PARTS:
        raise ValueError(f"it returned more than {MAX_PARTS} texts and pictures")
    parts = []
    left = max_characters
    for part in (_part(v, max_pixels) for v in values):
        text = part.get("text", "")
        if len(text) > left >= 0:
            part["text"] = f"{text[:left]}... (cut: {len(text):,} characters)"
        if left >= 0 or not text:
            parts.append(part)
        left -= len(text)
    return parts


def _flat(value: Any) -> Iterator[Any]:
    value = _of_block(value)
    mixed = isinstance(value, list | tuple)
    if mixed and any(isinstance(_of_block(v), str | Image.Image | Picture) for v in value):
        for inner in value:
            yield from _flat(inner)
    elif value is not None:
        yield value


def _of_block(value: Any) -> Any:
    """The text or the picture of a content block, as TRL's tools return them."""
    kinds = {"text": str, "image": Image.Image}
    for kind, expected in kinds.items():
        if isinstance(value, dict) and value.get("type") == kind and set(value) == {"type", kind}:
            return value[kind] if isinstance(value[kind], expected) else value
    return value


def _part(value: Any, max_pixels: int) -> dict[str, str]:
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, Image.Image | Picture):
        image = value if isinstance(value, Image.Image) else value.image
        return {"image": base64.b64encode(png(_within(to_rgb(image), max_pixels))).decode()}
    try:
        return {"text": json.dumps(value)}
    except (TypeError, ValueError, RecursionError):
        raise ValueError(
            f"it returned a {type(value).__name__}, which is not text, picture or JSON value"
        ) from None


def _within(image: Image.Image, max_pixels: int) -> Image.Image:
    """The picture, scaled down if it has more pixels."""
    ratio = math.sqrt(max_pixels / (image.width * image.height))
    if ratio >= 1:
        return image
    size = (max(1, int(image.width * ratio)), max(1, int(image.height * ratio)))
    return image.resize(size, Image.Resampling.BICUBIC)


def png(image: Image.Image) -> bytes:
    """The picture, encoded as PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
