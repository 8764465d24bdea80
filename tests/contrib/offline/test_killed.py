"""The wing's runs, killed before, in and after a save, end as runs that were left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmr1.config import Config
from tests.contrib.offline.runs import LENGTH_PARITY, config_of
from tests.trainer.killed_runs import (
    Reached,
    assert_kills_change_nothing,
    kill_and_resume,
    start,
    text_of,
)
from tests.trainer.same_runs import assert_same

SAMPLED = (
    "rollout.n=4",
    "rollout.max_prompt_length=88",
    "rollout.max_response_length=8",
    "scoring.timeout_s=60",
)
KINDS = {
    "dpo": ("dpo", ()),
    "kto": ("dpo", ("dpo.loss={type: kto, beta: 0.5}",)),
    "rounds": ("dpo", ("dpo.rounds={count: 2, prompts: 4}", *SAMPLED)),
    "rm": ("rm", ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_run_resumes_bit_exact_after_sigkill(kind, tiny_model, digits, pair_file, tmp_path):
    command, keys = KINDS[kind]
    (tmp_path / "own.py").write_text(LENGTH_PARITY)
    own = f"rewards={{own: {{type: '{tmp_path}/own.py:reward', sandbox: null}}}}"
    samples = SAMPLED[0] in keys

    def config(out: Path) -> Config:
        return config_of(
            *(tiny_model, digits / "rl.jsonl" if samples else pair_file, digits, out),
            *("data.train_batch_size=6", "data.num_workers=0", "trainer.max_steps=6"),
            "trainer.checkpoints={save_steps: 2, save_total_limit: 9}",
            *([own] if samples else []),
            *keys,
            command=command,
        )

    assert_kills_change_nothing(config, tmp_path)


PARTS: Reached = {
    "in the save of a policy": lambda run: (
        run / "round_1/policy/checkpoints/step_000002.tmp/model.safetensors"
    ).exists(),
    "in the training of a reward model": lambda run: bool(
        text_of(run / "round_1/reward_model/metrics.jsonl")
    ),
    "after a round": lambda run: (run / "round_1/reward_model/checkpoints/step_000002").exists(),
}


@pytest.mark.slow
def test_iterative_grpo_resumes_bit_exact_after_sigkill(
    tiny_model, digits, pair_file, reward_model, tmp_path
):
    (tmp_path / "own.py").write_text(LENGTH_PARITY)
    own = f"own: {{type: '{tmp_path}/own.py:reward', sandbox: null, weight: 0}}"
    liked = f"liked: {{type: reward_model, path: '{reward_model}'}}"
    folder = tmp_path / "run"  # the state of a reward model names the rankings by their paths
    config = config_of(
        *(tiny_model, digits / "rl.jsonl", digits, folder),
        f"rewards={{{own}, {liked}}}",
        *("data.train_batch_size=4", "data.num_workers=0", *SAMPLED),
        *("trainer.max_steps=2", "iterative_grpo.rounds=2", "iterative_grpo.rm_steps=2"),
        *(f"iterative_grpo.history={pair_file}", "iterative_grpo.ranked_by=own"),
        *("eval.accuracy_function=own", "trainer.checkpoints={save_steps: 1}"),
        command="iterative-grpo",
    )
    assert start(config).wait() == 0
    whole = folder.rename(tmp_path / "whole")
    kill_and_resume(config, PARTS)
    parts = [path.parent.relative_to(whole) for path in sorted(whole.glob("round_*/*/config.yaml"))]
    assert len(parts) == 3  # the last round has no reward model
    for part in parts:
        assert_same(whole / part, folder / part)
