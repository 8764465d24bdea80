"""Images: the size from the header, the pixels late, always upright RGB on white.

The size of a WebP image is read here: PIL allocates the whole canvas when it opens such a file,
which is slow for a dataset and fatal for a header that claims 16,383 x 16,383 pixels.
"""

from __future__ import annotations

import base64
import io
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

# The last two register their formats.
from PIL import Image, ImageOps, TiffImagePlugin, WebPImagePlugin

from mmr1.types import MediaRef
from mmr1.vision.budget import PixelBudget, ScaledFirst, fit_size
from mmr1.vision.views import altered

logger = logging.getLogger(__name__)

MAX_PIXELS = 80_000_000
"""Larger images are refused from their header. Below the number from which PIL itself warns."""

# Formats with a plain decoder; PIL would hand EPS to Ghostscript, for one.
FORMATS = (
    "PNG",
    "JPEG",
    WebPImagePlugin.WebPImageFile.format,
    "BMP",
    "GIF",
    "TIFF",
    "PPM",
    "AVIF",
    "JPEG2000",
)
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""What follows ``ftyp`` at the beginning of a HEIC file."""

_ORIENTATION = 0x0112
_QUARTER_TURNS = frozenset({5, 6, 7, 8})


def load_image(ref: MediaRef, budget: PixelBudget | None = None) -> Image.Image:
    """Decode an image: mode RGB, EXIF orientation applied, transparency on white.

    Of an animated image the first frame is taken.

    Args:
        ref: The image.
        budget: Resize to this budget (and to the budgets in ``ref.options``) the way qwen-vl-utils
            does; every engine's own processor then leaves the pixels as they are. Options may ask
            for another view of them: :func:`mmr1.vision.views.altered`.

    Raises:
        ValueError: Names the file: it cannot be read or decoded, is larger than
            :data:`MAX_PIXELS`, or its size is not the one that the record states.
    """
    with _opened(ref) as image:
        # Asked of the header first, as for the size: see _orientation.
        upright = ImageOps.exif_transpose(image) if _orientation(image) != 1 else image
        pixels = to_rgb(upright)
    _check_stated(ref, pixels.size)
    if budget is not None:
        pixels = _fitted(pixels, ref, budget)
    if ref.options:
        pixels = Image.fromarray(altered(np.asarray(pixels), ref.options))
    return pixels


def check_image(ref: MediaRef) -> tuple[int, int]:
    """``(width, height)`` of an image that :func:`load_image` decodes.

    Of a JPEG all data are decoded, but only an eighth of the rows and columns become pixels. That
    takes a third of the time.

    Raises:
        ValueError: If :func:`load_image` raises it.
    """
    with _opened(ref) as image:
        plain = image.format == "JPEG" and image.mode in ("L", "RGB")
        if plain:
            size = image.size[::-1] if _orientation(image) in _QUARTER_TURNS else image.size
            image.draft("L", (1, 1))
            image.load()
    if not plain:
        return load_image(ref).size
    _check_stated(ref, size)
    return size


def _check_stated(ref: MediaRef, size: tuple[int, int]) -> None:
    if ref.size is not None and size != tuple(ref.size):
        raise ValueError(
            f"{ref}: the record states {ref.size[0]}x{ref.size[1]} pixels, the image has "
            f"{size[0]}x{size[1]}; correct width and height, or the file"
        )


def load_grey(ref: MediaRef, side: int) -> Image.Image:
    """The brightness of an image, upright, to compare it with others: mode L.

    Args:
        ref: The image.
        side: Pixels of the shorter side that are enough. A JPEG is decoded at an eighth, a quarter
            or half of its size if that leaves as many.

    Raises:
        ValueError: If :func:`load_image` raises it, but the stated size is not checked.
    """
    with _opened(ref) as image:
        orientation = _orientation(image)
        image.draft("L", (side, side))
        upright = ImageOps.exif_transpose(image) if orientation != 1 else image
        if upright.mode == "L" and "transparency" not in upright.info:
            return upright.copy()
        return to_rgb(upright).convert("L")


def _fitted(image: Image.Image, ref: MediaRef, budget: PixelBudget) -> Image.Image:
    try:
        budget = budget.of(ref.options)
        size = fit_size(*image.size, budget)
    except ValueError as error:
        raise ValueError(f"{ref}: {error}") from error
    if budget.first is not None:
        image = _scaled(image, budget.first)
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def _scaled(image: Image.Image, limits: ScaledFirst) -> Image.Image:
    nearest, bicubic = Image.Resampling.NEAREST, Image.Resampling.BICUBIC
    for size in limits.sizes(*image.size):
        image = image.resize(size, bicubic if limits.as_in == "easyr1" else nearest)
    return image


def image_size(ref: MediaRef) -> tuple[int, int]:
    """``(width, height)`` of the upright image, read from the header: no pixel is decoded.

    Raises:
        ValueError: If :func:`load_image` raises it, as far as the header shows it.
    """
    with _opened(ref, header=True) as image:
        width, height = image.size
        return (height, width) if _orientation(image) in _QUARTER_TURNS else (width, height)


def size_of_all(frames: Sequence[Path]) -> tuple[int, int]:
    """``(width, height)`` of the frames of a video.

    Raises:
        ValueError: If a frame has another size than the first.
    """
    first, *others = frames
    width, height = image_size(MediaRef("image", first))
    for frame in others:
        size = image_size(MediaRef("image", frame))
        if size != (width, height):
            raise ValueError(
                f"{frame} is {size[0]}x{size[1]} pixels and {first} {width}x{height}; "
                "make all frames of a video the same size"
            )
    return width, height


def data_url(ref: MediaRef) -> str:
    """The encoded bytes of an image as a data URL that names their format.

    Raises:
        ValueError: If :func:`load_image` raises it, as far as the header shows it.
    """
    with _opened(ref, header=True) as image:
        kind = Image.MIME[str(image.format)]
        return f"data:{kind};base64,{base64.b64encode(ref.read()).decode()}"


@contextmanager
def _opened(ref: MediaRef, header: bool = False) -> Iterator[Image.Image]:
    """The lazily opened image, its size within the cap; decoding errors inside name the file.

    Args:
        ref: The image.
        header: No pixel will be asked for, so that the file need not be read as a whole.
    """
    try:
        content = ref.data if header else _content(ref)
        start = _start(ref) if content is None else content[:_START]
        source = ref.path if content is None else io.BytesIO(content)
        assert source is not None
        with Image.open(source, formats=_formats(start)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(_too_large(image.size))
            if image.mode.startswith("I"):
                image.info[_WHITE] = _stated_white(image)
            yield image
    except Image.DecompressionBombError as error:
        raise ValueError(f"{ref}: more than {MAX_PIXELS:,} pixels ({error})") from None
    except Image.UnidentifiedImageError:
        raise ValueError(f"{ref}: not an image ({', '.join(FORMATS)})") from None
    except OSError as error:
        raise ValueError(f"{ref}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # PIL's decoders raise every kind of error on broken files
        raise ValueError(f"{ref}: {error or type(error).__name__}") from error


def _content(ref: MediaRef) -> bytes | None:
    """The encoded bytes, read in one call; None for a large file, whose header goes first."""
    if ref.data is None:
        assert ref.path is not None
        with open(ref.path, "rb", buffering=0) as file:  # noqa: PTH123 - for every medium
            if os.fstat(file.fileno()).st_size > _AT_ONCE:
                return None
            return file.readall()
    return ref.data


_AT_ONCE = 16 << 20


def _start(ref: MediaRef) -> bytes:
    """The first bytes, which tell the format."""
    if ref.data is not None:
        return ref.data[:_START]
    assert ref.path is not None
    with open(ref.path, "rb", buffering=0) as file:  # noqa: PTH123 - for every medium
        return file.read(_START)


_START = 64


def _formats(start: bytes) -> tuple[str, ...]:
    """``FORMATS``, and HEIC for a file that begins like one."""
    if not is_heic(start):
        return FORMATS
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise ValueError(
            "a HEIC image, which only pillow-heif reads: pip install 'mmr1[heic]', or convert the "
            "file to JPEG"
        ) from None
    register_heif_opener()
    return (*FORMATS, "HEIF")


def is_heic(start: bytes) -> bool:
    """True for pictures as iPhones store them, by the first 64 bytes."""
    # AVIF may have the brand of the container too, with its own among the compatible ones.
    return start[4:8] == b"ftyp" and start[8:12] in HEIC_BRANDS and b"avif" not in start


def _too_large(size: tuple[int, int]) -> str:
    return (
        f"{size[0]}x{size[1]} by its header, more than {MAX_PIXELS:,} pixels; scale it down first"
    )


def _orientation(image: Image.Image) -> int:
    if image.format == TiffImagePlugin.TiffImageFile.format:
        return 1  # PIL turns these itself
    # PIL decodes a whole PNG in search of an EXIF chunk behind the pixels; only the header counts.
    if image.format == "PNG" and not {"exif", "Raw profile type exif"} & image.info.keys():
        return 1
    return image.getexif().get(_ORIENTATION, 1)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any PIL mode to RGB, transparency composited on white. Decodes the image.

    Raises:
        ValueError: A mode without a defined brightness (floating point, LAB).
    """
    if image.mode.startswith("I"):
        return _from_16_bit(image)
    if image.mode in ("F", "LAB", "HSV"):
        raise ValueError(f"images of mode {image.mode} have no defined colours; convert it first")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB") if image.mode != "RGB" else image.copy()


