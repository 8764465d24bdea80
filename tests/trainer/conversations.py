"""Conversations with an environment: random tokens, real pictures in them."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mmr1.data.record import write_records
from mmr1.types import Completion, MediaRef, Message, RolloutGroup, Sample, Span, TextPart
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache


def picture(seed: int, width: int = 56, height: int = 84, pixel: int | None = None) -> MediaRef:
    """Random colours; ``pixel`` is the red of one of them."""
    colours = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    if pixel is not None:
        colours[3, 5, 0] = pixel
    file = io.BytesIO()
    Image.fromarray(colours).save(file, "PNG")
    return MediaRef("image", data=file.getvalue())


def brief_model(tiny_model: Path, path: Path) -> Path:
    """One whose turns end after about six tokens, so that conversations have several."""
    shutil.copytree(tiny_model, path)
    file = path / "generation_config.json"
    options = json.loads(file.read_text())
    file.write_text(json.dumps({**options, "eos_token_id": list(range(100, 200))}))
    return path


def write_scans(folder: Path) -> Path:
    """Eight records with a picture each."""
    samples = []
    for number in range(8):
        (folder / f"{number}.png").write_bytes(picture(number).read())
        asked = Message("user", (picture(number), TextPart("Which digit is this?")))
        samples.append(Sample(str(number), (asked,), "7", "math"))
    write_records(folder / "rl.jsonl", samples)
    return folder / "rl.jsonl"


Turns = Sequence[int | list[int | MediaRef]]
"""Numbers of tokens that the policy sampled; in lists, what the environment answered: numbers of
tokens, and pictures."""


def completion(family: ModelFamily, media: MediaCache, turns: Turns, seed: int) -> Completion:
    """A completion of these turns, of random tokens."""
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    spans = []
    for turn in turns:
        before = len(ids)
        shown = []
        for part in turn if isinstance(turn, list) else [turn]:
            if isinstance(part, MediaRef):
                shown.append(part)
                ids += family.expand_placeholders([family.image_id], [media[part]])
            else:
                ids += rng.integers(20, 600, part).tolist()
        role = "tool" if isinstance(turn, list) else "assistant"
        spans.append(Span(role, len(ids) - before, "", tuple(shown)))
    tokens = np.array(ids, dtype=np.int64)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    return Completion(tokens, logprobs, "", False, 0, tuple(spans))


def conversations(
    family: ModelFamily,
    media: MediaCache,
    turns: Sequence[Turns],
    shown: Sequence[MediaRef] = (),
    seed: int = 0,
) -> RolloutGroup:
    """A prompt with these pictures, and a completion for each of ``turns``."""
    message = Message("user", (*shown, TextPart(f"Which digit is number {seed}?")))
    prompt = family.render_prompt(Sample(str(seed), (message,)))
    numbered = enumerate(turns, start=100 * seed)
    return RolloutGroup(prompt, tuple(completion(family, media, t, n) for n, t in numbered))
