"""Rollouts ahead of the update: which weights sample which step, and what makes up for it."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmr1.algorithms.ratios import rollout_importance_weights
from mmr1.config import Config
from mmr1.config.file import config_from
from mmr1.config.rewards import weights_of
from mmr1.data.quarantine import Quarantine
from mmr1.data.sampler import MediaCheck, SampleLoader
from mmr1.data.sampler import Sampler as DataSampler
from mmr1.rollout.engines import check_engine
from mmr1.rollout.protocol import Finished, Request
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.coefficients import Coefficients
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.sampler import Sampler
from mmr1.trainer.train import run_training
from mmr1.types import Completion, Reward, RolloutGroup, ScoredGroup
from tests.jsonl import read_jsonl
from tests.trainer.policies import Policy
from tests.trainer.resumption import LENGTH_REWARD
from tests.trainer.same_runs import assert_same


def config(ahead: int, steps: int, save_steps: int = 0) -> Config:
    return Config(
        model={"path": "any"},
        data={"train_batch_size": 2},
        rollout={"max_off_policy_steps": ahead, "n": 2},
        trainer={
            "max_steps": steps,
            "checkpoints": {"save_steps": save_steps} if save_steps else None,
        },
    )


class Recorder:
    """An engine that notes with which weights each step was sampled."""

    def __init__(self) -> None:
        self.version = 0
        self.sampled: list[int] = []
        self.waiting: dict[int, Request] = {}
        self._tickets = count()

    def load(self, weights: dict[str, torch.Tensor], version: int) -> None:
        assert float(weights["w"]) == version  # a copy of its time, not what came after
        self.version = version

    def submit(self, requests: list[Request]) -> list[int]:
        new = {next(self._tickets): request for request in requests}
        self.waiting |= new
        return list(new)

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        time.sleep(0.01)
        waiting, self.waiting = self.waiting, {}
        if waiting:
            self.sampled.append(self.version)
        token, logprob = np.array([1]), np.zeros(1, np.float32)
        completion = Completion(token, logprob, "", False, self.version)
        return [
            Finished(ticket, index, completion)
            for ticket, request in waiting.items()
            for index in range(len(request.seeds))
        ]


class Ones:
    """Rewards of 1."""

    def score(self, groups: list[RolloutGroup], shuffled: object, check=True) -> list[ScoredGroup]:
        return [ScoredGroup(g, (Reward(1.0),) * len(g.completions)) for g in groups]


@pytest.fixture
def sampler_of(parts, digit_samples):
    """Makes a sampler of a configuration and an engine."""
    family, _, media, _ = parts

    def make(config: Config, engine: Any) -> AbstractContextManager[Sampler]:
        components = TrainerComponents(
            loader=SampleLoader(DataSampler(digit_samples, 0), MediaCheck(media, Quarantine(0))),
            render=family.render_prompt,
            engine=engine,
            rewards=Ones(),
            algorithm=build_algorithm(
                config.algorithm, config.rollout.max_response_length, weights_of(config.rewards)
            ),
            policy=Policy(),
            reference=None,
            coefficients=Coefficients(config.algorithm),
            media=media,
        )
        return Sampler(config, components)

    return make


@pytest.mark.parametrize(
    ("ahead", "save_steps", "expected"),
    [
        (0, 0, [0, 1, 2, 3, 4, 5]),
        (1, 0, [0, 0, 1, 2, 3, 4]),
        (2, 0, [0, 0, 0, 1, 2, 3]),
        (9, 0, [0, 0, 0, 0, 0, 0]),
        (2, 3, [0, 0, 0, 3, 3, 3]),  # after a checkpoint no step is being sampled
        (1, 2, [0, 0, 2, 2, 4, 4]),
    ],
)
def test_a_step_is_sampled_with_the_weights_of_so_many_updates_before(
    sampler_of, ahead, save_steps, expected
):
    engine, policy = Recorder(), Policy()
    prompts = []
    with sampler_of(config(ahead, 6, save_steps), engine) as sampler:
        for number in range(1, 7):
            batch = sampler.sample(number)
            assert batch.oldest_version == expected[number - 1]
            prompts += [s.group.prompt.sample.id for s in batch.groups]
            policy.update()
            sampler.sync(policy)
    assert engine.sampled == expected
    assert engine.version == 6  # the evaluation after the run has the last weights
    assert all(k - 1 - v <= ahead for k, v in enumerate(engine.sampled, 1))
    assert len(set(prompts)) == len(prompts) == 12  # in the data's order, none twice


def test_no_step_is_being_sampled_when_a_validation_asks_the_engine(sampler_of):
    run = config(2, 6).changed({"trainer.validation": {"data": "any", "steps": 3}})
    engine, policy = Recorder(), Policy()
    with sampler_of(run, engine) as sampler:
        for number in range(1, 7):
            sampler.sample(number)
            policy.update()
            sampler.sync(policy)
            if run.trainer.validates(number):
                sampler.finish()
                assert (engine.version, len(engine.sampled)) == (number, number)
    assert engine.sampled == [0, 0, 0, 3, 3, 3]


def test_a_failure_of_the_engine_reaches_the_loop(sampler_of):
    class Broken(Recorder):
        def poll(self, wait_s: float = 0.0) -> list[Finished]:
            raise RuntimeError("no engine")

    with (
        pytest.raises(RuntimeError, match="no engine"),
        sampler_of(config(1, 6), Broken()) as sampler,
    ):
        sampler.sample(1)


def test_weights_that_could_not_be_loaded_stop_the_sampling(sampler_of):
    engine, policy = Recorder(), Policy()
    policy._weight.fill_(7)  # not what the version says: the engine refuses

    def run() -> None:
        with sampler_of(config(1, 6), engine) as sampler:
            sampler.sample(1)
            sampler.sync(policy)
            sampler.sample(2)
            sampler.sample(3)

    with pytest.raises(AssertionError):
        run()
    assert len(engine.sampled) == 2


def slow_weights(p, q, mask, form, cap, outlier, outlier_form="token"):
    rows = []
    for ps, qs, ms in zip(p.tolist(), q.tolist(), mask.tolist(), strict=True):
        ratios = [math.exp(a - b) if m else 1.0 for a, b, m in zip(ps, qs, ms, strict=True)]
        whole = math.prod(ratios)
        row = []
        for ratio in ratios:
            weight = {"none": 1.0, "token": min(ratio, cap), "sequence": min(whole, cap)}[form]
            mean = whole ** (1 / max(1, sum(ms)))
            judged = {"token": ratio, "sequence": whole, "geometric": mean}[outlier_form]
            outside = outlier is not None and not 1 / outlier <= judged <= outlier
            row.append(0.0 if outside else weight)
        rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("form", ["none", "token", "sequence"])
@pytest.mark.parametrize("outlier", [None, 1.15])
@pytest.mark.parametrize("outlier_form", ["token", "sequence", "geometric"])
def test_correction_is_the_truncated_ratio(form, outlier, outlier_form):
    rng = np.random.default_rng(0)
    p, q = (torch.tensor(rng.normal(-2, 0.4, (5, 7)), dtype=torch.float32) for _ in range(2))
    mask = torch.tensor(rng.random((5, 7)) < 0.8)
    limits = (2.0, outlier, outlier_form)
    weights = rollout_importance_weights(p.requires_grad_(), q, mask, form, *limits)
    expected = slow_weights(p, q, mask, form, *limits)
    torch.testing.assert_close(weights, expected)
    assert outlier is None or (expected == 0).any()
    assert not weights.requires_grad
    same = rollout_importance_weights(q, q, mask, form, 2.0, outlier)
    assert torch.equal(same, torch.ones_like(same))


def test_sampling_from_another_policy_switches_the_correction_on():
    assert config(0, 5).resolved_rollout_is == "token"  # vLLM's log-probs are its own
    alone = Config(model={"path": "any"}, rollout={"engine": "hf"})
    assert alone.resolved_rollout_is == "none"
    assert alone.changed({"rollout.max_off_policy_steps": 1}).resolved_rollout_is == "token"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.max_off_policy_steps=1", "rollout.engine.type=hf, .*that engine samples from"),
        ("rollout.engine.dtype=float32", "type 'hf' has no 'dtype'; type vllm"),
    ],
    ids=["ahead", "another dtype"],
)
def test_the_transformers_engine_samples_from_the_policy_as_it_is(override, said):
    tree = {"model": {"path": "any"}, "rollout": {"engine": {"type": "hf"}}}
    with pytest.raises(ValueError, match=said):
        config_from(tree, [override])


def test_an_engine_of_this_process_is_checked_for_what_it_can_do():
    ahead = Config(model={"path": "any"}, rollout={"engine": "hf", "max_off_policy_steps": 1})
    with pytest.raises(ValueError, match=r"engine\.type=hf, .*max_off_policy_steps=1"):
        check_engine(ahead)


@pytest.mark.slow
@pytest.mark.vllm
def test_a_run_ahead_repeats_and_resumes(tiny_model, digits, tmp_path):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    reward = tmp_path / "length.py"
    reward.write_text(LENGTH_REWARD)
    (tmp_path / "accident").write_text("")

    def run(name: str, steps: int, resume: bool = False) -> Path:
        run_training(
            Config(
                model={"path": str(tiny_model), "dtype": "float32"},
                data={"train": str(digits / "rl.jsonl"), "train_batch_size": 2},
                rollout={
                    "n": 3,
                    "max_prompt_length": 56,
                    "max_response_length": 8,
                    "max_off_policy_steps": 2,
                },
                rewards={"length": {"type": f"{reward}:reward", "sandbox": None}},
                optimizer={"lr": 1e-3, "scheduler": {"type": "constant", "warmup_steps": 0}},
                trainer={
                    "max_steps": steps,
                    "checkpoints": {"save_steps": 3},
                    "output_dir": str(tmp_path / name),
                    "log_completions_steps": 1,
                    "threads": 1,
                },
            ),
            resume=resume,
        )
        return tmp_path / name

    whole = run("whole", 6)
    lines = read_jsonl(whole / "metrics.jsonl")
    assert [line["rollout/staleness"] for line in lines] == [0, 1, 2, 0, 1, 2]
    assert lines[2]["rollout/logprob_diff_mean"] > 10 * lines[0]["rollout/logprob_diff_mean"]
    assert lines[2]["rollout/importance_weight_mean"] != 1.0
    run("resumed", 3)
    assert_same(whole, run("resumed", 6, resume=True))
