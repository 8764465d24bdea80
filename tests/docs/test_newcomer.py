"""What a newcomer adds, each in one file: an advantage, a loss, a reward and a tracker.

One run uses them all. The lines of code are counted, so that the ways stay short.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from mmr1.config.file import config_from
from mmr1.trainer.train import run_training
from tests.engines import http_engine
from tests.jsonl import read_jsonl

ADVANTAGE = """
import torch
from mmr1.trainer.algorithms import Advantage, per_completion

def quantile(q=0.5):
    def of_group(rewards, valid):
        baseline = torch.where(valid, rewards, torch.nan).nanquantile(q, -1, keepdim=True)
        return torch.where(valid, rewards - baseline, 0.0)

    return Advantage(per_completion(of_group))
"""
LOSS = """
from mmr1.trainer.algorithms import Loss, losses

def log_prob():
    return Loss(lambda x: losses.policy_gradient(x.logprobs, x.advantages))
"""
REWARD = """
def short(completion, answer):
    return len(completion) % 7 / 7
"""
TRACKER = """
class Lines:
    def __init__(self, run):
        self.file = open(run.folder / "lines.txt", "w")

    def log(self, step, numbers):
        print(step, numbers["reward/mean"], file=self.file)

    def log_rollouts(self, step, rows):
        pass

    def close(self):
        self.file.close()
"""
SOURCES = {"advantage": ADVANTAGE, "loss": LOSS, "reward": REWARD, "tracker": TRACKER}


def lines_of_code(source: str) -> int:
    return sum(bool(line.strip()) for line in source.splitlines())


@pytest.fixture(scope="module")
def run(tiny_model, digits, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("newcomer")
    for name, source in SOURCES.items():
        (folder / f"{name}.py").write_text(source)
    config = config_from(
        {
            "model": {"path": str(tiny_model), "dtype": "float32"},
            "data": {"train": str(digits / "rl.jsonl"), "train_batch_size": 2},
            "rollout": {
                "engine": "hf",
                "n": 4,
                "max_prompt_length": 56,
                "max_response_length": 8,
            },
            "rewards": {"functions": {"short": {"use": f"{folder}/reward.py:short"}}},
            "algorithm": {
                "advantage": {
                    "type": "custom",
                    "use": f"{folder}/advantage.py:quantile",
                    "options": {"q": 0.25},
                },
                "loss": f"{folder}/loss.py:log_prob",
            },
            "trainer": {
                "max_steps": 1,
                "output_dir": str(folder / "run"),
                "tracking": {"report_to": [f"{folder}/tracker.py:Lines"]},
            },
        }
    )
    run_training(config)
    return folder / "run"


def test_one_run_uses_an_advantage_a_loss_a_reward_and_a_tracker(run: Path) -> None:
    (row,) = read_jsonl(run / "metrics.jsonl")
    assert (run / "lines.txt").read_text() == f"1 {row['reward/mean']}\n"
    for group in read_jsonl(run / "rollouts/step_000001.jsonl"):
        completions = group["completions"]
        rewards = torch.tensor([len(c["text"]) % 7 / 7 for c in completions])
        assert [c["reward"] for c in completions] == pytest.approx(rewards.tolist())
        advantages = (rewards - rewards.quantile(0.25)).tolist()
        assert [c["advantage"] for c in completions] == pytest.approx(advantages, abs=1e-6)


def test_each_is_one_file_of_few_lines() -> None:
    counted = {name: lines_of_code(source) for name, source in SOURCES.items()}
    assert counted == {"advantage": 7, "loss": 3, "reward": 2, "tracker": 9}


def test_an_engine_is_one_file_of_few_lines() -> None:
    """A client of a server, which trains alone, ahead, with tools and on Ray: tests/engines."""
    source = inspect.getsource(http_engine.HttpEngine) + inspect.getsource(http_engine._read)
    assert lines_of_code(source) <= 60
