"""Configurations over the same seeds: what is refused, what is measured, and a comparison that is
interrupted and repeated.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from mmr1.config.file import load_config
from mmr1.report.colours import COLOURS
from mmr1_contrib.lab.compare.metrics import check_metric, evaluation_of, tenths, values_of
from mmr1_contrib.lab.compare.plan import Arm, Plan, Run, differing, read_plan
from mmr1_contrib.lab.compare.results import differences, page, write_plot
from mmr1_contrib.lab.compare.statistics import Estimate, estimate, paired, verdict
from mmr1_contrib.lab.compare.trials import RunFailedError, Trial, run_trials
from tests.jsonl import read_jsonl

T_2, T_4 = 4.302653, 2.776445
"""Student's t at 0.975 with 2 and 4 degrees of freedom, from a printed table."""


def test_an_interval_is_students():
    of_three = estimate([1.0, 2.0, 6.0])  # deviation sqrt((4 + 1 + 9) / 2)
    assert of_three.mean == 3.0
    assert of_three.low is not None
    assert of_three.high is not None
    assert of_three.high - 3 == pytest.approx(T_2 * math.sqrt(7) / math.sqrt(3), rel=1e-6)
    assert 3 - of_three.low == pytest.approx(of_three.high - 3)
    of_five = estimate([0.0, 0.0, 0.0, 0.0, 5.0])  # deviation sqrt(20 / 4)
    assert of_five.high == pytest.approx(1 + T_4, rel=1e-6)


def test_one_seed_has_no_interval():
    assert estimate([0.5]) == Estimate(0.5, None, None, 1)
    assert verdict(estimate([0.5]), 0.1) == "undecided"


def test_differences_are_paired_by_seed():
    """Their interval is narrow although each arm's is wide."""
    difference = paired([0.11, 0.52, 0.93], [0.01, 0.40, 0.85])
    assert difference.mean == pytest.approx(0.1)
    assert difference.low == pytest.approx(0.1 - T_2 * 0.02 / math.sqrt(3), rel=1e-4)
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("low", "high", "smallest", "expected"),
    [
        (0.01, 0.2, 0.05, "holds"),
        (0.06, 0.2, 0.05, "holds"),
        (-0.01, 0.2, 0.05, "undecided"),
        (-0.01, 0.04, 0.05, "does not hold"),
        (0.01, 0.04, 0.05, "does not hold"),  # it is there, and too small to matter
        (-0.3, -0.1, 0.05, "does not hold"),
        (-0.04, 0.04, -0.05, "holds"),  # not worse by as much
        (0.01, 0.04, -0.05, "holds"),
        (-0.06, 0.04, -0.05, "undecided"),
        (-0.1, -0.06, -0.05, "does not hold"),
    ],
)
def test_a_verdict_follows_from_the_interval(low, high, smallest, expected):
    assert verdict(Estimate((low + high) / 2, low, high, 5), smallest) == expected


def test_tenths():
    assert tenths([1.0, 2.0, 4.0, math.nan, 6.0, 8.0], 3) == (1.5, 4.0, 7.0)