def _from_16_bit(image: Image.Image) -> Image.Image:
    """Convert 16-bit grey to 8 bits, whose white is the stated one; PIL's own clips at 255.

    Depth and medical pictures use few of the bits. Where nothing states how many, their largest
    value is white, if it is below half of what 16 bits hold.
    """
    values = np.asarray(image)
    least, most = int(values.min()), int(values.max())
    if least < 0 or most > 0xFFFF:
        raise ValueError("grey values beyond 16 bits; convert it to 8 or 16 bits first")
    white = image.info.get(_WHITE) or most
    if not most <= white <= 0x7FFF or not white:
        white = 0xFFFF
    else:
        _say_scaled()
    levels = np.arange(0x10000, dtype=np.uint32)
    shown = levels >> 8 if white == 0xFFFF else (levels * 255 + white // 2) // white
    grey = Image.fromarray(shown.clip(0, 255).astype(np.uint8)[values])
    if isinstance(transparent := image.info.get("transparency"), int):
        alpha = Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8))
        return to_rgb(Image.merge("LA", (grey, alpha)))
    return grey.convert("RGB")


_WHITE = "mmr1 white"
"""Key of the largest value that the file of a 16-bit picture can hold, as it states it."""
_BITS, _LARGEST, _LARGEST_OF_SAMPLE = 258, 281, 341
"""Tags of TIFF."""


