"""Shared by the benchmarks: random models and groups, FLOP counts, timing, output."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import psutil
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig
from transformers import Qwen2_5_VLForConditionalGeneration as Model

from mmr1.trainer.forward.sequences import GroupInput
from mmr1.vision.families import tiny
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import Medium

# Published shapes of Qwen2.5-VL's language model. The vision tower is the same in both.
SHAPES: dict[str, dict[str, int]] = {
    "3b": {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
    },
    "7b": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
}
# The defaults in transformers belong to another vision tower.
TOWER = {"hidden_size": 1280, "intermediate_size": 3420, "depth": 32, "num_heads": 16}


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--shape", default="20m", choices=["tiny", "20m", *SHAPES])
    made.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--repeats", type=int, default=5)
    made.add_argument("--output", type=Path, default=Path("runs/bench"))
    return made


def new_model(shape: str, device: str) -> tuple[Any, ModelFamily]:
    """A random model: float32 on the CPU, bf16 on CUDA. The processor is the small models'."""
    folder = Path(tempfile.mkdtemp(prefix="mmr1-bench-")) / "model"
    tiny.new_model(folder, "tiny" if shape in SHAPES else shape)
    if shape not in SHAPES:
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    else:
        config = Qwen2_5_VLConfig.from_pretrained(folder)
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
        text = {**config.text_config.to_dict(), **SHAPES[shape], "rope_parameters": rope}
        text |= {
            "vocab_size": 151936,
            "layer_types": ["full_attention"] * text["num_hidden_layers"],
        }
        full = Qwen2_5_VLConfig(
            text_config=text,
            vision_config={**TOWER, "out_hidden_size": text["hidden_size"]},
            tie_word_embeddings=shape == "3b",
            image_token_id=config.image_token_id,
            video_token_id=config.video_token_id,
        )
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device):
            model = Model(full)
        torch.set_default_dtype(torch.float32)
    return model.to(device).eval(), load_family(str(folder))


def new_groups(
    family: ModelFamily, prompts: int, n: int, response: int, pixels: int, text: int = 21
) -> list[GroupInput]:
    """``prompts`` groups: one square random image of ``pixels`` and ``text`` tokens each."""
    rng = np.random.default_rng(0)
    return [_group(family, i, n, response, pixels, text, rng) for i in range(prompts)]


def _group(
    family: ModelFamily, seed: int, n: int, response: int, pixels: int, text: int, rng: Any
) -> GroupInput:
    ids = rng.integers(20, 600, text).tolist()
    media = []
    if pixels:
        patch, merge = 14, 2
        side = pixels // (patch * merge) * merge
        patches = torch.tensor(rng.standard_normal((side * side, 1176)), dtype=torch.float32)
        media = [Medium("image", patches, (1, side, side), merge, None, f"random {seed}")]
        ids.insert(3, family.image_id)
    ids = family.expand_placeholders(ids, media)
    completions = tuple(torch.tensor(rng.integers(20, 600, response)) for _ in range(n))
    positions = family.prompt_positions(ids, media)
    start = family.completion_start(positions)
    return GroupInput(torch.tensor(ids), positions, start, tuple(media), completions)


def flops(run: Callable[[], object]) -> int:
    """FLOPs by torch's counter, extended by the CPU's attention and the in-place ``addmm_``."""
    aten = torch.ops.aten

    def forward(query, key, value, *args, out_val=None, **kwargs):
        return sdpa_flop_count(query, key, value)

    def backward(grad, query, key, value, *args, out_val=None, **kwargs):
        return sdpa_backward_flop_count(grad, query, key, value)

    def product(total, left, right, *args, out_val=None, **kwargs):
        return 2 * left[0] * left[1] * right[1]

    mapping = {
        aten.addmm_: product,
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        run()
    return counter.get_total_flops()


def step_flops(config: Any, prompt: int, image: int, n: int, response: int, shared: bool) -> float:
    """FLOPs of forward and backward of one group, counted from the shapes.

    Args:
        prompt: Prompt tokens, vision tokens included.
        image: Side of the square image in patches.
        shared: Count the bound: prompt and image once, and without the last token of a completion,
            which predicts nothing. Otherwise count everything for every completion.
    """
    text, vision = config.text_config, config.vision_config
    h, v = text.hidden_size, vision.hidden_size
    kv = h // text.num_attention_heads * text.num_key_value_heads
    linear = 2 * (2 * h * h + 2 * h * kv + 3 * h * text.intermediate_size)
    once = 1 if shared else n
    fed = response - 1 if shared else response
    tokens = once * prompt + n * fed
    pairs = prompt**2 + n * (prompt * fed + fed**2) if shared else n * (prompt + fed) ** 2
    head = 2 * h * text.vocab_size * n * response
    patches, merged = image**2, vision.spatial_merge_size**2
    per_patch = 2 * (4 * v * v + 3 * v * vision.intermediate_size) * vision.depth
    merger = 2 * (merged * v) * (merged * v + vision.out_hidden_size) / merged
    full = len(vision.fullatt_block_indexes)
    window = vision.window_size // vision.patch_size
    spans = [min(window, image - at) for at in range(0, image, window)]
    windows = sum((a * b) ** 2 for a in spans for b in spans)
    vision_pairs = full * patches**2 + (vision.depth - full) * windows
    embed = 2 * 1176 * v * patches  # its input needs no gradient
    # torch counts an attention's backward as 2.5 forwards, and a causal one as if it were full.
    return (
        3 * (text.num_hidden_layers * linear * tokens + head)
        + 3.5 * text.num_hidden_layers * 4 * h * pairs
        + once * (3 * patches * (per_patch + merger) + 2 * embed + 3.5 * 4 * v * vision_pairs)
    )


def seconds(run: Callable[[], object], device: str) -> float:
    """CPU seconds on the CPU, which do not depend on other processes; wall seconds on CUDA."""
    if device == "cpu":
        start = time.process_time()
        run()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def interleaved(
    runs: dict[str, Callable[[], object]], repeats: int, device: str = "cpu"
) -> dict[str, float]:
    """The minimum of ``repeats`` interleaved rounds for each run, after a warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(repeats + 1):
        for name, run in runs.items():
            taken = seconds(run, device)
            if round_:
                times[name].append(taken)
    return {name: min(taken) for name, taken in times.items()}


def cpu_seconds() -> float:
    """CPU seconds of this process and of those that it started, so far."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def peak_rss_mib() -> float:
    """Peak memory of this program; getrusage would include its parent process before exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def in_new_process(script: str, arguments: Sequence[object]) -> dict[str, Any]:
    """Run the script again with these arguments, because peaks are per process."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as an aligned table."""
    cells = [[*rows[0]], *[[_cell(v) for v in row.values()] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        print("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def save(output: Path, name: str, results: dict[str, Any]) -> None:
    output.mkdir(parents=True, exist_ok=True)
    about = {
        "command": " ".join(sys.argv),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),
    }
    (output / f"{name}.json").write_text(json.dumps({**about, **results}, indent=1) + "\n")
    print(f"written: {output / name}.json")
