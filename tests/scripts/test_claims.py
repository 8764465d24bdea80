"""The laboratory of claims: its statistics, its files, its page, and that its quick runs learn."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
from PIL import Image

from mmr1.config.file import load_config
from scripts.claims.claim import CLAIMS, Claim, Hypothesis, Measured, Trial, load, names
from scripts.claims.page import PAGE, anchor, facts, page, table, write_plot
from scripts.claims.results import Result, by_seed, difference_of, read_results
from scripts.claims.start.start import read, write_splits
from scripts.claims.statistics import Estimate, estimate, of_all, paired, verdict
from scripts.claims.training import settings, tenths
from tests.paths import REPOSITORY

YAMLS = sorted(CLAIMS.rglob("*.yaml"))
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
    assert verdict(estimate([0.5]), 0.1) == "undecided in small"


def test_differences_are_paired_by_seed():
    """Their interval is narrow although each arm's is wide."""
    difference = paired([0.11, 0.52, 0.93], [0.01, 0.40, 0.85])
    assert difference.mean == pytest.approx(0.1)
    assert difference.low == pytest.approx(0.1 - T_2 * 0.02 / math.sqrt(3), rel=1e-4)
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.01, 0.2, "holds"),
        (0.06, 0.2, "holds"),
        (-0.01, 0.2, "undecided in small"),
        (-0.01, 0.04, "does not hold"),
        (0.01, 0.04, "does not hold"),  # it is there, and too small to matter
        (-0.3, -0.1, "does not hold"),
    ],
)
def test_a_verdict_follows_from_the_interval(low, high, expected):
    assert verdict(Estimate((low + high) / 2, low, high, 5), 0.05) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.04, 0.04, "holds"),
        (0.01, 0.04, "holds"),
        (-0.06, 0.04, "undecided in small"),
        (-0.1, -0.06, "does not hold"),
    ],
)
def test_not_worse_by_as_much(low, high, expected):
    assert verdict(Estimate((low + high) / 2, low, high, 5), -0.05) == expected


def test_a_claim_holds_if_all_of_it_does():
    assert of_all(["holds", "holds"]) == "holds"
    assert of_all(["holds", "undecided in small"]) == "undecided in small"
    assert of_all(["holds", "undecided in small", "does not hold"]) == "does not hold"


def test_results_are_matched_by_seed_whatever_their_order():
    def result(arm: str, seed: int, value: float) -> Result:
        return Result(arm, seed, {"x": value}, [], 1, "abc")

    results = [result("b", 1, 0.4), result("a", 0, 0.3), result("b", 0, 0.2), result("a", 1, 0.6)]
    assert by_seed(results, "a", "x") == [0.3, 0.6]
    difference, _ = difference_of(results, Hypothesis("", "x", "a", "b", 0.05))
    assert difference.mean == pytest.approx((0.1 + 0.2) / 2)


TWO_SEEDS = [
    Result(arm, seed, {"sampled": value, "greedy": 0.5}, [value, value + 0.1], 20, "abcdefabcdef")
    for arm, values in {"a": (0.5, 0.7), "b": (0.4, 0.7)}.items()
    for seed, value in enumerate(values)
]
"""Two arms whose differences are 0.1 and 0: mean 0.05, deviation 0.1 / sqrt(2)."""
SMALL = Claim(
    title="Small",
    sentence="a is above b.",
    source="nobody",
    arms={"a": (), "b": ()},
    run=lambda trial: Measured({}),
    hypotheses=(Hypothesis("a is above b.", "sampled", "a", "b", 0.05),),
    shown={"sampled": "accuracy", "greedy": "greedy"},
    curve="accuracy",
)


def test_a_table_has_means_differences_and_the_verdict():
    """Student's t at 0.975 with one degree of freedom is 12.706; s / sqrt(2) is 0.05."""
    lines = list(table(SMALL, TWO_SEEDS))
    assert lines[2] == "| a | 0.600 (-0.671 to 1.871) | 0.500 (0.500 to 0.500) |"
    assert lines[-1] == (
        "| a is above b. | +0.050 (-0.585 to 0.685) | 0.05 | 2 | undecided in small |"
    )
    assert facts(TWO_SEEDS) == (
        "4 trials of 20 CPU seconds each on average, at commit `abcdefabcdef`."
    )


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_plot_has_a_line_for_each_arm(seeds, tmp_path):
    results = [result for result in TWO_SEEDS if result.seed < seeds]
    write_plot(tmp_path / "small.png", SMALL, results)
    with Image.open(tmp_path / "small.png") as picture:
        assert picture.size == (540, 288)


def test_tenths():
    assert tenths([1.0, 2.0, 4.0, math.nan, 6.0, 8.0], 3) == (1.5, 4.0, 7.0)


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: str(path.relative_to(CLAIMS)))
def test_every_yaml_is_a_configuration(path):
    assert load_config(path).trainer.threads == 1


@pytest.mark.parametrize("name", names())
def test_every_arm_is_a_configuration(name):
    """Quick trials change its length last, and not what it is about."""
    trial = Trial("", 0, Path("own"), Path("start"), quick=True)
    for overrides in load(name).arms.values():
        own = [*overrides, *settings(trial, Path("run"), Path("model"))]
        assert load_config(CLAIMS / name / "rl.yaml", own).trainer.max_steps == 40


