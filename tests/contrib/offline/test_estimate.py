"""GPUs that are proposed for the wing's commands, and what is estimated of them."""

from __future__ import annotations

import pytest

from mmr1.config.file import config_from
from mmr1.estimate.gpus import Gpus
from mmr1.estimate.memory import GIB
from mmr1.estimate.proposal import propose


@pytest.mark.parametrize(
    ("command", "overrides", "expected"),
    [
        ("rm", [], (8, 1, False)),
        ("dpo", [], (8, 1, False)),
        ("dpo", ["dpo.rounds.count=2"], (8, 8, True)),
        ("iterative-grpo", [], (8, 8, True)),
    ],
)
def test_ranks_and_engines_are_proposed_by_what_a_run_samples(
    command, overrides, expected, tiny_model, tmp_path
):
    model = {"model": {"path": str(tiny_model)}}
    config = config_from(model, [f"trainer.output_dir={tmp_path}", *overrides], command)
    proposed = propose(config, Gpus(8, 80 * GIB)).config
    numbers = proposed.resources.ranks, proposed.engines, proposed.rollout.colocated
    assert numbers == expected


@pytest.mark.parametrize(
    ("section", "samples"),
    [("rm: {}", False), ("dpo: {}", False), ("dpo: {rounds: {count: 2}}", True)],
)
def test_a_run_on_records_has_no_engine(digits, tiny_model, tmp_path, mmr1, section, samples):
    path = tmp_path / "run.yaml"
    data = digits / "rl.jsonl"
    path.write_text(f"model: {{path: {tiny_model}}}\ndata: {{train: {data}}}\n{section}\n")
    code, out, err = mmr1("doctor", "--estimate", path, "--memory", "8", "--gpus", "2")
    assert code == 0, err
    assert ("engine" in out, "all 2 GPUs learn" in out) == (samples, not samples)


@pytest.mark.parametrize("command", ["dpo", "rm", "iterative-grpo"])
def test_a_command_runs_in_one_process_by_default(command, tiny_model, tmp_path, mmr1):
    (tmp_path / "run.yaml").write_text(f"model: {{path: {tiny_model}}}\n")
    code, out, _ = mmr1(command, tmp_path / "run.yaml", "--dry-run")
    assert code == 0
    assert "ranks: 1\n" in out