@pytest.fixture
def run(tmp_path) -> Path:
    """What is left of a run of 20 steps that was evaluated."""
    steps = [{"step": s, "reward/mean": s / 20, "entropy": 2.0} for s in range(1, 21)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    greedy = {
        "accuracy": 0.75,
        "interval": [0.6, 0.9],
        "length_mean": 12.5,
        "components": {"format": 0.5, "math": None},
        "pass_at": {"4": 0.9},
        "majority": None,
        "by": {"plain": {"accuracy": 0.5, "prompts": 4}, "no ink": {"accuracy": 0.25}},
    }
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval/result.json").write_text(json.dumps({"prompts": 8, "greedy": greedy}))
    return tmp_path


def test_the_metrics_of_a_run(run):
    assert evaluation_of(run) == {
        "eval/greedy": 0.75,
        "eval/greedy_accuracy": 0.75,
        "eval/greedy_length_mean": 12.5,
        "eval/greedy/format": 0.5,
        "eval/greedy_pass@4": 0.9,
        "eval/greedy[plain]": 0.5,
        "eval/greedy[no ink]": 0.25,
    }

    def value_of(run: Path, metric: str) -> float:
        return values_of([run], {"it": metric})["it"]

    assert value_of(run, "reward/mean") == pytest.approx((19 + 20) / 2 / 20)
    assert value_of(run, "reward/mean:mean") == pytest.approx(10.5 / 20)
    assert value_of(run, "reward/mean:last") == 1.0
    assert value_of(run, "entropy:sum") == 40.0
    assert value_of(run, "eval/greedy - eval/greedy/format") == 0.25
    with pytest.raises(ValueError, match=r"no metric 'eval/gredy'.*'eval/greedy'"):
        value_of(run, "eval/gredy")
    with pytest.raises(ValueError, match="after the colon comes one of end, mean, sum, last"):
        value_of(run, "entropy:median")


def test_metrics_are_calculated_from_those_named_before(run, tmp_path):
    metrics = {
        "plain": "eval/greedy[plain]",
        "other": "eval/greedy[no ink]",
        "lost": "1 - other / plain",
        "mean": "( plain + other ) / 2",
        "gain": "eval/greedy - eval/greedy@before",
        "undefined": "plain / ( plain - plain )",
    }
    before = tmp_path / "before"
    (before / "eval").mkdir(parents=True)
    result = json.loads((run / "eval/result.json").read_text())
    result["greedy"]["accuracy"] = 0.25
    (before / "eval/result.json").write_text(json.dumps(result))
    found = values_of([before, run], metrics)
    assert found["lost"] == 0.5
    assert found["mean"] == 0.375
    assert found["gain"] == 0.5
    assert math.isnan(found["undefined"])
    for metric in ("plain +", "plain ( other )", "( plain", "/ plain"):
        with pytest.raises(ValueError, match="is not a calculation"):
            check_metric(metric)


def test_a_metric_before_may_name_its_way(run, tmp_path):
    check_metric("entropy:sum@before / 2")
    assert values_of([run, tmp_path], {"half": "entropy:sum@before / 2"}) == {"half": 20.0}
    with pytest.raises(ValueError, match="after the colon comes one of"):
        check_metric("entropy:median@before")


@pytest.fixture
def arms(tiny_model, digits, tmp_path) -> list[Path]:
    """Two configurations that differ in the algorithm."""
    files = []
    for name in ("grpo", "rloo"):
        tree = {
            "model": {"path": str(tiny_model), "dtype": "float32"},
            "data": {"train": str(digits / "rl.jsonl"), "train_batch_size": 2},
            "rollout": {
                "engine": "hf",
                "n": 3,
                "max_prompt_length": 56,
                "max_response_length": 8,
            },
            "rewards": {"format": {}},
            "algorithm": {"name": name},
            "trainer": {
                "max_steps": 2,
                "threads": 1,
                "logging_steps": 100,
                "validation": {"data": str(digits / "eval.jsonl")},
            },
            "eval": {"limit": 2},
        }
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump(tree))
    return files


def test_arms_are_named_by_their_files_and_know_how_they_differ(arms, tmp_path):
    (tmp_path / "other").mkdir()
    copy = tmp_path / "other/grpo.yaml"
    copy.write_text(arms[0].read_text().replace("n: 3", "n: 4"))
    plan = read_plan([*map(str, arms), "trainer.max_steps=3"], ["reward/mean"])
    assert [arm.name for arm in plan.arms] == ["grpo", "rloo"]
    assert plan.arms[0].runs[-1].config(7, tmp_path).seed == 7
    assert plan.arms[0].runs[-1].config(7, tmp_path).trainer.max_steps == 3
    assert differing(plan.arms)["algorithm.name"] == {"grpo": "grpo", "rloo": "rloo"}
    plan = read_plan([str(arms[0]), str(copy)], ["reward/mean"])
    assert [arm.name for arm in plan.arms] == [f"{tmp_path.name}/grpo", "other/grpo"]
    assert list(differing(plan.arms)) == ["rollout.n"]


