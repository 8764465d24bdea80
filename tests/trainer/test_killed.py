"""Training with adapters, killed before, in and after a save."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmr1.config import Config
from tests.trainer.killed_runs import assert_kills_change_nothing
from tests.trainer.run_configs import config_of

LENGTH_PARITY = (
    "def reward(completion: str, answer) -> float:\n    return float(len(completion) % 2)\n"
)


@pytest.mark.slow
def test_lora_resumes_bit_exact_after_sigkill(tiny_model, digits, tmp_path):
    (tmp_path / "own.py").write_text(LENGTH_PARITY)

    def config(out: Path) -> Config:
        return config_of(
            *(tiny_model, digits / "rl.jsonl", digits, out),
            *("model.lora={rank: 2}", "data.train_batch_size=2", "data.num_workers=0"),
            *("trainer.max_steps=6", "trainer.checkpoints={save_steps: 2, save_total_limit: 9}"),
            *("rollout.n=4", "rollout.max_prompt_length=88", "rollout.max_response_length=8"),
            f"rewards={{own: {{type: '{tmp_path}/own.py:reward', sandbox: null}}}}",
            "scoring.timeout_s=60",
        )

    assert_kills_change_nothing(config, tmp_path)
