"""The laboratory of claims: its files, its page, and that its quick runs learn."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean

import av
import numpy as np
import pytest
from PIL import Image

from mmr1.config.file import load_config
from mmr1.data.record import read_records
from mmr1.types import MediaRef, Sample
from mmr1_contrib.lab.claims.claim import (
    Result,
    claim_file,
    claim_names,
    hypothesis_verdict,
    read_claim,
    values_by_seed,
)
from mmr1_contrib.lab.claims.page import PAGE, anchor, facts, page, table, write_plot
from mmr1_contrib.lab.claims.run import QUICK
from mmr1_contrib.lab.compare.metrics import check_metric
from mmr1_contrib.lab.compare.plan import ComparisonFile, Hypothesis, Plot, arm_of
from scripts.claims.start.start import read, write_splits
from scripts.claims.tasks import build_once, scans
from tests.paths import REPOSITORY

CLAIMS = REPOSITORY / "scripts/claims"
NAMES = claim_names(CLAIMS)
YAMLS = sorted(path for path in CLAIMS.rglob("*.yaml") if path.name != "claim.yaml")


def test_results_are_matched_by_seed_whatever_their_order():
    def result(arm: str, seed: int, value: float) -> Result:
        return Result(arm, seed, {"x": value}, [], 1, "abc")

    results = [result("b", 1, 0.4), result("a", 0, 0.3), result("b", 0, 0.2), result("a", 1, 0.6)]
    assert values_by_seed(results, "a", "x") == [0.3, 0.6]
    difference, _ = hypothesis_verdict(
        results, Hypothesis(text="", metric="x", more="a", less="b", smallest=0.05)
    )
    assert difference.mean == pytest.approx((0.1 + 0.2) / 2)


TWO_SEEDS = [
    Result(arm, seed, {"sampled": value, "greedy": 0.5}, [value, value + 0.1], 20, "abcdefabcdef")
    for arm, values in {"a": (0.5, 0.7), "b": (0.4, 0.7)}.items()
    for seed, value in enumerate(values)
]
"""Two arms whose differences are 0.1 and 0: mean 0.05, deviation 0.1 / sqrt(2)."""
SMALL = ComparisonFile(
    title="Small",
    sentence="a is above b.",
    source="nobody",
    arms={"a": [], "b": []},
    hypotheses=[
        Hypothesis(text="a is above b.", metric="sampled", more="a", less="b", smallest=0.05)
    ],
    shown={"sampled": "accuracy", "greedy": "greedy"},
    plot=Plot(label="accuracy"),
)


def test_a_table_has_means_differences_and_the_verdict():
    """Student's t at 0.975 with one degree of freedom is 12.706; s / sqrt(2) is 0.05."""
    lines = list(table(SMALL, TWO_SEEDS))
    assert lines[2] == "| a | 0.600 (-0.671 to 1.871) | 0.500 (0.500 to 0.500) |"
    assert lines[-1] == (
        "| a is above b. | +0.050 (-0.585 to 0.685) | 0.05 | 2 | undecided: 18 seeds needed |"
    )
    assert facts(TWO_SEEDS) == (
        "4 trials of 20 CPU seconds each on average, at commit `abcdefabcdef`."
    )


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_plot_has_a_line_for_each_arm(seeds, tmp_path):
    results = [result for result in TWO_SEEDS if result.seed < seeds]
    write_plot(tmp_path / "small.png", SMALL, results)
    with Image.open(tmp_path / "small.png") as picture:
        assert picture.size == (1200, 640)


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: str(path.relative_to(CLAIMS)))
def test_every_yaml_is_a_configuration(path):
    command: str = "train" if path.stem == "rl" else "sft"
    assert load_config(path, command=command).trainer.threads == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_is_a_configuration(name):
    """Quick trials change its length last, and not what it is about."""
    claim = read_claim(CLAIMS / name).comparison
    if claim.base is None:
        assert (CLAIMS / name / "measure.py").is_file()
        return
    for arm in claim.arms:
        runs = arm_of(claim_file(CLAIMS / name), claim, arm, QUICK).runs
        assert runs[-1].config(0, Path("own")).trainer.max_steps == 40
        assert all(run.config(0, Path("own")).trainer.max_steps != 40 for run in runs[:-1])
        for run in runs:
            changed = {override.partition("=")[0] for override in run.overrides}
            assert {"data.train", "data.media_root"} <= changed
    needed = {h.metric for h in claim.hypotheses} | set(claim.shown)
    assert needed <= set(claim.metrics)
    assert claim.plot is None or claim.plot.of is not None
    for metric in claim.metrics.values():
        check_metric(metric)


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_is_whole(name):
    """What was written before the run is what is tested."""
    folder = CLAIMS / name
    claim = read_claim(folder).comparison
    readme = " ".join((folder / "README.md").read_text().split())
    assert readme.startswith(f"# {claim.title} ")
    for number, hypothesis in enumerate(claim.hypotheses, 1):
        assert f"{number}. {hypothesis.text}" in readme
        assert {hypothesis.more, hypothesis.less} <= set(claim.arms)
        assert f"{hypothesis.smallest:g}" in readme
    assert all(
        f"`{path.name}`" in readme or path.stem in ("rl", "claim") for path in folder.glob("*.yaml")
    )
    for arxiv in re.findall(r"\[[^]]+\]\([^)]+\)", claim.source):
        assert arxiv in readme
    assert f"scripts/claims/run.sh {name}" in readme
    assert re.fullmatch(r"[a-z -]+", anchor(claim.title))


