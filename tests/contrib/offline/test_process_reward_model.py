"""Reward models of steps: labels, where steps end, the gradient, and their uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import logsigmoid

from mmr1.config import Config, OptimizerConfig
from mmr1.config.file import load_config
from mmr1.data.responses import group_of_responses
from mmr1.rewards import RewardFunction, RewardItem
from mmr1.trainer.distributed.reward_ranks import reward_model_values
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.scalar_model import Supervision, supervision_of
from mmr1.trainer.sampling.reward_models import reward_models
from mmr1.trainer.train import run_training
from mmr1.types import Sample, Status
from mmr1_contrib.offline.preferences import labelled_steps
from mmr1_contrib.offline.reward_model import (
    LabelledSteps,
    process_step,
    run_reward_model,
)
from tests.contrib.offline.runs import config_of, first_rows
from tests.jsonl import read_jsonl
from tests.trainer.gradients import assert_gradient, caught_gradient
from tests.trainer.scalar_models import new_scalar_model, padded_values


@pytest.mark.parametrize(
    ("meta", "steps"),
    [
        ({"completions": ["a", " b\n"], "labels": [True, False]}, (("a", 1.0), ("b", 0.0))),
        ({"completions": ["a"], "labels": [0.25]}, (("a", 0.25),)),
    ],
)
def test_labels_are_read(meta, steps):
    assert labelled_steps(Sample("s", (), meta=meta)) == steps


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({}, "sample 's' has no labelled steps; give it 'completions'"),
        ({"completions": [], "labels": []}, "no labelled steps"),
        ({"completions": ["a", "b"], "labels": [1]}, "has 2 steps in meta.completions and 1 in"),
        ({"completions": ["a"], "labels": [-1]}, "a label is true, false, or a number from 0 to 1"),
        ({"completions": ["a"], "labels": ["+"]}, r"meta.labels holds '\+'"),
        ({"completions": [" "], "labels": [1]}, "not a step's text"),
    ],
)
def test_what_is_no_label_is_refused(meta, message):
    with pytest.raises(ValueError, match=message):
        labelled_steps(Sample("s", (), meta=meta))


@pytest.mark.parametrize("budget", [1, 10_000])
def test_the_gradient_is_that_of_the_cross_entropy(parts, budget):
    groups = [s.group for s in parts[3]]
    single = [type(g)(g.prompt, g.completions[i : i + 1]) for g in groups for i in range(2)]
    scalar_model = new_scalar_model(parts, "at", budget)
    optimizer = Optimizer(scalar_model.model, OptimizerConfig(), 10)
    caught = caught_gradient(scalar_model.model, optimizer)
    tokens = [(0,), (0, len(single[1].completions[0].token_ids) - 1), *[(0,)] * (len(single) - 2)]
    labels = [(1.0,), (0.25, 0.0), *[(1.0,)] * (len(single) - 2)]
    examples = [LabelledSteps(*row) for row in zip(single, tokens, labels, strict=True)]
    stats = process_step(scalar_model, optimizer, examples)

    naive = new_scalar_model(parts, "at")
    rows = padded_values(naive, parts, "at")
    first = 0
    own_rows = []
    for group in groups:
        own_rows += [rows[first], rows[first + 1]]
        first += len(group.completions)
    loss, count = torch.zeros(()), sum(map(len, labels))
    for row, at, wanted in zip(own_rows, tokens, labels, strict=True):
        for token, label in zip(at, wanted, strict=True):
            x = row[token]
            loss = loss - label * logsigmoid(x) - (1 - label) * logsigmoid(-x)
    loss = loss / count
    loss.backward()
    assert stats["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert_gradient(caught, naive.model)


RIGHT, WRONG = "The digit is what it is", "I do not look at it"


@pytest.fixture(scope="module")
def step_file(digits, tmp_path_factory) -> Path:
    """Some steps are right and some are wrong, by their words: soon learnt."""
    path = tmp_path_factory.mktemp("steps") / "steps.jsonl"
    rows = [json.loads(line) for line in (digits / "rl.jsonl").read_text().splitlines()[:60]]
    for i, row in enumerate(rows):
        labels = [bool((i >> k) & 1) for k in range(1 + i % 3)]
        steps = [RIGHT if label else WRONG for label in labels]
        row["meta"] = {"completions": steps, "labels": labels}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def step_model(tiny_model, digits, step_file, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("prm") / "run"
    held_out = f"trainer.validation.data={first_rows(step_file, out.parent)}"
    keys = ("rm.type=process", "data.train_batch_size=16", "trainer.max_steps=40", held_out)
    return run_reward_model(config_of(tiny_model, step_file, digits, out, *keys, command="rm"))


def test_it_takes_so_many_epochs(tiny_model, digits, step_file, tmp_path):
    keys = ("rm.type=process", "data.train_batch_size=30", "trainer.total_epochs=1")
    config = config_of(tiny_model, step_file, digits, tmp_path / "run", *keys, command="rm")
    assert run_reward_model(config).name == "step_000002"


def test_hard_labels_are_learned_in_place_of_shares(tiny_model, digits, step_file, tmp_path):
    """VisualPRM's rule: a step from which any continuation ends right is right."""
    first = json.loads(step_file.read_text().splitlines()[0])

    def losses(name: str, labels: list[float], *keys: str) -> list[float]:
        row = {**first, "meta": {"completions": [RIGHT, WRONG, RIGHT], "labels": labels}}
        data = tmp_path / f"{name}.jsonl"
        data.write_text(json.dumps(row) + "\n")
        every = ("rm.type=process", "data.train_batch_size=1", "trainer.max_steps=2", *keys)
        out = tmp_path / name
        run_reward_model(config_of(tiny_model, data, digits, out, *every, command="rm"))
        return [line["loss"] for line in read_jsonl(out / "metrics.jsonl")]

    soft = [0.125, 0.0, 0.9]
    hard = losses("hard", soft, "rm.hard_labels_above=0")
    assert hard == losses("written", [1.0, 0.0, 1.0])
    assert hard != losses("soft", soft)
    assert losses("higher", soft, "rm.hard_labels_above=0.5") == losses("less", [0.0, 0.0, 1.0])


