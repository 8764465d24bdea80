"""Scans of digits, and the held-out ones in other looks too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from PIL import Image, ImageChops, ImageOps

from mmr1.types import MediaRef, Sample
from scripts.claims.tasks import WORDS, Splits, question, scans

QUESTION = "Which digit is this?"
Look = Callable[[Image.Image, Random], Image.Image]


def plain(picture: Image.Image, rng: Random) -> Image.Image:
    """White ink on black, as in training."""
    return picture


def small(picture: Image.Image, rng: Random) -> Image.Image:
    """Four fifths of the size, anywhere in the picture."""
    canvas, side = Image.new("RGB", picture.size), round(0.8 * picture.width)
    place = tuple(rng.randint(0, picture.width - side) for _ in range(2))
    canvas.paste(picture.resize((side, side)), (place[0], place[1]))
    return canvas


def coloured(picture: Image.Image, rng: Random) -> Image.Image:
    """Ink of a light colour on a ground of a dark one."""
    ground = tuple(rng.randint(0, 110) for _ in range(3))
    ink = tuple(rng.randint(145, 255) for _ in range(3))
    return ImageOps.colorize(picture.convert("L"), ground, ink)


def noisy(picture: Image.Image, rng: Random) -> Image.Image:
    """Grey noise all over, up to two fifths of the ink."""
    dots = Image.frombytes("L", picture.size, rng.randbytes(picture.width * picture.height))
    return ImageChops.add(picture, dots.point(lambda value: value * 2 // 5).convert("RGB"))


LOOKS: dict[str, Look] = {"plain": plain, "small": small, "coloured": coloured, "noisy": noisy}


def build(start: Path, seed: int, folder: Path) -> Splits:
    """Equal scans for both arms, for SFT with demonstrations; those held out in every look."""
    rng = Random(seed)
    (folder / "images").mkdir()
    splits: dict[str, list[Sample]] = {"sft": [], "rl": [], "eval": []}
    for number, scan in enumerate(scans(start, "rl")):
        seen = saved(folder, f"plain-rl-{number:04d}", scan.picture)
        thought = f"The digit is {WORDS[scan.digit]}."
        splits["rl"].append(question(*seen, QUESTION, scan.digit))
        splits["sft"].append(question(*seen, QUESTION, scan.digit, thought))
    for number, scan in enumerate(scans(start, "eval")):
        for look, drawn in LOOKS.items():
            seen = saved(folder, f"{look}-eval-{number:04d}", drawn(scan.picture, rng))
            splits["eval"].append(question(*seen, QUESTION, scan.digit, look=look))
    return splits


def saved(folder: Path, name: str, picture: Image.Image) -> tuple[str, list[MediaRef]]:
    path = folder / "images" / f"{name}.png"
    picture.save(path)
    return name, [MediaRef("image", path, size=picture.size)]
