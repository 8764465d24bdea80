"""How many 80 GiB GPUs each stage of each recipe needs, as ``mmr1 doctor --estimate`` counts.

    python scripts/dev/recipe_gpus.py MODEL_3B MODEL_7B

A single GPU is shared by trainer and engine. With more, one is the engine's and the trainer is
sharded over the others. Prompts are assumed to be long: 1,280 tokens with an image, 4,096 with a
video, 256 with text only. Completions have the maximum length.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mmr1.config.file import load_config
from mmr1.estimate import GIB, Load, estimate

RECIPES = Path(__file__).parents[1] / "recipes"
MEMORY = 80 * GIB
PROMPTS = {"video": (4096, 3840), "text": (256, 0), "image": (1280, 1024)}
VIDEO, TEXT = ("video_r1", "open_r1_video"), ("text_math/rl", "lmm_r1/text")


def gpus(path: Path, model: str) -> str:
    """The smallest number of GPUs for a stage, and the trainer's memory on each of its own."""
    stage = f"{path.parent.name}/{path.stem}"
    kind = "video" if stage.startswith(VIDEO) else "text" if stage in TEXT else "image"
    for number in (1, 2, 4, 8):
        config = load_config(
            path,
            [f"model.path={model}", f"resources.ranks={number}", "resources.engines=1"],
        )
        prompt, vision = PROMPTS[kind]
        load = Load(prompt, vision, config.rollout.sampling.max_tokens)
        needed = estimate(config, load).total("trainer")
        alone = config.resources.distributed or path.stem == "sft"
        if needed <= MEMORY * (1 if alone else 1 - config.rollout.gpu_memory_utilization):
            engines = 0 if path.stem == "sft" or number == 1 else 1
            return f"{number + engines} ({needed / GIB:.0f} GiB each)"
    return "more than 9"


def main(models: list[str]) -> None:
    print("| stage | Qwen2.5-VL-3B | Qwen2.5-VL-7B |")
    print("|---|---|---|")
    for path in sorted(RECIPES.glob("*/*.yaml")):
        small = path.parent.name.startswith("small_")  # trained on a CPU
        if small or not (path.parent / "run.sh").is_file():
            continue
        cells = " | ".join(gpus(path, model) for model in models)
        print(f"| `{path.parent.name}/{path.name}` | {cells} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
