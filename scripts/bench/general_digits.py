"""Models without a family learn the digits: held-out accuracy after SFT, a control and GRPO.

    python scripts/bench/general_digits.py                        # four classes, three seeds
    python scripts/bench/general_digits.py --models llava --seeds 0

Every run starts from a random model of the real class with its real processor, as the tests make
them. The stages are those of the quickstart with more steps of SFT, for these models need them
before they sample right answers. The control continues SFT for as long as GRPO took. A run that
exists under ``--output`` is not repeated.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from digit_runs import accuracies, call, newest, train
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from mmr1.registry import import_file
from tests.vision.families.general_models import FAMILIES, MODELS, new_model

control_steps = import_file(Path("scripts/recipes/control_steps.py")).control_steps

TEXT: dict[str, dict[str, Any]] = {
    # As in any Gemma 3 a layer sees everything; with windows of 16 alone the answer is too far
    # from the picture.
    "gemma3": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 32,
    },
    "llava": {},
    "smolvlm": {},
    "qwen3_5": {},
}
SFT_STEPS = 240
RL_STEPS = 200
STAGES = ("sft", "control", "rl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[*TEXT], choices=[*TEXT])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/bench/general_digits"))
    parser.add_argument("--smoke", action="store_true", help="two steps, eight held-out scans")
    args = parser.parse_args()
    if missing := set(args.models) - {*MODELS, *FAMILIES}:
        parser.error(f"{', '.join(missing)}: its processor needs pip install 'mmr1[models]'")
    modes = ("greedy", "sampled")
    table = Table("model", "seed", *(f"{stage}, {mode}" for mode in modes for stage in STAGES))
    for name in args.models:
        for seed in args.seeds:
            folder = args.output / f"{name}-{seed}"
            table.add_row(name, str(seed), *of_stages(name, seed, folder, args.smoke))
    Console().print(table)


def of_stages(name: str, seed: int, folder: Path, smoke: bool) -> list[str]:
    """Greedy accuracy of each stage, then sampled accuracy, each run unless it exists."""
    data = folder / "data"
    if not data.is_dir():
        call("datasets_prep", "make", "digits", "--output", data, "--seed", seed)
    if not (folder / "model/config.json").is_file():
        new_model(name, folder / "model", seed, **TEXT[name])
    sft, rl, control = (folder / stage for stage in ("sft", "rl", "control"))
    demonstrated, asked, held_out = (
        f"{key}={data}/{split}.jsonl"
        for key, split in (("data.train", "sft"), ("data.train", "rl"), ("eval.data", "eval"))
    )
    # vLLM's CPU computes Qwen3.5 in bfloat16 only.
    engine = "rollout.engine=hf" if name == "qwen3_5" else "rollout.engine=vllm"
    train(sft, folder / "model", seed, "sft", 2 if smoke else SFT_STEPS, demonstrated)
    train(
        rl,
        newest(sft),
        seed,
        "rl",
        2 if smoke else RL_STEPS,
        asked,
        "trainer.validation=null",
        engine,
    )
    train(control, newest(sft), seed, "sft", control_steps(sft, rl), demonstrated)
    few = ("eval.limit=8",) if smoke else ()
    figures = [
        accuracies(newest(folder / stage), folder / "eval" / stage, held_out, engine, *few)
        for stage in STAGES
    ]
    return [figure for mode in zip(*figures, strict=True) for figure in mode]


if __name__ == "__main__":
    main()
