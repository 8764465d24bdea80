"""Preference losses by hand and by an independent road; DPO, iterative DPO and reward models."""

from __future__ import annotations

import copy
import json
import math
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mmr1.config import Config, ModelConfig, NewLoraConfig, OptimizerConfig
from mmr1.config.file import load_config
from mmr1.data.quarantine import Quarantine
from mmr1.data.record import decode
from mmr1.data.responses import group_of_responses
from mmr1.data.sampler import MediaCheck
from mmr1.rewards import build_composite_reward
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.distributed.reward_ranks import reward_model_values
from mmr1.trainer.forward.micro_batches import SingleProcess
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.inputs import Inputs, check_inputs
from mmr1.trainer.models.loading import load_trainable
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.sampling.reward_models import reward_models
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.train import run_training
from mmr1.types import Completion, Reward, RolloutGroup, Sample, ScoredGroup, Status
from mmr1.vision.prepare import MediaCache
from mmr1_contrib.offline import iterative_dpo
from mmr1_contrib.offline.dpo import (
    PAIR,
    Preference,
    build_dpo,
    preference_step,
    preferences_of,
    run_dpo,
    with_unrelated,
)
from mmr1_contrib.offline.iterative_dpo import NoPreferencesError, Rounds, judged, run_iterative_dpo
from mmr1_contrib.offline.preferences import distinct_samples, ranking_of
from mmr1_contrib.offline.reward_model import (
    bradley_terry,
    pairs_right,
    reward_model_step,
)
from mmr1_contrib.offline.sections import DpoConfig, KtoLoss, RoundsConfig
from tests.contrib.offline.runs import LENGTH_PARITY, config_of
from tests.jsonl import read_jsonl
from tests.padded_forward import padded_scores
from tests.trainer.gradients import assert_gradient, caught_gradient
from tests.trainer.same_runs import assert_same
from tests.trainer.scalar_models import new_scalar_model, padded_values


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def test_a_rankings_loss_is_the_mean_over_its_pairs():
    rewards = [1.0, 0.5, -0.25]
    pairs = [(0, 1), (0, 2), (1, 2)]
    expected = -sum(log_sigmoid(rewards[i] - rewards[j]) for i, j in pairs) / 3
    assert bradley_terry(torch.tensor(rewards)).item() == pytest.approx(expected)
    two = bradley_terry(torch.tensor([0.3, 1.0])).item()
    assert two == pytest.approx(-log_sigmoid(-0.7))
    assert pairs_right(torch.tensor([2.0, 3.0, 1.0])).tolist() == [False, True, True]


def pair_groups(parts) -> list[RolloutGroup]:
    """Pairs of completions of unequal lengths."""
    return [RolloutGroup(s.group.prompt, s.group.completions[:2]) for s in parts[3]]


# From log-probs win and lose, log-ratios rw and rl, lengths nw and nl; beta is 0.2.
NAIVE = {
    "sigmoid": lambda win, lose, rw, rl, nw, nl: torch.log1p(torch.exp(-0.2 * (rw - rl))),
    "sigmoid_norm": lambda win, lose, rw, rl, nw, nl: torch.log1p(
        torch.exp(-0.2 * (rw / nw - rl / nl))
    ),
    "ipo": lambda win, lose, rw, rl, nw, nl: (rw / nw - rl / nl - 2.5) ** 2,
    "simpo": lambda win, lose, rw, rl, nw, nl: torch.log1p(
        torch.exp(-(0.2 * win / nw - 0.2 * lose / nl - 0.5))
    ),
    "orpo": lambda win, lose, rw, rl, nw, nl: (
        -win / nw
        - 0.2
        * torch.log(torch.sigmoid(torch.log(_odds((win / nw).exp()) / _odds((lose / nl).exp()))))
    ),
}


def _odds(p: torch.Tensor) -> torch.Tensor:
    return p / (1 - p)