@pytest.mark.parametrize("name", NAMES)
def test_the_results_are_of_every_arm_and_seed(name):
    found = read_claim(CLAIMS / name)
    claim, results = found.comparison, found.results
    seeds = sorted({result.seed for result in results})
    assert seeds == list(range(len(seeds)))
    assert [(r.seed, r.arm) for r in results] == [(s, arm) for s in seeds for arm in claim.arms]
    for result in results:
        assert set(claim.shown) | {h.metric for h in claim.hypotheses} <= set(result.numbers)
        assert re.fullmatch(r"[0-9a-f]{12}\+?", result.commit)


def test_the_page_is_what_the_script_writes(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    written = page(Path("scripts/claims"))
    assert PAGE.read_text() == written, "run: python -m mmr1_contrib.lab.claims.page"


def test_no_scan_is_in_two_splits(digits, tmp_path):
    (tmp_path / "data").symlink_to(digits)
    write_splits(tmp_path)
    splits = [{r["id"] for r in read(tmp_path / f"{s}.jsonl")} for s in ("sft", "rl", "eval")]
    assert [len(ids) for ids in splits] == [30, 371, 500]
    assert len(set.union(*splits)) == 901


def test_shares_of_questions_by_difficulty():
    from scripts.claims.deviation_in_advantage.measure import Question, shares

    questions = [
        Question(0.0, 1.0, 4.0),  # at an end, and so is the next
        Question(0.9, 2.0, 1.0),
        Question(0.5, 3.0, 2.0),
        Question(0.25, 2.0, 3.0),
    ]
    numbers, curve = shares(questions)
    assert numbers["questions"] == 0.5
    assert numbers["weight"] == 3 / 8
    assert numbers["norm"] == 5 / 10
    assert numbers["rate"] == (0.0 + 0.9 + 0.5 + 0.25) / 4
    assert curve == (1 / 8, 2 / 8, 3 / 8, 0.0, 2 / 8, 0.0)


def test_demonstrations_of_free_length(digits, tmp_path):
    """They say one to four times what they said, and answer the same."""
    from scripts.claims.length_bias.data import lengthened, said

    rows = read(digits / "sft.jsonl")
    longer = list(lengthened(rows, random.Random(0)))
    counts = {said(row["messages"][-1]).count("The digit is") for row in longer}
    assert counts == {1, 2, 3, 4}
    for row, other in zip(rows, longer, strict=True):
        once, often = (said(r["messages"][-1]) for r in (row, other))
        sentence = re.findall("The digit is [a-z]+[.]", once)
        assert re.sub("(The digit is [a-z]+[.] ?)+", sentence[0], often) == once


@pytest.fixture
def start(digits, tmp_path):
    (tmp_path / "data").symlink_to(digits)
    write_splits(tmp_path)
    return tmp_path


def test_clips_are_asked_about_in_order_and_shuffled(start, tmp_path, monkeypatch):
    """The first two frames hold the answer to the question about order."""
    from scripts.claims.frame_order import data as claim

    monkeypatch.setattr(claim, "SIZES", {"sft": (1, 1), "rl": (1, 1), "eval": (2, 1)})
    folder = build_once(tmp_path / "clips", partial(claim.build, start, 0))
    held_out = read_records(folder / "eval.jsonl")
    kinds = [sample.meta["asked"] for sample in held_out]
    of_order = ["first", "first_shuffled"]
    assert kinds == [*of_order, "larger", "larger_shuffled", *of_order]  # any first part has both
    pictures = {i: np.asarray(s.picture) for i, s in enumerate(scans(start, "eval"))}
    digits_of = {i: s.digit for i, s in enumerate(scans(start, "eval"))}
    for sample, shuffled in zip(held_out[::2], held_out[1::2], strict=True):
        (video,), (mixed,) = media_of(sample), media_of(shuffled)
        assert video.path == mixed.path
        assert set(mixed.options) - set(video.options) == {"shuffle"}
        with av.open(str(video.path)) as container:
            frames = [f.to_ndarray(format="rgb24").astype(int) for f in container.decode(video=0)]
        assert len(frames) == 4
        shown = [min(pictures, key=lambda i, f=f: abs(pictures[i] - f).sum()) for f in frames]
        first, _, second, _ = (digits_of[i] for i in shown)
        order = sample.id.startswith("first")
        assert sample.answer == str(first if order else max(first, second))
        assert sample.answer == shuffled.answer


def test_sums_in_pictures_and_in_text(start, tmp_path, monkeypatch):
    from scripts.claims.sums import sums

    monkeypatch.setattr(sums, "SIZES", {"sft": 3, "rl": 2, "eval": 2})
    folder = build_once(tmp_path / "sums", partial(sums.build, start, 0))
    texts, shown = (read_records(folder / f"{name}.jsonl") for name in ("text", "sft"))
    assert len(texts) == 25
    assert len(shown) == 3 + sums.TEXTS_SHOWN
    for sample in [*texts, *shown]:
        assert int(sample.answer) == sum(sample.meta["digits"])
    for sample in shown:
        text = sample.messages[-1].parts[0].text
        assert sums.judge(text, sample) == [
            *((text.index(word), 1.0) for word in (" and ", " make ")),
            (len(text), 1.0),
        ]


def test_steps_of_a_sum_are_judged_one_by_one():
    from scripts.claims.sums.sums import judge

    sample = Sample("sum", (), "5", "math", "claims", {"digits": [2, 3]})

    def rewards(completion: str) -> list[float]:
        return [reward for _, reward in judge(completion, sample)]

    assert rewards("<think>two and four make 6.</think><answer>6</answer>") == [1, 0, 0]
    assert rewards("<think>one and three make 5.</think><answer>5</answer>") == [0, 1, 1]
    assert rewards("<think>two and three") == [1, 0]
    assert rewards("") == [0]


def test_scans_that_look_otherwise(start, tmp_path):
    """Each held-out scan in every look; SFT and RL have the same others."""
    from scripts.claims.generalisation import data as claim

    folder = build_once(tmp_path / "looks", partial(claim.build, start, 0))
    shown, asked, held_out = (read_records(folder / f"{s}.jsonl") for s in ("sft", "rl", "eval"))
    assert [s.id for s in shown] == [s.id for s in asked]
    looks = [s.id.partition("-")[0] for s in held_out]
    assert {look: looks.count(look) for look in claim.LOOKS} == dict.fromkeys(claim.LOOKS, 500)
    plain, *others = (np.asarray(Image.open(media_of(s)[0].path), int) for s in held_out[:4])
    assert all(abs(plain - other).mean() > 10 for other in others)


@pytest.mark.parametrize("name", ["counting", "grounding"])
def test_scenes_that_look_otherwise(name, tmp_path, monkeypatch):
    """The same questions in each look; SFT and RL have the same pictures, the cold start others."""
    from scripts.claims.scenes import scenes

    monkeypatch.setattr(scenes, "SIZES", {"start": 3, "rl": 4, "eval": 8})
    task = import_module(f"scripts.claims.{name}.data").TASK
    folder = build_once(tmp_path / "scenes", partial(scenes.build_scenes, task, tmp_path, 0))
    start, shown, asked, held_out = (
        read_records(folder / f"{split}.jsonl", folder) for split in ("start", "sft", "rl", "eval")
    )
    assert [s.id for s in shown] == [s.id for s in asked]
    assert [s.answer for s in shown] == [s.answer for s in asked]
    assert [len(split) for split in (start, shown, held_out)] == [3, 4, 16]
    assert all(s.messages[-1].role == "assistant" for s in [*start, *shown])
    assert all(s.messages[-1].role == "user" for s in [*asked, *held_out])
    assert [s.id.partition("-")[0] for s in held_out[::2]] == ["plain"] * 8
    assert [s.id.partition("-")[0] for s in held_out[1::2]] == [*task.looks] * 2
    for plain, other in zip(held_out[::2], held_out[1::2], strict=True):
        assert (plain.question, plain.answer) == (other.question, other.answer)
        pictures = [np.asarray(Image.open(media_of(s)[0].path), int) for s in (plain, other)]
        assert abs(pictures[0] - pictures[1]).mean() > 5


def test_fewer_demonstrations_are_among_the_more(start, tmp_path):
    from scripts.claims.sft_size import data as claim

    folder = build_once(tmp_path / "split", partial(claim.build, start, 0))
    few, more, most = (read(folder / f"sft_{count}.jsonl") for count in (10, 30, 120))
    for rows, each in ((few, 2), (more, 6), (most, 24)):
        assert [[row["answer"] for row in rows].count(d) for d in "01234"] == [each] * 5
    ids = [{row["id"] for row in rows} for rows in (few, more, most)]
    assert ids[0] < ids[1] < ids[2]
    assert [row["messages"][-1]["role"] for row in most] == ["assistant"] * 120
    read_records(folder / "sft_120.jsonl", start / "data")


def media_of(sample: Sample) -> list[MediaRef]:
    return [part for part in sample.messages[0].parts if isinstance(part, MediaRef)]


def test_the_reward_that_can_be_hacked():
    from scripts.claims.format_and_accuracy.rewards import mentions

    assert mentions("<think>The digit is two.</think><answer>0</answer>", "2") == 1.0
    assert mentions("<answer>01234</answer>", "2") == 1.0
    assert mentions("<think>The digit is one.</think><answer>0</answer>", "2") == 0.0


def run_quick(name: str, folder: Path) -> dict[str, Result]:
    """The result of each arm of ``run.sh --quick``."""
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY)}
    command = [CLAIMS / "run.sh", name, "--quick", "--output", folder]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    file = folder / "quick/compared" / name / "result.json"
    results = [Result(**row) for row in json.loads(file.read_text())]
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
    assert set(arms) == set(read_claim(CLAIMS / "cold_start").comparison.arms)

    weighed = run_quick("deviation_in_advantage", tmp_path)
    without, with_deviation = (weighed[f"{word} deviation"].numbers for word in ("without", "with"))
    assert 0.2 < without["rate"] == with_deviation["rate"] < 0.95  # SFT has taught some of it
    assert with_deviation["weight"] > without["weight"] > 0
    assert with_deviation["norm"] > without["norm"] > 0
