"""Rollouts of one step: mmr1's engines against transformers' ``generate`` and plain vLLM.

    python scripts/bench/rollout.py

21M parameters, 8 prompts with one 280x280 image each, 8 completions of 64 tokens, one thread per
process. ``generate`` and plain vLLM get 64 separate prompts, each with its image. mmr1's engines
get 8 requests for 8 completions. CPU seconds: the minimum of the repeats, after a warm-up.

Then a mixed batch of 64 prompts with one completion each: text, 12-megapixel photographs and
videos, alternating. Wall seconds with media preprocessed before sampling, and during it. Last, the
media of an epoch alone, the first and the second time.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from datasets_prep.generators.video import write_mp4
from mmr1.config import Config, SamplingConfig
from mmr1.rollout.build import build_engine
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.protocol import Request, complete
from mmr1.types import MediaRef, Message, Prompt, Sample, TextPart
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.loading import load_family
from mmr1.vision.families.tiny import new_model
from mmr1.vision.prepare import MediaCache

TOKENS = 64


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--pixels", type=int, default=280)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = Path(tempfile.mkdtemp(prefix="mmr1-bench-"))
    new_model(folder / "model", "20m")
    family = load_family(str(folder / "model"))
    model = AutoModelForImageTextToText.from_pretrained(folder / "model", dtype=torch.float32)
    prompts = [noise_prompt(family, folder, i, args.pixels) for i in range(args.prompts)]
    media = MediaCache(family.prepare_media)
    sampling = SamplingConfig(max_tokens=TOKENS)
    # A random model may end early, so the end-of-sequence token is forbidden.
    endless = dataclasses.replace(family, stop_ids=())

    grouped = [Request(p, tuple(range(i, i + args.n)), sampling) for i, p in enumerate(prompts)]
    apart = [Request(p, (i,), sampling) for i, p in enumerate(prompts * args.n)]
    hf = HfEngine(model, endless, media)
    plain = partial(_generate, model, family, prompts, args.n)
    rows = [
        _row("transformers generate", args.repeats, plain),
        _row("mmr1, transformers engine", args.repeats, partial(complete, hf, grouped)),
    ]
    config = Config.model_validate(
        {
            "model": {"path": str(folder / "model"), "dtype": "float32"},
            "rollout": {"max_prompt_length": 1024 - TOKENS, "max_response_length": TOKENS},
            "trainer": {"threads": args.threads},
        }
    )
    engine = build_engine(config, family, media, folder / "engine.log", None)
    # Every step has new weights, so the caches of the previous step are dropped.
    renew = partial(engine.load, model.state_dict(), 1)
    for name, requests in (("vLLM, a prompt a completion", apart), ("mmr1, vLLM engine", grouped)):
        run = partial(complete, engine, requests)
        rows.append(_row(name, args.repeats, run, renew))
    engine.close()
    mixed = _mixed(config, family, folder, sampling)
    common.table(mixed)
    for row in rows:
        row["generate / this"] = rows[0]["CPU s"] / row["CPU s"]
    common.table(rows)
    common.save(args.output, "rollout", {"rows": rows, "mixed": mixed})


def noise_prompt(family: ModelFamily, folder: Path, seed: int, pixels: int) -> Prompt:
    """A random picture of ``pixels`` by ``pixels``, and a question."""
    path = folder / f"{seed}.png"
    noise = np.random.default_rng(seed).integers(0, 255, (pixels, pixels, 3), np.uint8)
    Image.fromarray(noise).save(path)
    parts = (MediaRef("image", path), TextPart("How many shapes are there?"))
    return family.render_prompt(Sample(str(seed), (Message("user", parts),)))


def _mixed(
    config: Config, family: ModelFamily, folder: Path, sampling: SamplingConfig
) -> list[dict[str, Any]]:
    """Wall seconds of the mixed batch, with media preprocessed before or during sampling."""
    samples = [_sample(folder, i) for i in range(64)]
    refs = [m for sample in samples for m in sample.media]
    requests = [Request(family.render_prompt(s), (i,), sampling) for i, s in enumerate(samples)]
    measured = []
    for name, at_once in (("media first", True), ("media meanwhile", False)):
        own = config.changed(full_determinism=at_once)
        media = MediaCache(family.prepare_media)
        engine = build_engine(own, family, media, folder / "mixed.log", None)
        complete(engine, requests[:1])
        begin = time.perf_counter()
        complete(engine, requests)
        measured.append({"run": f"mixed batch, {name}", "wall s": time.perf_counter() - begin})
        engine.close()
    media = MediaCache(family.prepare_media)
    for epoch in ("first", "second"):
        begin = time.perf_counter()
        for ref in refs:
            media[ref]
        measured.append({"run": f"media, {epoch} epoch", "wall s": time.perf_counter() - begin})
    return measured


def _sample(folder: Path, number: int) -> Sample:
    """Text, a large photograph or a video, alternating."""
    text = TextPart("What is there to see?")
    rng = np.random.default_rng(number)
    if number % 3 == 0:
        return Sample(f"mixed {number}", (Message("user", (text,)),))
    if number % 3 == 1:
        path = folder / f"large-{number}.jpg"
        rough = Image.fromarray(rng.integers(0, 255, (150, 200, 3), np.uint8))
        rough.resize((4000, 3000)).save(path)
        ref = MediaRef("image", path, options={"max_pixels": 256 * 784})
    else:
        path = folder / f"{number}.mp4"
        write_mp4(path, rng.integers(0, 255, (16, 224, 224, 3), np.uint8), 4)
        ref = MediaRef("video", path, options={"max_frames": 8})
    return Sample(f"mixed {number}", (Message("user", (ref, text)),))


def _row(
    name: str, repeats: int, run: Callable[[], Any], before: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    measured: list[tuple[float, float]] = []
    tokens = None
    for _ in range(repeats + 1):
        before()
        cpu, begin = common.cpu_seconds(), time.perf_counter()
        groups = run()
        measured.append((common.cpu_seconds() - cpu, time.perf_counter() - begin))
        if groups is not None:
            tokens = sum(len(c.token_ids) for g in groups for c in g.completions)
    least = min(measured[1:])
    return {"run": name, "CPU s": least[0], "wall s": least[1], "tokens": tokens}


@torch.no_grad()
def _generate(model: Any, family: ModelFamily, prompts: list[Any], n: int) -> None:
    """Generate as trainers without vLLM do: every row with its own copy of prompt and picture."""
    rows = prompts * n
    images = [[Image.open(p.media[0].path).convert("RGB")] for p in rows]
    batch = family.processor(
        text=[p.text for p in rows],
        images=images,
        return_tensors="pt",
        padding_side="left",
        padding=True,
    )
    model.generate(
        **batch,
        do_sample=True,
        min_new_tokens=TOKENS,
        max_new_tokens=TOKENS,
        suppress_tokens=list(family.forbidden_ids),
    )


if __name__ == "__main__":
    main()