def test_held_out_answers_whose_picture_is_cut_are_left_out(
    tiny_model, digits, digit_samples, step_file, tmp_path, capsys
):
    lines = step_file.read_text().splitlines(keepends=True)[:6]
    picture = digit_samples[2].media[0].path
    (tmp_path / "cut.png").write_bytes(picture.read_bytes()[:80])
    lines[2] = lines[2].replace(f"images/{picture.name}", f"{tmp_path}/cut.png")
    (tmp_path / "eval.jsonl").write_text("".join(lines))
    config = config_of(
        *(tiny_model, step_file, digits, tmp_path / "run", "rm.type=process"),
        *("trainer.max_steps=1", "data.train_batch_size=2"),
        *(f"trainer.validation.data={tmp_path / 'eval.jsonl'}", "data.max_bad_fraction=0.3"),
        command="rm",
    )
    run_reward_model(config)
    result = json.loads((tmp_path / "run/eval/result.json").read_text())
    kept = map(json.loads, lines[:2] + lines[3:])
    assert result["steps"] == sum(len(row["meta"]["labels"]) for row in kept)
    assert "of 5 answers" in capsys.readouterr().out


def test_it_judges_steps_and_says_so_in_its_file(step_model):
    result = json.loads((step_model.parents[1] / "eval/result.json").read_text())
    assert result["accuracy"] == 1.0
    assert result["first_error"] == 1.0
    assert supervision_of(str(step_model)) == Supervision("process", "\n\n")
    assert read_jsonl(step_model.parents[1] / "metrics.jsonl")[-1]["rm/accuracy"] == 1