@pytest.mark.parametrize("budget", [1, 100, 10_000])
@pytest.mark.parametrize(
    ("loss_type", "nll_coef"),
    [("sigmoid", 0.0), *((name, 1.0 if name != "orpo" else 0.0) for name in NAIVE)],
)
def test_the_gradient_of_a_loss_on_pairs_is_that_of_the_paper(parts, budget, loss_type, nll_coef):
    family, model, media, _ = parts
    groups = pair_groups(parts)
    rng = random.Random(0)
    reference = [(rng.uniform(-60, -10), rng.uniform(-60, -10)) for _ in groups]
    own = copy.deepcopy(model)
    optimizer = Optimizer(own, OptimizerConfig(), 10)
    caught = caught_gradient(own, optimizer)
    pairs = [Preference(g, PAIR, r) for g, r in zip(groups, reference, strict=True)]
    nll = {} if loss_type == "orpo" else {"nll_coef": nll_coef}
    config = DpoConfig(loss={"type": loss_type, "beta": 0.2, **nll}).loss
    packed_model = PackedModel(
        own, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), budget
    )
    stats = preference_step(config)(packed_model, optimizer, pairs)

    naive = copy.deepcopy(model)
    inputs = [group_input(family, media, g) for g in groups]
    logprobs = padded_scores(naive, inputs, Distribution(forbidden=family.forbidden_ids)).logprobs
    loss = torch.zeros(())
    for i, (group, ref) in enumerate(zip(groups, reference, strict=True)):
        nw, nl = (len(c.token_ids) for c in group.completions)
        win, lose = logprobs[2 * i].sum(), logprobs[2 * i + 1].sum()
        loss = (
            loss
            + NAIVE[loss_type](win, lose, win - ref[0], lose - ref[1], nw, nl)
            - nll_coef * win / nw
        )
    loss = loss / len(groups)
    loss.backward()
    assert stats["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert_gradient(caught, naive)


@pytest.mark.parametrize("budget", [1, 100, 10_000])
def test_ktos_gradient_is_that_of_the_paper(parts, budget):
    """Prompts with one, two and two completions; the reference point carries no gradient."""
    family, model, media, _ = parts
    groups = pair_groups(parts)
    groups[0] = RolloutGroup(groups[0].prompt, groups[0].completions[:1])
    desirable = [(True,), (False, True), (False, False)]
    examples = with_unrelated(groups)
    assert [g.completions[-1] for g in examples] == [groups[i].completions[0] for i in (1, 2, 0)]
    rng = random.Random(0)
    reference = [tuple(rng.uniform(-60, -40) for _ in g.completions) for g in examples]
    own = copy.deepcopy(model)
    optimizer = Optimizer(own, OptimizerConfig(), 10)
    caught = caught_gradient(own, optimizer)
    weights = [(), (0.5, 0.25), (1.0, 0.125)]
    batch = [Preference(*row) for row in zip(examples, desirable, reference, weights, strict=True)]
    config = KtoLoss(beta=0.05, desirable_weight=1.5, undesirable_weight=0.75)
    packed_model = PackedModel(
        own, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), budget
    )
    stats = preference_step(config)(packed_model, optimizer, batch)

    naive = copy.deepcopy(model)
    inputs = [group_input(family, media, g) for g in examples]
    sums = padded_scores(naive, inputs, Distribution(forbidden=family.forbidden_ids)).logprobs.sum(
        -1
    )
    ratios = [s - r for s, r in zip(sums, (r for row in reference for r in row), strict=True)]
    own_ratios, unrelated = [ratios[i] for i in (0, 2, 3, 5, 6)], [ratios[i] for i in (1, 4, 7)]
    z = max(0.0, sum(r.item() for r in unrelated) / 3)
    assert z > 0  # so that the test sees it
    wanted = [flag for flags in desirable for flag in flags]
    loss = sum(
        w * 1.5 * (1 - torch.sigmoid(0.05 * (r - z)))
        if flag
        else w * 0.75 * (1 - torch.sigmoid(0.05 * (z - r)))
        for r, flag, w in zip(own_ratios, wanted, (1, 0.5, 0.25, 1, 0.125), strict=True)
    )
    loss = loss / 5
    loss.backward()
    assert stats["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert stats["dpo/kl"] == pytest.approx(z, rel=1e-5)
    chosen = [0.05 * r.item() for r, flag in zip(own_ratios, wanted, strict=True) if flag]
    assert stats["dpo/chosen"] == pytest.approx(sum(chosen) / 2, rel=1e-4)
    assert_gradient(caught, naive)


def test_kto_needs_two_prompts(parts):
    group = pair_groups(parts)[0]
    with pytest.raises(ValueError, match="there is only one prompt; add records"):
        with_unrelated([group, group])


@pytest.mark.parametrize("loss_type", ["sigmoid", "kto"])
def test_the_reference_is_the_model_before_the_first_step(parts, loss_type):
    family, model, media, _ = parts
    torch.manual_seed(0)
    own = add_adapters(copy.deepcopy(model), NewLoraConfig(rank=4), False)
    packed_model = PackedModel(
        own, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 100
    )
    config = DpoConfig(loss=loss_type).loss
    groups = pair_groups(parts)
    if loss_type == "kto":
        groups = with_unrelated(groups)
    pairs = preferences_of(groups, [PAIR] * len(groups), packed_model.logprobs, config)
    optimizer = Optimizer(own, OptimizerConfig(lr=3e-3, scheduler={"warmup_steps": 0}), 10)
    first = preference_step(config)(packed_model, optimizer, pairs)
    at_rest = math.log(2) if loss_type == "sigmoid" else 0.5
    assert first["loss"] == pytest.approx(at_rest, abs=1e-5)
    assert first["dpo/chosen"] == pytest.approx(0, abs=1e-5)
    for _ in range(9):
        last = preference_step(config)(packed_model, optimizer, pairs)
    assert last["loss"] < at_rest - 0.05
    assert last["dpo/chosen"] > 0 > last["dpo/rejected"]


@pytest.mark.parametrize("budget", [1, 10_000])
def test_a_reward_models_gradient_is_that_of_its_rankings(parts, budget):
    groups = [s.group for s in parts[3][:2]] + pair_groups(parts)[2:]  # rankings of 4, 4 and 2
    scalar_model = new_scalar_model(parts, "at", budget)
    optimizer = Optimizer(scalar_model.model, OptimizerConfig(), 10)
    caught = caught_gradient(scalar_model.model, optimizer)
    stats = reward_model_step(scalar_model, optimizer, groups)

    naive = new_scalar_model(parts, "at")
    values = padded_values(naive, parts, "at")
    rewards = [row[-1] for row in values]
    rankings = [rewards[0:4], rewards[4:8], rewards[8:10]]
    loss = torch.zeros(())
    for ranking in rankings:
        pairs = [(a, b) for i, a in enumerate(ranking) for b in ranking[i + 1 :]]
        loss = loss + sum(torch.log1p(torch.exp(b - a)) for a, b in pairs) / len(pairs) / 3
    loss.backward()
    assert stats["loss"] == pytest.approx(loss.item(), rel=1e-5)
    del caught["head.bias"]  # of no consequence, but for rounding
    naive.model.head.bias.grad = None
    assert_gradient(caught, naive.model)


TURNS = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("meta", "answers"),
    [
        ({"chosen": "a", "rejected": "b"}, ("a", "b")),
        ({"chosen": "a", "rejected": TURNS}, ("a", "b")),
        ({"ranking": ["c", "a", "b"]}, ("c", "a", "b")),
    ],
)
def test_preferences_are_read(meta, answers):
    assert ranking_of(Sample("s", (), meta=meta)) == answers


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({}, "sample 's' has no preference pair; give it 'chosen' and 'rejected'"),
        ({"chosen": "a"}, "no preference pair"),
        ({"chosen": "a", "rejected": "a"}, "prefers nothing"),
        ({"ranking": ["a"]}, "its 1 answers"),
        ({"ranking": "ab"}, "its 0 answers"),
        ({"chosen": "a", "rejected": 3}, "meta.rejected holds '3'"),
        ({"chosen": "a", "rejected": ""}, "meta.rejected"),
        ({"ranking": ["a", "b", "c"]}, "ranks 3 answers and DPO learns from pairs"),
    ],
)
def test_what_is_no_pair_is_refused(meta, message):
    with pytest.raises(ValueError, match=message):
        ranking_of(Sample("s", (), meta=meta), pairs_only=True)


