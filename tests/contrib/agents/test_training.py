"""A whole run of an agent program: what is learnt from and what is written."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("openai", reason="openai is not installed")

from mmr1.config import Config
from mmr1.trainer.train import run_training
from tests.jsonl import read_jsonl
from tests.trainer.conversations import brief_model, write_scans

PLUGINS = Path(__file__).parents[2] / "environments" / "plugins.py"
PROGRAMS = Path(__file__).with_name("programs.py")


@pytest.mark.parametrize("engine", ["hf", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_a_run_learns_from_what_a_program_asked(engine, tiny_model, tmp_path):
    if engine == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
    model = brief_model(tiny_model, tmp_path / "model")
    run_training(
        Config(
            model={"path": str(model), "dtype": "float32"},
            data={"train": str(write_scans(tmp_path)), "train_batch_size": 2},
            rollout={"engine": engine, "n": 3, "max_prompt_length": 200},
            environment={
                "type": "agent",
                "use": f"{PROGRAMS}:forks",
                "max_tokens_per_turn": 30,
                "workers": 6,
            },
            rewards={"said": {"type": f"{PLUGINS}:reward", "sandbox": None}},
            algorithm={"kl": {"coef": 0.01}},
            optimizer={"lr": 1e-3, "scheduler": {"warmup_steps": 0}},
            trainer={
                "max_steps": 1,
                "output_dir": str(tmp_path / "run"),
                "log_completions_steps": 1,
                "threads": 1,
            },
        )
    )
    logged = read_jsonl(tmp_path / "run/metrics.jsonl")[0]
    assert logged["environment/turns"] == logged["environment/sequences"] == 3
    assert logged["environment/images_mean"] == 3  # two of the record's, one of the program's
    assert logged["environment/frac_failed"] == 0
    assert logged["rollout/logprob_diff_mean"] < 1e-4
    assert logged["grad_norm"] > 0
    for row in read_jsonl(tmp_path / "run/rollouts/step_000001.jsonl"):
        for completion in row["completions"]:
            assert [turn["role"] for turn in completion["turns"]] == ["tool", "assistant"] * 3
            sampled = [t["tokens"] for t in completion["turns"] if t["role"] == "assistant"]
            assert completion["tokens"] == sum(sampled)
