"""Small models of other families than the one that most tests train, and records for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmr1.vision.families import tiny
from tests.vision.families import general_models

QUICK = ("qwen3", "qwen3_vl", "idefics3")
OTHER = (
    *("gemma3", "qwen3_vl_moe", "qwen3_5", "qwen2_vl", "llava_onevision", "internvl", "glm4v"),
    *("qwen2", "llama"),
)
TEXT = ("qwen3", "qwen2", "llama")
NAMES = (*QUICK, *OTHER)
SEEING = tuple(name for name in NAMES if name not in TEXT)
RUN = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER)]


def new_model(name: str, path: Path) -> None:
    if name in general_models.MODELS:
        general_models.new_model(name, path)
    else:
        tiny.new_model(path, family=name)


def write_sums(folder: Path) -> None:
    """Write records for a model that sees nothing."""
    for name in ("sft", "rl", "eval"):
        rows = []
        for number in range(16):
            a, b = number % 4, number // 4
            said = [{"role": "user", "content": f"What is {a} + {b}?"}]
            if name == "sft":
                said.append({"role": "assistant", "content": demonstration(a + b)})
            rows.append({"version": 1, "id": f"{number}", "messages": said, "answer": f"{a + b}"})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def demonstration(number: int) -> str:
    return f"<think>It is {number}.</think><answer>{number}</answer>"
