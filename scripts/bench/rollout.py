"""Rollouts of one step: our engines against transformers' ``generate`` and against naive vLLM.

    python scripts/bench/rollout.py

21M parameters, 8 prompts with one 280x280 picture each, 8 completions of 64 tokens, one thread a
process. ``generate`` and the naive vLLM get 64 separate prompts, each with its picture; ours get 8
requests for 8 completions. CPU seconds, the least of the repeats after one that is not counted.
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
import psutil
import torch
from matplotlib import pyplot as plt
from PIL import Image
from transformers import AutoModelForImageTextToText

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.engine import Request
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.process import EngineProcess
from mmr1.trainer.build import build_engine
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.families.qwen2_5_vl import Family, load_family, prepare_media, render_prompt
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
    prompts = [_prompt(family, folder, i, args.pixels) for i in range(args.prompts)]
    media = MediaCache(partial(prepare_media, family))
    sampling = SamplingConfig(max_tokens=TOKENS)
    # What a policy would sample seldom ends early, but a random model may: forbid the end.
    endless = dataclasses.replace(family, stop_ids=())

    grouped = [Request(p, args.n, i) for i, p in enumerate(prompts)]
    apart = [Request(p, 1, i) for i, p in enumerate(prompts * args.n)]
    hf = HfEngine(model, endless, media)
    plain = partial(_generate, model, family, prompts, args.n)
    rows = [
        _row("transformers generate", args.repeats, plain),
        _row("mmr1, transformers engine", args.repeats, partial(hf.generate, grouped, sampling)),
    ]
    config = Config.model_validate(
        {
            "model": {"path": str(folder / "model"), "dtype": "float32"},
            "rollout": {"max_model_len": 512},
            "trainer": {"threads": args.threads},
        }
    )
    engine = build_engine(config, family, media, folder / "engine.log", None)
    assert isinstance(engine, EngineProcess)
    # Every step comes with new weights, so nothing is left of the step before.
    renew = partial(engine.load_weights, model.state_dict(), 1)
    for name, requests in (("vLLM, a prompt a completion", apart), ("mmr1, vLLM engine", grouped)):
        run = partial(engine.generate, requests, sampling)
        rows.append(_row(name, args.repeats, run, renew))
    engine.close()
    for row in rows:
        row["generate / this"] = rows[0]["CPU s"] / row["CPU s"]
    common.table(rows)
    figure, axes = plt.subplots(figsize=(6, 2.5))
    axes.barh([str(row["run"]) for row in rows][::-1], [row["CPU s"] for row in rows][::-1])
    axes.set_xlabel("CPU seconds of a step's rollout")
    common.save(args.output, "rollout", {"rows": rows}, figure)


def _prompt(family: Family, folder: Path, seed: int, pixels: int) -> Any:
    """A random picture and a question."""
    path = folder / f"{seed}.png"
    noise = np.random.default_rng(seed).integers(0, 255, (pixels, pixels, 3), np.uint8)
    Image.fromarray(noise).save(path)
    parts = (MediaRef("image", path), TextPart("How many shapes are there?"))
    return render_prompt(family, Sample(str(seed), (Message("user", parts),)))


def _row(
    name: str, repeats: int, run: Callable[[], Any], before: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    found: list[tuple[float, float]] = []
    tokens = None
    for _ in range(repeats + 1):
        before()
        cpu, begin = _cpu(), time.perf_counter()
        groups = run()
        found.append((_cpu() - cpu, time.perf_counter() - begin))
        if groups is not None:
            tokens = sum(len(c.token_ids) for g in groups for c in g.completions)
    least = min(found[1:])
    return {"run": name, "CPU s": least[0], "wall s": least[1], "tokens": tokens}


def _cpu() -> float:
    """CPU seconds of this process and its children so far."""
    me = psutil.Process()
    times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)


@torch.no_grad()
def _generate(model: Any, family: Family, prompts: list[Any], n: int) -> None:
    """As trainers without vLLM do it: every row with its own copy of prompt and picture."""
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
