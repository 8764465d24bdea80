"""Reward functions in other projects' forms, and texts for them."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import RewardItem, build_composite_reward
from mmr1.types import Reward
from tests.rewards.helpers import item

PLUGINS = Path(__file__).parent / "dialects"


TEXTS = ["<think>1</think><answer>4</answer>", "<answer>5</answer>", "4"]


def items(texts: list[str] = TEXTS, **row: str) -> list[RewardItem]:
    meta = {"colour": "red", **({"row": row} if row else {})}
    return [
        item(text, 4, task="count", meta=meta, prompt="How many? ", token_ids=(1, 2))
        for text in texts
    ]


def score(spec: str, items: list[RewardItem], **function: Any) -> list[Reward]:
    timeout_s = function.pop("timeout_s", 5.0)
    config = {"type": spec, "sandbox": function.pop("sandbox", {}), **function}
    with build_composite_reward(
        read_rewards({"plugin": config}), ScoringConfig(workers=1, timeout_s=timeout_s)
    ) as composite_reward:
        return composite_reward.score([with_source(i) for i in items])


def with_source(item: RewardItem) -> RewardItem:
    from dataclasses import replace

    return replace(item, sample=replace(item.sample, source="unit"))


def load(file: str, function: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(file, PLUGINS / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def direct(file: str, function: str) -> list[float]:
    """The function called by hand, as its own framework would."""
    call = load(file, function)
    rows = [{"response": t, "response_length": 2, "ground_truth": 4} for t in TEXTS]
    if file == "own":
        return [call(t, answer=4, task="count") for t in TEXTS]
    if file == "easyr1_batch":
        return [score["overall"] for score in call(rows)]
    if file == "easyr1_sequential":
        return [call(row)["overall"] for row in rows]
    if file == "easyr1_text":
        return [call(t, 4)["overall"] for t in TEXTS]
    if file == "easyr1_lists":
        return [score["overall"] for score in call(TEXTS, [4] * 3)]
    if file == "verl_single":
        return [call("unit", t, 4, {"colour": "red"})["score"] for t in TEXTS]
    if file == "verl_async":
        return [asyncio.run(call("unit", t, 4, {})) for t in TEXTS]
    if file == "verl_batch":
        return call(["unit"] * 3, TEXTS, [4] * 3, [{}] * 3)
    conversations = [[{"role": "assistant", "content": t}] for t in TEXTS]
    if function == "length_reward":
        return call(TEXTS)
    columns = {"problem_type": ["count"] * 3, "colour": ["red"] * 3}
    prompts = [[{"role": "user", "content": "How many?"}]] * 3
    return call(conversations, solution=[4] * 3, prompts=prompts, **columns)


DIALECTS = [
    ("own", "reward"),
    ("easyr1_batch", "compute_score"),
    ("easyr1_sequential", "compute_score"),
    ("easyr1_text", "compute_score"),
    ("easyr1_lists", "compute_score"),
    ("verl_single", "compute_score"),
    ("verl_async", "compute_score"),
    ("verl_batch", "compute_score"),
    ("trl", "accuracy_reward"),
    ("trl", "length_reward"),
]


REWARD = "\ndef reward(completion, answer, **options):\n    return {value}\n"


def plugin(folder: Path, code: str, value: str = "1.0") -> str:
    """A file with this code at its top, and a reward function that returns ``value``."""
    folder.mkdir(exist_ok=True)
    (folder / "plugin.py").write_text(code + REWARD.format(value=value))
    return f"{folder / 'plugin.py'}:reward"