def test_what_cannot_be_compared_is_refused_before_the_first_run(arms, tmp_path):
    first, second = map(str, arms)
    same = tmp_path / "same.yaml"
    same.write_text(arms[0].read_text())
    metrics = ["reward/mean"]
    for arguments, named, message in (
        ([first], metrics, "needs two configurations or more"),
        ([first, second], [], "name what is compared: --metric"),
        ([first, str(same)], metrics, "grpo and same are the same configuration"),
        ([first, first], metrics, "is named twice"),
        ([first, second, "seed=1"], metrics, "seed is set by the comparison"),
        (
            [first, second, "trainer.validation=null"],
            ["eval/greedy"],
            "needs records in trainer.validation.data",
        ),
        ([first, second, "model.path=/no/model"], metrics, "/no/model"),
        ([first, str(tmp_path / "missing.yaml")], metrics, "no such configuration file"),
        ([first, second], ["entropy:median"], "after the colon"),
    ):
        with pytest.raises(ValueError, match=message):
            read_plan(arguments, named)


def comparison(tmp_path: Path, **keys: object) -> str:
    tree = {
        "base": "grpo.yaml",
        "arms": {"wide": ["rollout.n=4"], "narrow": [], "other": ["data.train=runs/{seed}.jsonl"]},
        "metrics": {"reward": "reward/mean"},
        **keys,
    }
    path = tmp_path / "comparison.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return str(path)


def test_a_file_has_arms_with_overrides_and_hypotheses(arms, tmp_path):
    expected = {"text": "wide is better", "metric": "reward", "more": "wide", "less": "narrow"}
    path = comparison(tmp_path, hypotheses=[{**expected, "smallest": 0.1}])
    with pytest.raises(ValueError, match=r"runs/0.jsonl"):  # {seed} is the seed
        read_plan([path], [])
    two = {"wide": ["rollout.n=4"], "narrow": []}
    path = comparison(tmp_path, arms=two, hypotheses=[{**expected, "smallest": 0.1}])
    plan = read_plan([path], [])
    assert plan.arms[0].runs[-1].config(0, tmp_path).rollout.n == 4
    trials = [
        Trial(arm, seed, {"reward": value + seed}, {"reward": (0.1, 0.2)})
        for arm, value in (("narrow", 0.0), ("wide", 0.5))
        for seed in (1, 0)
    ]
    (found,) = differences(plan, trials)
    assert (found.difference.mean, found.verdict) == (0.5, "holds")
    assert "| wide is better | reward | +0.500 (0.500 to 0.500) | 0.1 | 2 | holds |" in page(
        plan, trials
    )
    for keys, message in (
        ({"arms": two, "hypotheses": [{**expected, "less": "x", "smallest": 0}]}, "the arm 'x'"),
        ({"arms": two, "hypotheses": [{**expected, "metric": "x", "smallest": 0}]}, "metric 'x'"),
        ({"arms": two, "base": None}, "'base' is missing"),
        ({"arms": two, "margins": {}}, r"comparison.yaml: margins: "),
    ):
        with pytest.raises(ValueError, match=message):
            read_plan([comparison(tmp_path, **keys)], [])


@pytest.mark.parametrize("curve", [(0.1, 0.2), ()])
def test_a_plot_has_curves_or_the_seeds(curve, tmp_path):
    plan = Plan(tuple(Arm(name, (Run(name, Path("x")),)) for name in "ab"), {"m": "m", "n": "n"})
    trials = [
        Trial(arm, seed, {"m": 0.1 * seed, "n": 0.0}, {"m": curve, "n": curve})
        for arm in "ab"
        for seed in range(2)
    ]
    write_plot(tmp_path / "plot.png", plan, trials)
    with Image.open(tmp_path / "plot.png") as picture:
        assert picture.size == (2400, 640)


PLOT = {"of": "reward/mean", "label": "rewards"}


