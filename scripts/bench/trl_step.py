"""TRL's side of ``against_trl.py``: GRPOTrainer steps, in an environment with TRL.

    TRL_PYTHON scripts/bench/trl_step.py MODEL DATA.json OPTIONS.json

Prints one JSON line: CPU and wall seconds of each step, completion tokens, peak memory.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset, Image
from spread_reward import reward
from transformers import AutoProcessor, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

FORBIDDEN = (
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
)


class StepClock(TrainerCallback):
    """Seconds of each optimizer step."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def on_step_begin(self, *args, **kwargs) -> None:
        self.begin = (time.process_time(), time.perf_counter())

    def on_step_end(self, *args, **kwargs) -> None:
        self.cpu.append(time.process_time() - self.begin[0])
        self.wall.append(time.perf_counter() - self.begin[1])


def main(model: str, data: str, options: str) -> None:
    settings = json.loads(options)
    torch.set_num_threads(1)
    rows = json.loads(Path(data).read_text())
    dataset = Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": row["question"]}] for row in rows],
            "image": [row["image"] for row in rows],
        }
    ).cast_column("image", Image())
    processor = AutoProcessor.from_pretrained(model, padding_side="left")
    tokens: list[int] = []

    def spread(completions, completion_ids=None, **kwargs):
        tokens.append(sum(map(len, completion_ids)))
        return [reward(completion[0]["content"]) for completion in completions]

    n, prompts = settings["n"], settings["prompts"]
    suppressed = [processor.tokenizer.convert_tokens_to_ids(name) for name in FORBIDDEN]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=settings["bf16"],
        report_to=[],
        save_strategy="no",
        per_device_train_batch_size=n,
        gradient_accumulation_steps=prompts,
        num_generations=n,
        max_completion_length=settings["tokens"],
        max_steps=settings["steps"],
        beta=0.0,
        learning_rate=1e-6,
        gradient_checkpointing=settings["checkpointing"],
        generation_kwargs={"suppress_tokens": suppressed},
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    clock = StepClock()
    trainer = GRPOTrainer(
        model=model,
        args=config,
        train_dataset=dataset,
        processing_class=processor,
        reward_funcs=spread,
        callbacks=[clock],
    )
    trainer.train()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps({"cpu": clock.cpu, "wall": clock.wall, "tokens": tokens, "peak_mib": peak}),
        flush=True,
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(*sys.argv[1:])