@pytest.mark.parametrize("name", names())
def test_a_claim_is_whole(name):
    """What was written before the run is what is tested."""
    claim, folder = load(name), CLAIMS / name
    readme = " ".join((folder / "README.md").read_text().split())
    assert readme.startswith(f"# {claim.title} ")
    for number, hypothesis in enumerate(claim.hypotheses, 1):
        assert f"{number}. {hypothesis.text}" in readme
        assert {hypothesis.more, hypothesis.less} <= set(claim.arms)
        assert f"{hypothesis.smallest:g}" in readme
    assert all(f"`{path.name}`" in readme or path.stem == "rl" for path in folder.glob("*.yaml"))
    for arxiv in re.findall(r"\[[^]]+\]\([^)]+\)", claim.source):
        assert arxiv in readme
    script = folder / "run.sh"
    assert os.access(script, os.X_OK)
    assert f"scripts.claims.run {name} " in script.read_text()
    assert re.fullmatch(r"[a-z -]+", anchor(claim.title))


@pytest.mark.parametrize("name", names())
def test_the_results_are_of_every_arm_and_seed(name):
    claim, results = load(name), read_results(name)
    seeds = sorted({result.seed for result in results})
    assert seeds == list(range(len(seeds)))
    assert [(r.seed, r.arm) for r in results] == [(s, arm) for s in seeds for arm in claim.arms]
    for result in results:
        assert set(claim.shown) | {h.measure for h in claim.hypotheses} <= set(result.numbers)
        assert re.fullmatch(r"[0-9a-f]{12}\+?", result.commit)


def test_the_page_is_what_the_script_writes():
    assert PAGE.read_text() == page(), "run: python -m scripts.claims.page"


def test_no_scan_is_in_two_splits(digits, tmp_path):
    (tmp_path / "data").symlink_to(digits)
    write_splits(tmp_path)
    splits = [{r["id"] for r in read(tmp_path / f"{s}.jsonl")} for s in ("sft", "rl", "eval")]
    assert [len(ids) for ids in splits] == [30, 371, 500]
    assert len(set.union(*splits)) == 901


def test_shares_of_questions_by_difficulty():
    from scripts.claims.deviation_in_advantage.claim import Question, shares

    questions = [
        Question(0.0, 1.0, 4.0),  # at an end, and so is the next
        Question(0.9, 2.0, 1.0),
        Question(0.5, 3.0, 2.0),
        Question(0.25, 2.0, 3.0),
    ]
    measured = shares(questions)
    assert measured.numbers["questions"] == 0.5
    assert measured.numbers["weight"] == 3 / 8
    assert measured.numbers["norm"] == 5 / 10
    assert measured.numbers["rate"] == (0.0 + 0.9 + 0.5 + 0.25) / 4
    assert measured.curve == (1 / 8, 2 / 8, 3 / 8, 0.0, 2 / 8, 0.0)


def test_demonstrations_of_free_length(digits, tmp_path):
    """They say one to four times what they said, and answer the same."""
    from scripts.claims.length_bias.claim import lengthened, said

    rows = read(digits / "sft.jsonl")
    longer = list(lengthened(rows, random.Random(0)))
    counts = {said(row["messages"][-1]).count("The digit is") for row in longer}
    assert counts == {1, 2, 3, 4}
    for row, other in zip(rows, longer, strict=True):
        once, often = (said(r["messages"][-1]) for r in (row, other))
        sentence = re.findall("The digit is [a-z]+[.]", once)
        assert re.sub("(The digit is [a-z]+[.] ?)+", sentence[0], often) == once


def test_lengths_of_right_and_of_wrong_answers():
    from scripts.claims.length_bias.claim import lengths

    rows = [
        {"mode": "sampled", "right": True, "tokens": 10},
        {"mode": "sampled", "right": False, "tokens": 20},
        {"mode": "sampled", "right": False, "tokens": 30},
        {"mode": "greedy", "right": False, "tokens": 99},
    ]
    assert lengths(rows) == {"right_length": 10, "wrong_length": 25}


def test_the_reward_that_can_be_hacked():
    from scripts.claims.format_and_accuracy.rewards import mentions

    assert mentions("<think>The digit is two.</think><answer>0</answer>", "2") == 1.0
    assert mentions("<answer>01234</answer>", "2") == 1.0
    assert mentions("<think>The digit is one.</think><answer>0</answer>", "2") == 0.0


def run_quick(name: str, folder: Path) -> dict[str, Result]:
    """The result of each arm of ``run.sh --quick``."""
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY)}
    command = [CLAIMS / name / "run.sh", "--quick", "--output", folder]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    files = folder.glob(f"quick/seed0/{name}/*/result.json")
    results = [Result(**json.loads(file.read_text())) for file in files]
    return {result.arm: result for result in results}


@pytest.mark.slow
def test_quick_trials_learn(tmp_path):
    """From a cold start the accuracy rises; from random weights there is nothing to reinforce.

    Trials of a seed are the same on the same machine. The rise was 0.11 when this was written.
    """
    arms = run_quick("cold_start", tmp_path)
    learned = arms["cold start, then RL"]
    assert fmean(learned.curve[-3:]) > fmean(learned.curve[:3]) + 0.05
    assert learned.numbers["sampled"] > arms["RL alone"].numbers["sampled"] + 0.3
    assert arms["SFT alone"].numbers["greedy"] > 0.6
    assert set(arms) == set(load("cold_start").arms)

    weighed = run_quick("deviation_in_advantage", tmp_path)
    without, with_deviation = (weighed[f"{word} deviation"].numbers for word in ("without", "with"))
    assert 0.2 < without["rate"] == with_deviation["rate"] < 0.95  # SFT has taught some of it
    assert with_deviation["weight"] > without["weight"] > 0
    assert with_deviation["norm"] > without["norm"] > 0
