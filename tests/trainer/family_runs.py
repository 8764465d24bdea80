"""The configuration of a run with a model of any family."""

from __future__ import annotations

from pathlib import Path

from mmr1.config import Config


def config_of(path: Path, data: Path, out: Path, file: str, /, **sections: object) -> Config:
    sections = {name: dict(keys) for name, keys in sections.items()}  # type: ignore[call-overload]
    return Config.model_validate(
        {
            "model": {"path": str(path), "dtype": "float32", **sections.pop("model", {})},
            "data": {
                "train": str(data / file),
                "train_batch_size": 2,
                **sections.pop("data", {}),
            },
            "rollout": {
                "engine": "hf",
                "n": 4,
                "max_prompt_length": 240,
                "max_response_length": 16,
            },
            "optimizer": {"lr": 1e-3, "scheduler": {"warmup_steps": 0}},
            "trainer": {
                "max_steps": 2,
                "output_dir": str(out),
                "threads": 1,
                "checkpoints": {"save_steps": 2},
                "validation": {"data": str(data / "eval.jsonl")},
                "max_tokens_per_gpu": 400,
                **sections.pop("trainer", {}),
            },
            "eval": {"limit": 4},
            **sections,
        }
    )
