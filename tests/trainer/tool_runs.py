"""The configuration of a run with tools."""

from __future__ import annotations

from pathlib import Path

from mmr1.config import Config

PLUGINS = str(Path(__file__).parents[1] / "environments" / "plugins.py")


def config(model: Path, data: Path, out: Path, **trainer: object) -> Config:
    return Config(
        model={"path": str(model), "dtype": "float32"},
        data={"train": str(data), "train_batch_size": 2},
        rollout={
            "engine": "hf",
            "n": 3,
            "max_prompt_length": 96,
            "max_response_length": 160,
        },
        environment={
            "tools": ["zoom"],
            "parser": f"{PLUGINS}:always_zoom",
            "instructions": "",
            "max_turns": 3,
            "max_tokens_per_turn": 30,
            "workers": 1,
        },
        rewards={
            "said": {"type": f"{PLUGINS}:reward", "sandbox": None},
            "tool_use": {"weight": 0.1},
        },
        algorithm={"kl": {"coef": 0.01}},
        optimizer={"lr": 1e-3, "scheduler": {"warmup_steps": 0}},
        trainer={
            "max_steps": 2,
            "output_dir": str(out),
            "log_completions_steps": 1,
            "checkpoints": {"save_steps": 1},
            "validation": {"data": str(data)},
            "threads": 1,
            **trainer,
        },
        eval={"limit": 2, "accuracy_function": "tool_use"},
    )
