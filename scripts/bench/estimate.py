"""Main memory of a run on a CPU against ``mmr1 doctor --estimate``, with a real vocabulary.

    python scripts/bench/estimate.py
    python scripts/bench/estimate.py --vocabulary 151936 --dtype bfloat16

The model has the shape of SmolLM2-135M and random weights. Trainer and engine (``hf``) share one
process, whose peak Linux keeps (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mmr1.config import Config
from mmr1.estimate.load import Load
from mmr1.estimate.memory import GIB, estimate
from mmr1.vision.families.tiny import new_model

SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
REWARD = """
def reward(completion: str, answer) -> float:
    return len(completion) % 7 / 7
"""
PROMPTS, N, RESPONSE, STEPS = 4, 4, 64, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), args.vocabulary, args.dtype), indent=1))


def measure(folder: Path, vocabulary: int, dtype: str) -> dict[str, object]:
    """GiB that a short run took at most, and what the estimate says."""
    tree = written(folder, vocabulary, dtype)
    config = Config.model_validate(tree)
    needs = estimate(config, Load(60, 0, RESPONSE), on_cpu=True)
    (folder / "run.yaml").write_text(json.dumps(tree))
    peak = run(folder)
    said = sum(item.bytes for item in needs.items)
    items = {f"{i.owner}: {i.name}": round(i.bytes / GIB, 3) for i in needs.items if i.bytes}
    return {
        "vocabulary": vocabulary,
        "dtype": dtype,
        "items": items,
        "estimated": round(said / GIB, 2),
        "measured": round(peak / GIB, 2),
        "estimated / measured": round(said / peak, 2),
    }


def written(folder: Path, vocabulary: int, dtype: str) -> dict[str, object]:
    """The configuration of a run, whose model and records lie in the folder."""
    model = folder / "model"
    new_model(model, family="llama")
    settings = AutoConfig.from_pretrained(model)
    for name, value in {**SHAPE, "vocab_size": vocabulary}.items():
        setattr(settings, name, value)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(settings, dtype=torch.float32).save_pretrained(model)
    question = "What is the sum of these numbers? " + " ".join(map(str, range(12)))
    records = [{"question": f"{i} {question}", "answer": str(i)} for i in range(PROMPTS)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "any.py").write_text(REWARD)
    return {
        "model": {"path": str(model), "dtype": dtype},
        "data": {"train": str(folder / "sums.jsonl"), "train_batch_size": PROMPTS},
        "rewards": {"any": {"type": f"{folder}/any.py:reward"}},
        "rollout": {
            "engine": {"type": "hf"},
            "n": N,
            "max_prompt_length": 128,
            "max_response_length": RESPONSE,
        },
        "trainer": {"max_steps": STEPS, "output_dir": str(folder / "run")},
    }


def run(folder: Path) -> int:
    """The most bytes of main memory that the process of the run has had, libraries included."""
    command = [sys.executable, "-m", "mmr1", "train", str(folder / "run.yaml")]
    peak = 0
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            lines = status.read_text().splitlines()
            had = (int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
            peak = max(peak, 1024 * next(had, 0))
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit((folder / "log").read_text())
    return peak


if __name__ == "__main__":
    main()
