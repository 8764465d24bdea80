"""The scaling of a step over GPUs: a calculation, not a measurement.

    python scripts/bench/cluster.py            # 3B, 7B, 32B and 72B on 8 to 1,024 GPUs

For each model and number of GPUs the split into ranks and engines with the shortest step, as
``mmr1 doctor --estimate CONFIG --gpus N`` finds it (``mmr1/estimate/gpu_split.py``): rollouts in
turn with the updates, and one step ahead of them; and ranks and engines colocated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import common
from matplotlib import pyplot as plt

from mmr1.estimate.gpu_split import Split, Step, best_split, colocated_split
from mmr1.estimate.load import Load
from mmr1.vision.families.family import ModelShape, StackShape

GPU_COUNTS = (8, 64, 256, 1024)
PROMPTS_PER_GPU, GROUP, LOAD = 8, 8, Load(prompt=1124, vision=1024, completion=512)
VOCABULARY = 151_936
TOWER = StackShape(
    layers=32, hidden=1280, intermediate=3420, queries=1280, keys=1280, heads=16, rows_per_token=4
)


def language(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int) -> StackShape:
    return StackShape(layers, hidden, intermediate, hidden, hidden // heads * kv_heads, heads)


# Published shapes of Qwen2.5-VL, its parameters, and the GPUs of an engine.
MODELS = {
    "3B": (language(36, 2048, 11008, 16, 2), 3.75e9, 1),
    "7B": (language(28, 3584, 18944, 28, 4), 8.29e9, 1),
    "32B": (language(64, 5120, 27648, 40, 8), 33.5e9, 2),
    "72B": (language(80, 8192, 29568, 64, 8), 73.4e9, 4),
}
STATE_BYTES = 18  # of a parameter: bfloat16 weight, float32 master, gradient and two moments
MEMORY = 60 * 2**30  # of a GPU's 80 GiB; the rest is for activations
KEPT_BYTES, WHOLE_MEMORY = 12, 80 * 2**30  # colocated ranks keep shards and moments
MODES = ("in turn", "ahead", "colocated")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/bench"))
    output = parser.parse_args().output
    rows = [row(name, gpus, mode) for name in MODELS for gpus in GPU_COUNTS for mode in MODES]
    common.table(rows)
    figure, axes = plt.subplots(figsize=(6, 3.5))
    for name in MODELS:
        own = [r for r in rows if r["model"] == name and r["rollouts"] == "ahead" and "busy" in r]
        axes.plot([r["GPUs"] for r in own], [r["tokens/s/GPU"] for r in own], "o-", label=name)
    axes.set(xscale="log", xlabel="GPUs", ylabel="tokens/s/GPU, one step ahead")
    axes.legend()
    common.save(output, "cluster", {"rows": rows}, figure)


def row(name: str, gpus: int, mode: str) -> dict[str, object]:
    shape, parameters, engine_gpus = MODELS[name]
    step = Step(
        ModelShape(shape, TOWER), parameters, VOCABULARY, gpus * PROMPTS_PER_GPU, GROUP, LOAD
    )

    def fits(ranks: int) -> bool:
        return STATE_BYTES * parameters / ranks <= MEMORY

    head = {"model": name, "GPUs": gpus, "rollouts": mode}
    if mode != "colocated":
        return head | columns(best_split(step, gpus, engine_gpus, mode == "ahead", fits), gpus)
    while_sampling = (KEPT_BYTES / gpus + 1.1 * 2 / engine_gpus) * parameters
    shared = fits(gpus) and while_sampling <= WHOLE_MEMORY
    return head | columns(colocated_split(step, gpus, engine_gpus) if shared else None, gpus)


def columns(best: Split | None, gpus: int) -> dict[str, object]:
    if best is None:
        names = ("ranks", "engines", "rollout s", "update s", "sync s", "busy", "tokens/s/GPU")
        return dict.fromkeys(names, "too few GPUs")
    tokens = PROMPTS_PER_GPU * (LOAD.prompt + GROUP * LOAD.completion)
    return {
        "ranks": best.ranks,
        "engines": best.engines,
        "rollout s": best.rollout_s,
        "update s": best.update_s,
        "sync s": best.ranks_s + best.engines_s,
        "busy": best.busy,
        "tokens/s/GPU": tokens / best.step_s,
    }


if __name__ == "__main__":
    main()