def _stated_white(image: Image.Image) -> int | None:
    """The largest value by the file's significant bits (sBIT of PNG) or tags (TIFF)."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        tags = image.tag_v2
        for tag in (_LARGEST, _LARGEST_OF_SAMPLE):
            if value := tags.get(tag):
                return int(value[0] if isinstance(value, tuple) else value)
        return _white_of(tags.get(_BITS, (16,))[0])
    file = getattr(image, "fp", None)
    if image.format != "PNG" or file is None:
        return None
    place, found = file.tell(), None
    file.seek(8)
    while len(head := file.read(8)) == 8 and head[4:] != b"IDAT":
        length = int.from_bytes(head[:4], "big")
        if head[4:] == b"sBIT":
            found = _white_of(max(file.read(length), default=16))
            break
        file.seek(length + 4, io.SEEK_CUR)
    file.seek(place)
    return found


def _white_of(bits: int) -> int | None:
    """The largest value of so many bits; None for all 16, which tells nothing of the values."""
    return (1 << bits) - 1 if 0 < bits < 16 else None


@cache
def _say_scaled() -> None:
    """Say once in a process that 16-bit pictures are scaled."""
    logger.warning(
        "16-bit pictures that use few of their bits are scaled: white is the value that the file "
        "states, or its largest"
    )
