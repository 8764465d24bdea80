"""Media that the tests make themselves."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import av
import numpy as np
from PIL import Image

from mmr1.types import MediaRef

SHARED = next(
    (p / "shared" for p in Path(__file__).resolve().parents if (p / "shared/samples").is_dir()),
    None,
)
"""Real sample rows, where the checkout lies beside them."""


def noise(width: int, height: int, seed: int = 0) -> np.ndarray:
    """``[height, width, 3]``: smooth colours with noise on them, so that resizing shows."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 1, width)[None, :, None] * np.linspace(0.2, 1, height)[:, None, None]
    return (255 * (0.6 * ramp + 0.4 * rng.random((height, width, 3)))).astype(np.uint8)


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def pixels(image: MediaRef) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(image.read())))


def write_video(
    path: Path,
    frames: int = 20,
    width: int = 64,
    height: int = 48,
    fps: int = 10,
    codec: str = "libx264",
    still: bool = False,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """A moving bright bar, or a still picture."""
    with av.open(str(path), "w", options=dict(options)) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(frames):
            picture = np.zeros((height, width, 3), np.uint8)
            left = 0 if still else index * (width - 8) // max(frames - 1, 1)
            picture[:, left : left + 8] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def bomb_png(width: int, height: int) -> bytes:
    """A PNG whose header claims any size, with next to nothing behind it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


DIGITS = 8
"""Binary digits of the number that ``write_numbered`` draws into a frame."""


def write_numbered(
    path: Path,
    codec: str = "libx264",
    times: Sequence[float] = tuple(i / 25 for i in range(60)),
    size: tuple[int, int] = (224, 56),
    pix_fmt: str = "yuv420p",
    options: Mapping[str, str] = MappingProxyType({}),
    rotation: int = 0,
    **codec_context: int,
) -> Path:
    """Frames that are shown at ``times`` (s), each with its number in black and white bars."""
    width, height = size
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        for name, value in codec_context.items():
            setattr(stream.codec_context, name, value)
        even = list(times) == [i / 25 for i in range(len(times))]
        unit = Fraction(1, 25) if even else Fraction(1, 1000)
        stream.codec_context.time_base = unit
        if rotation:
            stream.set_display_rotation(rotation)
        for number, time in enumerate(times):
            picture = np.full((height, width, 3), 128, np.uint8)
            for digit in range(DIGITS):
                bar = slice(digit * width // DIGITS, (digit + 1) * width // DIGITS)
                picture[: height // 2, bar] = 255 * (number >> digit & 1)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pix_fmt)
            frame.time_base, frame.pts = unit, round(time / unit)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def number_in(picture: np.ndarray) -> int:
    """The number in a frame ``[H, W, 3]`` of ``write_numbered``."""
    height, width, _ = picture.shape
    centres = [int((digit + 0.5) * width / DIGITS) for digit in range(DIGITS)]
    return sum(int(picture[height // 4, x].mean() > 128) << n for n, x in enumerate(centres))