def with_reward_model(path: Path, digits: Path, out: Path, *keys: str, **options: str) -> Config:
    function = json.dumps({"prm": {"type": "reward_model", "path": str(path), **options}})
    return config_of(path, digits / "rl.jsonl", digits, out, f"rewards={function}", *keys)


def own_reward_models(config: Config) -> dict[str, RewardFunction]:
    with reward_model_values(config) as values:
        return reward_models(config, values)


@pytest.mark.parametrize("reduce", [None, "min", "product", "last"])
def test_a_completions_value_from_those_of_its_steps(reduce, step_model, digits, parts):
    options = {} if reduce is None else {"reduce": reduce}
    config = with_reward_model(step_model, digits, Path("x"), **options)
    function = own_reward_models(config)["prm"]
    prompt = parts[3][0].group.prompt
    texts = [f"{RIGHT}\n\n{RIGHT}", f"{WRONG}\n\n{RIGHT}", f"{RIGHT}\n\n{WRONG}", ""]
    group = group_of_responses(parts[0], prompt, texts)
    items = [
        RewardItem(c.text, prompt.sample, prompt.text, tuple(c.token_ids.tolist()))
        for c in group.completions
    ]
    good, early, late, blank = function.score(items, [{}] * 4)
    assert good.value > 0.7
    assert late.value < 0.2
    assert (early.value > 0.7) == (reduce == "last")
    assert (blank.value, blank.status) == (0.0, Status.NO_ANSWER)


def test_its_options_are_checked(step_model, reward_model, digits):
    with pytest.raises(ValueError, match=r"rewards\.prm\.reduce': .* 'min', 'product' or 'last'"):
        with_reward_model(step_model, digits, Path("x"), reduce="mean")
    with pytest.raises(ValueError, match="reward model of whole completions, which has no steps"):
        own_reward_models(with_reward_model(reward_model, digits, Path("x"), reduce="min"))


RL = (
    *("data.train_batch_size=2", "rollout.n=3", "rollout.max_prompt_length=56"),
    *("rollout.max_response_length=8", "trainer.max_steps=2", "scoring.timeout_s=20"),
    *("algorithm.name=process_grpo",),
)


def test_it_rewards_the_steps_of_a_run(step_model, reward_model, tiny_model, digits, tmp_path):
    def config(model: Path) -> Config:
        keys = (*RL, f"algorithm.advantage.step_rewards={model}")
        return config_of(tiny_model, digits / "rl.jsonl", digits, tmp_path / "run", *keys)

    with pytest.raises(
        ValueError, match=r"algorithm.advantage.step_rewards '.*' is not a reward model of steps"
    ):
        run_training(config(reward_model))
    run_training(config(step_model))
    assert all(row["grad_norm"] > 0 for row in read_jsonl(tmp_path / "run/metrics.jsonl"))


def test_it_picks_the_best_of_n(step_model, digits, tmp_path):
    keys = (
        *("trainer.max_steps=1", "eval.sampled={n: 3, best_of: prm}", "eval.limit=4"),
        *(f"trainer.validation.data={digits / 'eval.jsonl'}", "data.train_batch_size=2"),
        *("rollout.n=3", "rollout.max_prompt_length=56", "rollout.max_response_length=8"),
        "eval.accuracy_thresholds=[]",
    )
    run_training(with_reward_model(step_model, digits, tmp_path / "run", *keys))
    result = json.loads((tmp_path / "run/eval/result.json").read_text())
    rows = [
        r for r in read_jsonl(tmp_path / "run/eval/completions.jsonl") if r["mode"] == "sampled"
    ]
    best = [max(r["score"] for r in rows if r["id"] == id_) for id_ in {r["id"] for r in rows}]
    assert result["sampled"]["best_of"] == pytest.approx(sum(best) / len(best))
    assert result["sampled"]["best_of"] > result["sampled"]["accuracy"]
    assert result["greedy"]["best_of"] is None
    with pytest.raises(ValueError, match=r"eval\.sampled\.best_of=liked.*is not in rewards"):
        load_config(None, ["model.path=a", "eval.sampled.best_of=liked"])