def completion(length: int) -> Completion:
    return Completion(np.arange(length), np.zeros(length, np.float32), "", False, 0)


def rated(*verdicts: tuple[int, float | None, float | None]) -> ScoredGroup:
    """Completions of these lengths, their reward and accuracy."""
    group = RolloutGroup(None, tuple(completion(n) for n, _, _ in verdicts))
    return ScoredGroup(
        group,
        tuple(
            Reward(r, Status.OK if r is not None else Status.TIMEOUT, {"math": a})
            for _, r, a in verdicts
        ),
    )


def found(scored: ScoredGroup, **keys: object) -> list[list[int]]:
    """The lengths of what each preference compares."""
    rounds = RoundsConfig(**{"count": 1, "pairs_per_prompt": 10, **keys})
    labelled = judged([scored], rounds, True, "math", random.Random(0))
    return sorted([len(c.token_ids) for c in group.completions] for group, _ in labelled)


def test_pairs_are_right_against_wrong():
    scored = rated((1, 1.5, 1.0), (2, 1.0, 1.0), (3, 0.5, 0.0), (4, 0.0, 0.0), (5, None, None))
    assert found(scored) == [[1, 3], [1, 4]]  # the right one of the highest reward
    assert len(found(scored, pairs_per_prompt=1)) == 1
    assert len(found(rated((1, 1.0, 1.0), (1, 1.0, 1.0), (3, 0.0, 0.0)))) == 1
    with pytest.raises(NoPreferencesError, match=r"no prompt of 1 has both .*1 of 1 completions"):
        found(rated((1, 1.0, 1.0)))


