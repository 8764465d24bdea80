"""Main memory of a run on a CPU against ``mmr1 doctor --estimate``, with a real vocabulary.

    python scripts/bench/estimate.py
    python scripts/bench/estimate.py --vocabulary 151936 --engine vllm

The model has the shape of SmolLM2-135M and random weights. Measured is the largest sum over the
processes of the run; what they share counts once (PSS of Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
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
PROMPTS, N, RESPONSE, STEPS = 4, 4, 64, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--engine", choices=["hf", "vllm"], default="hf")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), args.vocabulary, args.engine, args.dtype), indent=1))


def measure(folder: Path, vocabulary: int, engine: str, dtype: str) -> dict[str, object]:
    """GiB that a short run took at most, and what the estimate says."""
    tree = written(folder, vocabulary, engine, dtype)
    config = Config.model_validate(tree)
    needs = estimate(config, Load(60, 0, RESPONSE))
    (folder / "run.yaml").write_text(json.dumps(tree))
    peak = run(folder)
    said = sum(item.bytes for item in needs.items)
    items = {f"{i.owner}: {i.name}": round(i.bytes / GIB, 3) for i in needs.items if i.bytes}
    return {
        "engine": engine,
        "vocabulary": vocabulary,
        "dtype": dtype,
        "items": items,
        "estimated": round(said / GIB, 2),
        "measured": round(peak / GIB, 2),
        "estimated / measured": round(said / peak, 2),
    }


def written(folder: Path, vocabulary: int, engine: str, dtype: str) -> dict[str, object]:
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
    return {
        "model": {"path": str(model), "dtype": dtype},
        "data": {"train": str(folder / "sums.jsonl"), "train_batch_size": PROMPTS},
        "rewards": {"functions": {"right": {"use": "exact"}}},
        "rollout": {
            "engine": {"type": engine},
            "n": N,
            "max_prompt_length": 128,
            "max_response_length": RESPONSE,
        },
        "trainer": {"max_steps": STEPS, "output_dir": str(folder / "run")},
    }


def run(folder: Path) -> int:
    """The most bytes that the processes of the run took together."""
    command = [sys.executable, "-m", "mmr1", "train", str(folder / "run.yaml")]
    peak = 0
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
        while process.poll() is None:
            peak = max(peak, taken(psutil.Process(process.pid)))
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit((folder / "log").read_text())
    return peak


def taken(process: psutil.Process) -> int:
    """Bytes of a process and those that it has started; what is shared counts once."""
    total = 0
    try:
        for each in (process, *process.children(recursive=True)):
            total += each.memory_full_info().pss
    except psutil.Error:  # it has just ended
        return 0
    return total


if __name__ == "__main__":
    main()
