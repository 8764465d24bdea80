"""Media that the tests make themselves."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import av
import numpy as np
from PIL import Image

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


def write_video(
    path: Path,
    frames: int = 20,
    width: int = 64,
    height: int = 48,
    fps: int = 10,
    codec: str = "libx264",
    still: bool = False,
) -> Path:
    """A moving bright bar, or a still picture."""
    with av.open(str(path), "w") as container:
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
