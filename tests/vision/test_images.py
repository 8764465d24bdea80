"""Images of every mode, right way up; broken and oversized ones refused from the header."""

from __future__ import annotations

import io
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from mmr1.types import MediaRef
from mmr1.vision.budget import PixelBudget, ScaledFirst
from mmr1.vision.images import check_image, image_size, load_image
from tests.vision.media import SHARED, bomb_png, encoded, noise


def ref(data: bytes, **fields: object) -> MediaRef:
    return MediaRef("image", data=data, **fields)


def colour(image: Image.Image, at: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
    assert image.mode == "RGB"
    return image.getpixel(at)


def test_transparency_lies_on_white() -> None:
    clear = Image.new("RGBA", (30, 30), (0, 0, 0, 0))
    half = Image.new("RGBA", (30, 30), (255, 0, 0, 128))
    assert colour(load_image(ref(encoded(clear)))) == (255, 255, 255)
    assert colour(load_image(ref(encoded(half)))) == (255, 127, 127)
    grey = Image.merge("LA", (Image.new("L", (30, 30), 0), Image.new("L", (30, 30), 0)))
    assert colour(load_image(ref(encoded(grey)))) == (255, 255, 255)


def test_palettes_and_colour_keys() -> None:
    palette = Image.new("P", (30, 30), 1)
    palette.putpalette([0, 0, 0, 10, 200, 30])
    assert colour(load_image(ref(encoded(palette)))) == (10, 200, 30)
    assert colour(load_image(ref(encoded(palette, transparency=1)))) == (255, 255, 255)
    rgb = Image.new("RGB", (30, 30), (1, 2, 3))
    assert colour(load_image(ref(encoded(rgb, transparency=(1, 2, 3))))) == (255, 255, 255)


def test_one_bit_cmyk_and_sixteen_bits() -> None:
    assert colour(load_image(ref(encoded(Image.new("1", (30, 30), 1))))) == (255, 255, 255)
    ink = Image.new("CMYK", (30, 30), (0, 255, 255, 0))
    red = colour(load_image(ref(encoded(ink, "JPEG", quality=100))))
    assert red[0] > 250
    assert max(red[1:]) < 6
    for value, expected in ((32768, 128), (65535, 255)):
        deep = Image.fromarray(np.full((30, 30), value, np.uint16))
        assert colour(load_image(ref(encoded(deep)))) == (expected,) * 3
    floating = Image.fromarray(np.full((30, 30), 0.5, np.float32))
    with pytest.raises(ValueError, match="mode F"):
        load_image(ref(encoded(floating, "TIFF")))


def with_significant_bits(png: bytes, bits: int) -> bytes:
    """The picture with an sBIT chunk behind its header, which ends at byte 33."""
    chunk = b"sBIT" + bytes([bits])
    return png[:33] + struct.pack(">I", 1) + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[33:]


@given(st.integers(1, 0xFFFF), st.none() | st.integers(1, 16))
def test_sixteen_bits_are_scaled_by_their_white(most: int, bits: int | None) -> None:
    values = np.linspace(0, most, 64).round().astype(np.uint16)
    png = encoded(Image.fromarray(values.reshape(8, 8)))
    if bits is not None:
        png = with_significant_bits(png, bits)
    shown = np.asarray(load_image(ref(png)))[..., 0].reshape(-1).astype(int)
    stated = (1 << bits) - 1 if bits not in (None, 16) else most
    white = stated if most <= stated <= 0x7FFF else 0xFFFF
    assert np.abs(shown - values * 255.0 / white).max() <= 1
    assert (np.diff(shown) >= 0).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_exif_is_turned_as_pil_turns_it(orientation: int, format: str) -> None:
    image = Image.fromarray(noise(40, 24))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format == "WEBP" else {}
    data = encoded(image, format, exif=exif, **options)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    turned = load_image(ref(data))
    assert turned.tobytes() == expected.tobytes()
    assert image_size(ref(data)) == turned.size == ((24, 40) if orientation >= 5 else (40, 24))


def test_a_stated_size_is_checked() -> None:
    data = encoded(Image.fromarray(noise(40, 24)))
    assert load_image(ref(data, size=(40, 24))).size == (40, 24)
    with pytest.raises(ValueError, match="the record states 24x40 pixels, the image has 40x24"):
        load_image(ref(data, size=(24, 40)))


RED_WEBP = "524946461c000000574542505650384c0f0000002f0fe7c9080710fd8ffe0722a2ff0100"
"""10000x9000 pixels of one colour, whole."""
BROKEN = {
    "empty": (b"", "not an image"),
    "text": (b"certainly no picture", "not an image"),
    "cut off": (encoded(Image.fromarray(noise(200, 200)))[:5000], "cut|truncated"),
    "cut off jpeg": (encoded(Image.fromarray(noise(200, 200)), "JPEG")[:5000], "truncated"),
    "bomb": (bomb_png(50_000, 50_000), "more than 80,000,000 pixels"),
    "smaller bomb": (bomb_png(9_000, 9_000), "more than 80,000,000 pixels"),
    "webp bomb": (bytes.fromhex(RED_WEBP), "more than 80,000,000 pixels"),
    "no pixels": (bomb_png(100, 100), "truncated|cut"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_images_are_refused_at_once(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    start = time.perf_counter()
    with pytest.raises(ValueError, match=message) as caught:
        load_image(MediaRef("image", path))
    assert time.perf_counter() - start < 1
    assert str(caught.value).startswith(str(path))


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.png: cannot be read: No such file"):
        load_image(MediaRef("image", tmp_path / "none.png"))


def test_a_picture_that_is_scaled_first_is_resized_twice() -> None:
    image = Image.fromarray(noise(300, 200))
    for name, limits, once, kind in (
        ("easyr1", (262144, None), (627, 418), Image.Resampling.BICUBIC),
        ("llama_factory", (None, 30000), (212, 141), Image.Resampling.NEAREST),
    ):
        budget = PixelBudget(3136, 12_845_056, first=ScaledFirst(name, *limits))
        found = load_image(ref(encoded(image)), budget)
        wanted = image.resize(once, kind).resize(found.size, Image.Resampling.BICUBIC)
        assert np.array_equal(found, wanted)
        assert found.size[0] % 28 == found.size[1] % 28 == 0


def test_size_is_read_without_decoding_a_pixel() -> None:
    data = encoded(Image.fromarray(noise(60, 40)))
    assert image_size(ref(data[:100])) == (60, 40)


@pytest.mark.skipif(SHARED is None, reason="no sample data beside this checkout")
def test_every_sample_image_loads() -> None:
    """Real files: RGBA, palette, grey, 1-bit, 17 pixels wide; blank where they are blank."""
    paths = [p for p in (SHARED / "samples").rglob("*") if p.suffix in (".png", ".jpg")]
    assert len(paths) > 40
    for path in paths:
        image = load_image(MediaRef("image", path))
        assert image.size == image_size(MediaRef("image", path))
        with Image.open(path) as raw:
            if raw.mode == "RGBA":
                alpha = np.asarray(raw)[..., 3]
                assert (np.asarray(image)[alpha == 0] == 255).all()


@pytest.mark.parametrize(
    "options",
    [{}, {"lossless": True}, {"exif": Image.Exif()}],
    ids=["plain", "lossless", "exif"],
)
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_webp_heads_of_all_three_kinds(options: dict[str, object], mode: str) -> None:
    for size in ((1, 1), (17, 300), (640, 33)):
        data = encoded(Image.new(mode, size, "red"), "WEBP", **options)
        assert image_size(ref(data)) == load_image(ref(data)).size == size


@pytest.mark.parametrize("format", ["AVIF", "JPEG2000"])
def test_newer_formats(format: str) -> None:
    picture = Image.fromarray(noise(120, 80))
    data = encoded(picture, format)
    assert image_size(ref(data)) == (120, 80)
    assert np.array_equal(load_image(ref(data)), Image.open(io.BytesIO(data)).convert("RGB"))


HEIC_HEAD = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


def test_heic_says_what_reads_it() -> None:
    try:
        import pillow_heif
    except ImportError:
        for read in (load_image, image_size):
            with pytest.raises(ValueError, match=r"HEIC.*pip install 'mmr1\[heic\]', or convert"):
                read(ref(HEIC_HEAD))
        return
    buffer = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(noise(120, 80))).save(buffer, quality=95)
    data = buffer.getvalue()
    assert image_size(ref(data)) == (120, 80)
    shown = pillow_heif.open_heif(data).to_pillow().convert("RGB")
    assert np.array_equal(load_image(ref(data)), shown)
    with pytest.raises(ValueError, match=r"<image in the record>"):
        load_image(ref(HEIC_HEAD))


def verdict(read, data: bytes) -> object:
    try:
        return read(ref(data))
    except ValueError as error:
        return str(error)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_is_checked_as_it_is_loaded(mode: str, progressive: bool) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(noise(90, 70)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", progressive=progressive, exif=exif, quality=60)
    whole = buffer.getvalue()
    cut = [whole[:end] for end in rng.integers(2, len(whole), 40)]
    hit = []
    for place in rng.integers(2, len(whole) - 4, 60):
        data = bytearray(whole)
        data[place : place + 4] = rng.bytes(4)
        hit.append(bytes(data))
    verdicts = [verdict(check_image, data) for data in (whole, *cut, *hit)]
    assert verdicts == [verdict(lambda r: load_image(r).size, data) for data in (whole, *cut, *hit)]
    assert verdicts[0] == (70, 90)
    assert any(isinstance(found, str) for found in verdicts)
    with pytest.raises(ValueError, match=r"states 1x2 pixels"):
        check_image(ref(whole, size=(1, 2)))


def test_other_formats_are_checked_as_they_are_loaded() -> None:
    for format in ("PNG", "WEBP", "GIF", "BMP"):
        data = encoded(Image.fromarray(noise(30, 20)), format)
        for part in (data, data[: len(data) // 2]):
            assert verdict(check_image, part) == verdict(lambda r: load_image(r).size, part)
