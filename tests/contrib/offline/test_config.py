"""The wing's commands and sections: what they read, refuse and warn of."""

from __future__ import annotations

import json

import pytest
import yaml

from mmr1.config import Config
from mmr1.config.commands import command_of, optional_sections
from mmr1.config.file import config_from, load, read_written, redacted
from mmr1_contrib.offline.commands import DPO
from mmr1_contrib.offline.dpo import run_dpo
from mmr1_contrib.offline.reward_model import run_reward_model
from tests.contrib.offline.runs import first_rows

MODEL = {"model": {"path": "m"}}
ROUNDS = "dpo.rounds.count=2"


def warnings_of(tmp_path, *overrides: str) -> tuple[str, ...]:
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: m}")
    return load(path, overrides, "dpo").warnings


def test_kto_warns_of_pairs_per_prompt(tmp_path):
    (row,) = [need for need in DPO.needs if need.warns]
    keys = (ROUNDS, "dpo.rounds.pairs_per_prompt=2")
    (warning,) = warnings_of(tmp_path, *keys, "dpo.loss=kto")
    assert row.why in warning
    assert warnings_of(tmp_path, *keys) == ()


@pytest.mark.parametrize(("rounds", "warned"), [([], True), ([ROUNDS], False)])
def test_dpo_on_records_warns_that_it_evaluates_nothing(rounds, warned, tmp_path):
    warnings = warnings_of(tmp_path, "trainer.validation.data=x", *rounds)
    assert any("evaluates nothing" in warning for warning in warnings) == warned


@pytest.mark.parametrize(
    ("overrides", "command"),
    [
        (["algorithm.loss.top_entropy_quantile=0.2"], "dpo"),
        (["algorithm.loss.top_entropy_quantile=0.2"], "rm"),
        (["dpo.rounds.pairs_per_prompt=2"], "dpo"),
        (["dpo.pairs_per_prompt=2"], "dpo"),
        (["dpo.loss.type=ipo", "dpo.loss.label_smoothing=0.1"], "dpo"),
        (["dpo.loss=kto", "dpo.loss.nll_coef=1"], "dpo"),
        (["dpo.loss.gamma=1"], "dpo"),
        (["dpo.loss.beta=0.3"], "train"),
        (["iterative_grpo.rounds=5"], "train"),
        (["rm.type=process"], "train"),
        (["rm.step_separator=x"], "rm"),
        (["environment.tools=[zoom]"], "dpo"),
        ([ROUNDS, "environment.tools=[zoom]"], "dpo"),
        ([ROUNDS, "data.curriculum={function: math}"], "dpo"),
    ],
)
def test_an_idle_setting_is_refused(overrides, command):
    with pytest.raises(ValueError, match=r".") as error:
        config_from(MODEL, overrides, command)
    named = [override.partition("=")[0].split(".")[0] for override in overrides]
    assert any(name in str(error.value) for name in named)
    assert "Extra inputs" not in str(error.value)


@pytest.mark.parametrize(
    ("command", "rate", "schedule"),
    [("iterative-grpo", 1e-6, "constant"), ("dpo", 1e-6, "linear"), ("rm", 1e-4, "linear")],
)
def test_a_command_has_its_learning_rate(command, rate, schedule):
    optimizer = config_from(MODEL, command=command).optimizer
    assert (optimizer.lr, optimizer.scheduler.type) == (rate, schedule)


@pytest.mark.parametrize(
    ("command", "overrides", "sections"),
    [
        ("dpo", [], {"dpo"}),
        ("dpo", [ROUNDS], {"dpo", "rollout", "rewards", "scoring", "eval"}),
        ("rm", [], {"rm"}),
        (
            "iterative-grpo",
            [],
            {
                *("iterative_grpo", "rollout", "environment", "algorithm", "eval"),
                *("rewards", "scoring"),
            },
        ),
    ],
)
def test_a_file_has_the_sections_of_its_command(command, overrides, sections):
    written = redacted(config_from(MODEL, overrides, command))
    assert written.keys() & {*optional_sections()} == sections
    assert command_of(written) == command


@pytest.mark.parametrize(("command", "run"), [("rm", run_reward_model), ("dpo", run_dpo)])
def test_a_run_from_python_writes_the_sections_of_its_command(
    command, run, tiny_model, digits, pair_file, tmp_path
):
    """Whatever command the configuration was made for; ``eval.limit`` is none of its keys."""
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        data={"train": str(pair_file), "media_root": str(digits), "train_batch_size": 2},
        trainer={
            "max_steps": 1,
            "output_dir": str(tmp_path / "run"),
            "threads": 1,
            "validation": {"data": str(first_rows(pair_file, tmp_path))},
        },
        eval={"limit": 3},
    )
    run(config)
    written = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert {*optional_sections()} & written.keys() == {command}
    assert read_written(tmp_path / "run/config.yaml").command == command
    if command == "rm":
        assert json.loads((tmp_path / "run/eval/result.json").read_text())["pairs"] == 20