def test_pairs_by_reward_are_the_best_with_the_worst():
    scored = rated((1, 0.5, 0.0), (2, -1.0, 0.0), (3, 0.75, 0.0), (4, 0.25, 0.0), (5, None, None))
    assert found(scored, preferred_by="reward") == [[1, 4], [3, 2]]
    assert found(scored, preferred_by="reward", pairs_per_prompt=1) == [[3, 2]]
    with pytest.raises(NoPreferencesError, match="no prompt of 1 has two completions of different"):
        found(rated((1, 0.5, 1.0), (2, 0.5, 0.0)), preferred_by="reward")


def test_kto_takes_every_completion_with_its_label():
    scored = rated((1, 1.5, 1.0), (2, 0.5, 0.0), (3, 1.0, 1.0), (4, None, None))
    by_accuracy = judged([scored], RoundsConfig(count=1), False, "math", random.Random(0))
    assert [wanted for _, wanted in by_accuracy] == [(True, False, True)]
    rounds = RoundsConfig(count=1, preferred_by="reward")
    ((group, wanted),) = judged([scored], rounds, False, "math", random.Random(0))
    assert [len(c.token_ids) for c in group.completions] == [1, 2]  # 1.0 is the mean
    assert wanted == (True, False)


def test_a_dpo_run_prefers_what_was_chosen_and_resumes(tiny_model, digits, pair_file, tmp_path):
    def config(out: str, steps: int) -> Config:
        keys = (
            "data.train_batch_size=8",
            f"trainer.max_steps={steps}",
            "optimizer.scheduler.type=constant",
        )
        return config_of(tiny_model, pair_file, digits, tmp_path / out, *keys, command="dpo")

    run_dpo(config("whole", 6))
    logged = read_jsonl(tmp_path / "whole/metrics.jsonl")
    assert logged[0]["dpo/loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert logged[-1]["dpo/loss"] < 0.4
    assert logged[-1]["dpo/accuracy"] == 1
    run_dpo(config("parts", 4))
    run_dpo(config("parts", 6), resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_data_without_pairs_are_refused(tiny_model, digits, tmp_path, mmr1):
    path = tmp_path / "run.yaml"
    for command in ("dpo", "rm"):
        path.write_text(
            f"model: {{path: {tiny_model}, dtype: float32}}\n"
            f"data: {{train: {digits}/rl.jsonl}}\n"
            f"trainer: {{output_dir: {tmp_path}/out}}\n"
        )
        code, _, message = mmr1(command, path)
        assert code == 2
        first = json.loads((digits / "rl.jsonl").read_text().splitlines()[0])["id"]
        assert f"data.train: sample '{first}' has no preference pair" in message
        assert not (tmp_path / "out").exists()


def test_a_reward_model_ranks_and_has_mean_0(reward_model, digits, pair_file, parts):
    run = reward_model.parents[1]
    assert json.loads((run / "eval/result.json").read_text()) == {"pairs": 20, "accuracy": 1.0}
    logged = read_jsonl(run / "metrics.jsonl")
    assert logged[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert logged[-1]["rm/accuracy"] == 1

    config = rm_config(reward_model, digits, Path("x"))
    with reward_model_values(config) as values:
        reward_function = reward_models(config, values)["rm"]
    rows = [json.loads(line) for line in pair_file.read_text().splitlines()]
    samples = [decode(row, digits) for row in rows]
    groups = [
        group_of_responses(parts[0], parts[0].render_prompt(s), ranking_of(s)) for s in samples
    ]
    rewards = torch.tensor([reward.value for reward in reward_function._rewards(groups)])
    assert rewards.mean().abs() < 1e-4
    assert (rewards.view(-1, 2)[:, 0] > rewards.view(-1, 2)[:, 1]).all()


def rm_config(path: Path, digits: Path, out: Path) -> Config:
    return config_of(
        path,
        digits / "rl.jsonl",
        digits,
        out,
        f"rewards={{rm: {{type: reward_model, path: '{path}'}}}}",
        "data.train_batch_size=2",
        "rollout.n=3",
        "rollout.max_prompt_length=56",
        "rollout.max_response_length=8",
        "trainer.max_steps=2",
    )


def test_a_reward_model_is_a_reward_and_a_critics_beginning(reward_model, digits, tmp_path):
    config = rm_config(reward_model, digits, tmp_path / "run")
    ppo = {"name": "ppo", "advantage": {"critic": {"path": str(reward_model)}}}
    run_training(config.changed(algorithm=ppo))
    first, second = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert first["rewards/rm/mean"] == first["reward/mean"] != 0
    assert first["grad_norm"] > 0
    assert first["critic/value"] != 0  # the head came with the model
    assert second["reward/num_invalid"] == 0


def test_a_kto_run_learns_from_labelled_answers(tiny_model, digits, pair_file, tmp_path, mmr1):
    rows = [json.loads(line) for line in pair_file.read_text().splitlines()]
    for i, row in enumerate(rows):
        wanted = i % 3 == 0
        text = row["meta"]["chosen" if wanted else "rejected"]
        row["meta"] = {"completion": text, "label": wanted}
    data = tmp_path / "labelled.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = ("dpo.loss={type: kto, beta: 0.5}", "data.train_batch_size=16", "trainer.max_steps=8")
    run_dpo(config_of(tiny_model, data, digits, tmp_path / "run", *keys, command="dpo"))
    logged = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert logged[0]["loss"] == pytest.approx(0.5, abs=1e-5)
    assert logged[-1]["loss"] < 0.3
    assert logged[-1]["dpo/chosen"] > 0 > logged[-1]["dpo/rejected"]

    rows[3]["meta"]["label"] = 1
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    yaml = tmp_path / "run.yaml"
    yaml.write_text(
        f"model: {{path: {tiny_model}, dtype: float32}}\n"
        f"data: {{train: {data}, media_root: {digits}}}\n"
        f"dpo: {{loss: kto}}\ntrainer: {{output_dir: {tmp_path}/bad}}\n"
    )
    code, _, message = mmr1("dpo", yaml)
    assert code == 2
    assert f"data.train: sample '{rows[3]['id']}': meta.label is 1; make it true" in message


@pytest.mark.parametrize("loss", ["sigmoid", "kto"])
def test_rounds_resume_in_their_middle_and_between_them(loss, tiny_model, digits, tmp_path):
    (tmp_path / "own.py").write_text(LENGTH_PARITY)

    def config(out: str, steps: int, *keys: str) -> Config:
        own = f"rewards={{own: {{type: '{tmp_path}/own.py:reward', sandbox: null}}}}"
        return config_of(
            *(tiny_model, digits / "rl.jsonl", digits, tmp_path / out, own),
            *(f"dpo.loss={loss}", "dpo.rounds={count: 2, prompts: 4}"),
            *("data.train_batch_size=6", f"trainer.max_steps={steps}", "rollout.n=4"),
            *(
                "rollout.max_prompt_length=88",
                "rollout.max_response_length=8",
                "scoring.timeout_s=20",
            ),
            *("optimizer.scheduler.type=constant", "optimizer.lr=0.0003"),
            *keys,
            command="dpo",
        )

    run_iterative_dpo(config("whole", 6))
    for stop in (2, 3):  # in the middle of the first round, and at its end
        out = f"stopped_{stop}"
        run = config(out, 6, "trainer.checkpoints={save_steps: 1, save_total_limit: 9}")
        run_iterative_dpo(run)
        for step in range(stop + 1, 7):
            shutil.rmtree(tmp_path / out / f"checkpoints/step_{step:06d}")
        run_iterative_dpo(run, resume=True)
        assert_same(tmp_path / "whole", tmp_path / out)


def test_iterative_dpo_samples_judges_pairs_and_learns(tiny_model, digits, tmp_path):
    # An untrained model is never right: a verdict that tells its completions apart all the same.
    (tmp_path / "own.py").write_text(LENGTH_PARITY)
    own = f"rewards={{own: {{type: '{tmp_path}/own.py:reward', sandbox: null}}}}"
    keys = (
        *("dpo.rounds={count: 2, prompts: 8}", "data.train_batch_size=40"),
        *("trainer.max_steps=4", "rollout.n=6", "rollout.max_prompt_length=88"),
        *("rollout.max_response_length=8", "scoring.timeout_s=20", "optimizer.lr=0.0003"),
    )
    data = digits / "rl.jsonl"
    config = config_of(tiny_model, data, digits, tmp_path / "run", *keys, own, command="dpo")
    run_iterative_dpo(config)
    logged = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert [row["dpo/round"] for row in logged] == [1, 1, 2, 2]
    for row in (logged[0], logged[2]):
        assert row["dpo/pairs"] > 0
        assert row["dpo/loss"] == pytest.approx(math.log(2), abs=1e-5)  # a new reference
        assert "reward/mean" in row
    assert logged[1]["dpo/loss"] < math.log(2)  # the same pairs again, all of them
    versions = {
        c["policy_version"]
        for row in read_jsonl(tmp_path / "run/rollouts/step_000003.jsonl")
        for c in row["completions"]
    }
    assert versions == {1}
    with pytest.raises(NoPreferencesError, match=r"no prompt of 8 has both.*supervised training"):
        run_iterative_dpo(
            config_of(tiny_model, data, digits, tmp_path / "none", *keys, command="dpo")
        )
    assert_loss_is_untempered(config)


def test_the_first_round_samples_with_stored_adapters(tiny_model, digits, tmp_path, monkeypatch):
    """Also where the engine reads the model's folder, which knows nothing of them."""
    (tmp_path / "own.py").write_text(LENGTH_PARITY)
    settings = NewLoraConfig(rank=4)
    adapted = add_adapters(load_trainable(ModelConfig(path=str(tiny_model))), settings, False)
    torch.manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(tmp_path / "adapter")

    def sampled(out: str, *keys: str) -> list[list[str]]:
        config = config_of(
            *(tiny_model, digits / "rl.jsonl", digits, tmp_path / out, *keys),
            f"rewards={{own: {{type: '{tmp_path}/own.py:reward', sandbox: null}}}}",
            *("dpo.rounds={count: 1, prompts: 4}", "data.train_batch_size=4", "rollout.n=4"),
            *("trainer.max_steps=1", "rollout.max_prompt_length=88", "scoring.timeout_s=20"),
            "rollout.max_response_length=8",
            command="dpo",
        )
        run_iterative_dpo(config)
        rows = read_jsonl(tmp_path / out / "rollouts/step_000001.jsonl")
        return [[c["text"] for c in row["completions"]] for row in rows]

    def engine_of_the_folder(config, family, media, *_) -> HfEngine:
        plain = config.model.changed(lora=None)
        return HfEngine(load_trainable(plain), family, media)

    stored = f"model.lora.path={tmp_path / 'adapter'}"
    of_the_policy = sampled("shared", stored)
    assert of_the_policy != sampled("plain")
    monkeypatch.setattr(iterative_dpo, "build_engine", engine_of_the_folder)
    assert sampled("own", stored) == of_the_policy


def assert_loss_is_untempered(config: Config) -> None:
    """Sampled at 0.7 the gradient would be larger by 1.43."""
    config = config.changed({"rollout.temperature": 0.7})
    temperatures: list[float] = []

    class Watched(SingleProcess):
        def run(self, compute, model, groups, temperature, *rest, **options):
            temperatures.append(temperature.temperature)
            return compute(model, groups, temperature, *rest, **options)

    with build_composite_reward(config.rewards, config.scoring) as rewards:
        inputs = check_inputs(config, rewards, train=True)
        model = load_trainable(config.model)
        learner = build_dpo(config, inputs.family, inputs.media, Watched(), lambda *_, **__: model)
        engine = HfEngine(model, inputs.family, inputs.media)
        manager = RewardManager(rewards, inputs.media, 0.2)
        next(Rounds(config, inputs, engine, manager, learner).steps(0))
    assert len(temperatures) >= 2  # the reference's log-probs and the policy's
    assert set(temperatures) == {1.0}


def test_rounds_that_make_no_sense_are_refused():
    for keys, message in (
        (
            ["dpo.rounds.count=1", "rollout.n=1"],
            "a pair needs two completions",
        ),
        (["dpo.rounds.count=5", "trainer.max_steps=4"], "a round would have none"),
    ):
        with pytest.raises(ValueError, match=message):
            load_config(None, ["model.path=a", *keys], "dpo")


def test_two_sources_may_share_ids():
    sources = {"old": [Sample("a", (), 1), Sample("b", (), 2)], "new": [Sample("a", (), 3)]}
    quarantine = Quarantine(0)
    media = MediaCache(lambda medium: pytest.fail("there are none"))
    check = MediaCheck(media, quarantine)
    weights, rows = {"old": 1.0, "new": 1.0}, {"train": quarantine}
    asked = Config(model={"path": "any"})
    records = Inputs(asked, sources, weights, [], check, rows, None, media, None)
    assert sorted(sample.answer for sample in distinct_samples(records, 0, 6)) == [1, 2, 3]
