"""The shared data of claims about sums: sums of two digits, in pictures and text, and starts.

Digits 0 to 4. A picture has two scans side by side; a text has the digits.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

from PIL import Image

from mmr1.config.file import load_config
from mmr1.trainer.train import run_training
from mmr1.types import MediaRef, Sample
from scripts.claims.start.start import DIGITS
from scripts.claims.tasks import WORDS, Scan, Splits, build_once, question, scans
from scripts.claims.training import newest, taught

SFT = Path(__file__).with_name("sft.yaml")
GRPO = SFT.parents[1] / "text_first/rl.yaml"
ON_TEXT = 24
"""Steps of the arm that has text first."""
SIZES = {"sft": 60, "rl": 480, "eval": 500}
TEXTS_SHOWN = 10
"""Of the 25 pairs of digits, those whose sum in text has a demonstration."""


def prepared(start: Path, seed: int) -> tuple[Path, Path]:
    """Data and the cold start of a seed, shared by the claims about sums."""
    folder = start.parent / "sums"
    data = build_once(folder / "data", partial(build, start, seed))
    return data, taught(SFT, folder / "sft", newest(start / "sft"), data, seed)


def read_in_text(start: Path, seed: int) -> None:
    """Train on the sums in text by GRPO, from the cold start of a seed: ``sums/text``."""
    data, model = prepared(start, seed)
    own = [
        *(f"model.path={model}", f"seed={seed}", f"data.train={data / 'text.jsonl'}"),
        *(f"data.media_root={data}", f"trainer.output_dir={data.parent / 'text'}"),
        *(f"trainer.max_steps={ON_TEXT}", "trainer.validation=null"),
    ]
    run_training(load_config(GRPO, own), resume=True)


def build(start: Path, seed: int, folder: Path) -> Splits:
    """``sft`` of both kinds; ``rl`` and ``eval`` of pictures; ``text`` of all sums in text."""
    rng = Random(seed)
    splits: dict[str, list[Sample]] = {}
    for split, size in SIZES.items():
        pool = scans(start, split)
        splits[split] = [
            in_picture(folder, split, number, *rng.choices(pool, k=2)) for number in range(size)
        ]
    pairs = [(a, b) for a in map(int, DIGITS) for b in map(int, DIGITS)]
    rng.shuffle(pairs)
    splits["sft"] += [in_text(*pair, shown=True) for pair in pairs[:TEXTS_SHOWN]]
    splits["text"] = [in_text(*pair) for pair in pairs]
    return splits


def in_picture(folder: Path, split: str, number: int, left: Scan, right: Scan) -> Sample:
    path = folder / f"{split}-{number:04d}.png"
    width, height = left.picture.size
    canvas = Image.new("RGB", (2 * width, height))
    for place, scan in enumerate((left, right)):
        canvas.paste(scan.picture, (place * width, 0))
    canvas.save(path)
    digits = (left.digit, right.digit)
    shown = [MediaRef("image", path, size=canvas.size)]
    text = thought(*digits) if split == "sft" else ""
    name = f"sum-{split}-{number:04d}"
    return question(name, shown, "What is the sum?", sum(digits), text, digits=list(digits))


def in_text(left: int, right: int, shown: bool = False) -> Sample:
    text = thought(left, right) if shown else ""
    name = f"sum-text-{left}-{right}"
    asked = f"What is the sum of {left} and {right}?"
    return question(name, [], asked, left + right, text, digits=[left, right])


def thought(left: int, right: int) -> str:
    return f"{WORDS[left]} and {WORDS[right]} make {left + right}."


def judge(completion: str, sample: Sample) -> list[tuple[int, float]]:
    """Step rewards by rule: each digit that the thought names, then the answer.

    A step ends before ``and``, before ``make``, and with the completion. A digit is worth 1 if its
    step says its word and nothing else, the answer if it is right.
    """
    start = completion.find("<think>") + len("<think>") if "<think>" in completion else 0
    steps: list[tuple[int, float]] = []
    for word, digit in zip((" and ", " make "), sample.meta["digits"], strict=True):
        end = completion.find(word, start)
        if end < 0:
            break
        steps.append((end, float(completion[start:end] == WORDS[digit])))
        start = end + len(word)
    right = f"<answer>{sample.answer}</answer>" in completion
    return [*steps, (len(completion), float(right))]
