"""Models without a family learn the digits: held-out accuracy after SFT, a control and GRPO.

    python scripts/bench/general_digits.py                        # four classes, three seeds
    python scripts/bench/general_digits.py --models llava --seeds 0

Every run starts from a random model of the real class with its real processor, as the tests make
them. The stages are those of the quickstart with more steps of SFT, for these models need them
before they sample right answers. The control continues SFT for as many steps as take the CPU
seconds of GRPO, the engine's included. A run that exists under ``--output`` is not repeated.
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

from tests.vision.families.general_models import FAMILIES, MODELS, new_model

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
CONTROL_STEPS = {"vllm": 900, "hf": 1000}
# On a CPU vLLM has Qwen3.5 in bfloat16 only, and no mask for the pictures of Gemma 3.
IN_VLLM = ("llava", "smolvlm")
# The transformers engine samples prompt by prompt: half as many take half the time.
FEW_PROMPTS = ("data.train_batch_size=8", "rollout.n=16")
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
    table = Table("model", "seed", "decoding", *STAGES)
    for name in args.models:
        for seed in args.seeds:
            folder = args.output / f"{name}-{seed}"
            greedy, sampled = of_stages(name, seed, folder, args.smoke)
            table.add_row(name, str(seed), "greedy", *greedy)
            table.add_row(name, str(seed), "sampled", *sampled)
    Console().print(table)


def of_stages(name: str, seed: int, folder: Path, smoke: bool) -> list[tuple[str, ...]]:
    """Greedy accuracy of each stage, and sampled accuracy of each, run unless it exists."""
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
    engine = "vllm" if name in IN_VLLM else "hf"
    steps = (SFT_STEPS, RL_STEPS, CONTROL_STEPS[engine])
    for_sft, for_rl, for_control = (2, 2, 2) if smoke else steps
    sampling = (f"rollout.engine={engine}", *(FEW_PROMPTS if engine == "hf" else ()))
    train(sft, folder / "model", seed, "sft", for_sft, demonstrated)
    train(rl, newest(sft), seed, "rl", for_rl, asked, "trainer.validation=null", *sampling)
    train(control, newest(sft), seed, "sft", for_control, demonstrated)
    few = ("eval.limit=8",) if smoke else ()
    evaluation = (held_out, *few)
    figures = [
        accuracies(newest(folder / stage), folder / "eval" / stage, *evaluation) for stage in STAGES
    ]
    return list(zip(*figures, strict=True))


if __name__ == "__main__":
    main()