@pytest.mark.parametrize("curve", [(0.1, 0.2), ()])
def test_a_plot_of_what_one_arm_lacks(curve, arms, tmp_path):
    """SFT has no rollouts."""
    plotted = comparison(tmp_path, arms={"RL": [], "other": ["rollout.n=4"]}, plot=PLOT)
    plan = read_plan([plotted], [])
    label = PLOT["label"]
    trials = [
        Trial(arm, seed, {"reward": 0.1}, {label: curve if arm == "RL" else ()})
        for arm in ("RL", "other")
        for seed in range(2)
    ]
    write_plot(tmp_path / "plot.png", plan, trials)
    with Image.open(tmp_path / "plot.png") as picture:
        drawn = np.asarray(picture.convert("RGB"))
    blue = tuple(int(COLOURS[0][i : i + 2], 16) for i in (1, 3, 5))
    assert (drawn == blue).all(2).any() == bool(curve)


def test_a_comparison_trains_every_arm_with_every_seed_once(arms, tmp_path, mmr1):
    out = tmp_path / "out"
    options = ["--metric", "eval/greedy", "--metric", "reward/mean", "--output", out]
    code, printed, message = mmr1("compare", *arms, *options, "--seeds", 2)
    assert code == 0, message
    assert [line for line in printed.splitlines() if ", seed " in line] == [
        *("grpo, seed 0", "rloo, seed 0", "grpo, seed 1", "rloo, seed 1")
    ]
    found = json.loads((out / "compare.json").read_text())
    assert [(t["arm"], t["seed"]) for t in found["trials"]] == [
        *(("grpo", 0), ("rloo", 0), ("grpo", 1), ("rloo", 1))
    ]
    for trial in found["trials"]:
        folder = out / trial["arm"] / f"seed{trial['seed']}"
        rewards = [row["reward/mean"] for row in read_jsonl(folder / "metrics.jsonl")]
        assert trial["values"]["reward/mean"] == rewards[-1]
    (difference, _) = found["differences"]
    assert (difference["more"], difference["less"]) == ("rloo", "grpo")
    assert "| `algorithm.name` |" in (out / "compare.md").read_text()
    assert (out / "compare.png").stat().st_size > 0
    # Once more: nothing is left to run.
    before = (out / "compare.json").read_bytes()
    code, printed, _ = mmr1("compare", *arms, *options, "--seeds", 2)
    assert code == 0
    assert ", seed " not in printed
    assert (out / "compare.json").read_bytes() == before
    # A folder of another comparison is not mixed into this one.
    for override, refusal in (
        ("rollout.n=4", "another rollout.n"),
        ("trainer.max_steps=1", "longer run than trainer.max_steps=1"),
    ):
        code, _, message = mmr1("compare", *arms, override, *options, "--seeds", 2)
        assert code == 2
        assert refusal in message


@pytest.fixture
def sft_file(tiny_model, digits, tmp_path) -> Path:
    tree = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "data": {"train": str(digits / "sft.jsonl"), "train_batch_size": 2},
        "trainer": {"max_steps": 1, "threads": 1, "logging_steps": 100},
    }
    path = tmp_path / "sft.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.slow  # seven processes
def test_arms_run_one_after_another_from_the_model_before(arms, sft_file, tmp_path, mmr1):
    """SFT before both arms; one trains by GRPO, the other by SFT and is evaluated then."""
    sft = {"command": "sft", "base": sft_file.name}
    two = {"GRPO": ["rollout.n=4"], "SFT": [sft, {**sft, "overrides": ["trainer.max_steps=2"]}]}
    metrics = {"greedy": "eval/greedy", "gain": "eval/greedy - eval/greedy@before"}
    file = comparison(tmp_path, before=[sft], arms=two, metrics=metrics)
    out = tmp_path / "out"
    options = ["--output", out, "--seeds", 1]
    code, printed, message = mmr1("compare", file, "eval.limit=3", *options)
    assert code == 0, message
    names = ["before all", "GRPO", "SFT before", "SFT"]
    assert [line for line in printed.splitlines() if "seed 0" in line] == [
        f"{name}, seed 0" for name in names
    ]
    models = [
        yaml.safe_load((out / name / "seed0/config.yaml").read_text())["model"]["path"]
        for name in names
    ]
    first = str(out / "before all/seed0/checkpoints/step_000001")
    second = str(out / "SFT before/seed0/checkpoints/step_000001")
    assert models[1:] == [first, first, second]
    assert [(out / name / "seed0/eval/result.json").is_file() for name in names] == [True] * 4
    evaluated = yaml.safe_load((out / "SFT/seed0/eval/config.yaml").read_text())
    assert evaluated["model"]["path"] == str(out / "SFT/seed0/checkpoints/step_000002")
    for name in ("before all", "SFT"):
        result = json.loads((out / name / "seed0/eval/result.json").read_text())
        assert result["prompts"] == 3
    page = (out / "compare.md").read_text()
    assert '| `command` | "train" | "sft" |' in page
    assert "| `rollout.n` |" not in page  # SFT has no rollouts
    code, printed, _ = mmr1("compare", file, "eval.limit=3", *options)
    assert (code, "seed 0" in printed) == (0, False)


def test_runs_of_an_arm_start_from_the_model_before(arms, sft_file, tmp_path):
    sft = {"command": "sft", "base": sft_file.name}
    file = comparison(tmp_path, before=[sft], arms={"RL": [], "SFT": [sft]})
    plan = read_plan([file, "eval.limit=3", "trainer.max_steps=5"], [])
    first, last = plan.arms[1].runs
    assert first is not last
    assert plan.arms[0].runs[0] == first
    model = tmp_path / "model"
    assert first.config(1, tmp_path).trainer.max_steps == 1  # what is compared is changed
    assert last.config(1, tmp_path, model).trainer.max_steps == 5
    assert last.config(1, tmp_path, model).model.path == str(model)
    for run in (first, last):
        path, *overrides = run.evaluation_arguments(1, tmp_path, model)
        evaluated = load_config(Path(path), overrides, "eval")
        assert (evaluated.eval.limit, evaluated.seed) == (3, 1)
        assert evaluated.eval.output_dir == str(run.folder(1, tmp_path) / "eval")
    assert differing(plan.arms)["command"] == {"RL": "train", "SFT": "sft"}
    assert "rollout.n" not in differing(plan.arms)


def test_runs_of_arms_are_checked_before_the_first(arms, sft_file, tmp_path):
    sft = {"command": "sft", "base": sft_file.name}
    for keys, message in (
        ({"metrics": {"gain": "eval/greedy@before"}}, "GRPO: a metric@before needs a run before"),
        ({"arms": {"SFT": [{"command": "sft"}], "GRPO": []}}, "mmr1 sft does not read"),
        ({"arms": {"SFT": [{**sft, "overrides": ["model.path=/no"]}], "GRPO": []}}, "/no"),
        ({"arms": {"SFT": [{**sft, "command": "eval"}], "GRPO": []}}, "command"),
    ):
        two = {"arms": {"GRPO": [], "SFT": [sft]}, **keys}
        with pytest.raises(ValueError, match=message):
            read_plan([comparison(tmp_path, **two)], [])


@pytest.mark.slow
def test_a_run_that_fails_is_named_with_its_log(arms, tmp_path):
    plan = read_plan([*map(str, arms)], ["reward/mean"])
    (tmp_path / "out/grpo/seed0").mkdir(parents=True)
    (tmp_path / "out/grpo/seed0/train.log").mkdir()  # where a file should be
    with pytest.raises(RunFailedError, match=r"grpo, seed 0 ended with code 1: .*seed0.log\)"):
        run_trials(plan, [0], tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_comparison_that_is_stopped_lets_the_run_save_and_goes_on_from_there(
    number, arms, tmp_path
):
    """Nor does output that fails end it."""
    out = tmp_path / "out"
    options = ["--metric", "reward/mean", "--seeds", "1", "--output", str(out)]
    command = [sys.executable, "-m", "mmr1", "compare", *map(str, arms), *options]
    command += ["trainer.max_steps=60"]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            command,
            stdout=full,
            stderr=full,
            # The tests may run under nohup.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
    metrics = out / "grpo/seed0/metrics.jsonl"
    while not metrics.exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait() == 128 + number
    done = len(read_jsonl(metrics))
    assert 0 < done < 60
    assert (out / f"grpo/seed0/checkpoints/step_{done:06d}").is_dir()
    subprocess.run(command, check=True)
    assert [row["step"] for row in read_jsonl(metrics)] == [*range(1, 61)]
    assert not (out / "grpo/seed0/set_aside").exists()
