"""Streaming rollouts: what is drawn when, how old what is learned from may be, and what is kept."""

from __future__ import annotations

import copy
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmr1.config import Config, ToolsConfig
from mmr1.config.checks import check_own_parts
from mmr1.config.file import config_from
from mmr1.config.rewards import weights_of
from mmr1.data.quarantine import Quarantine
from mmr1.data.record import read_records
from mmr1.data.sampler import Curriculum, MediaCheck, SampleLoader
from mmr1.data.sampler import Sampler as DataSampler
from mmr1.environments.environment import Answer, Ending, Opening
from mmr1.rollout.conversations import Player
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.protocol import Finished, Request
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.coefficients import Coefficients
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.forward.sequences import group_input
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.sampler import Batch, Sampler
from mmr1.trainer.sampling.dynamic_sampling import NoSignalError, rewards_differ
from mmr1.trainer.sampling.open_groups import OpenGroups
from mmr1.trainer.sampling.plan import Part, planner
from mmr1.trainer.sampling.replay import KeptGroups, Replay
from mmr1.trainer.sampling.step_rewards import StepRewards
from mmr1.trainer.train import run_training, training_steps
from mmr1.types import (
    Completion,
    Experience,
    Message,
    Prompt,
    Reward,
    RolloutGroup,
    ScoredGroup,
    TextPart,
)
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.jsonl import read_jsonl
from tests.padded_forward import padded_scores
from tests.trainer.policies import Policy
from tests.trainer.stream_runs import assert_within, learned, run_config
from tests.trainer.tool_runs import PLUGINS

SIZE, N = 2, 2  # prompts a step, completions of each


def config(ahead: int, steps: int, **more: Any) -> Config:
    queue = {"at_new_weights": more.pop("at_new_weights", "continue")}
    queue["window"] = more.pop("window", 0)
    return Config(
        model={"path": "any"},
        data={"train_batch_size": SIZE},
        rollout={"max_off_policy_steps": ahead, "n": N, "queue": queue},
        trainer={"max_steps": steps, "checkpoints": None},
        **more,
    )


class Scripted:
    """An engine in which a completion is a number of tokens long, and a moment samples one of each.

    It takes new weights in between, as vLLM does, and notes what it was asked.
    """

    def __init__(self, seed: int = 0) -> None:
        self.version = 0
        self._tickets = count()
        self.left: dict[tuple[int, int], int] = {}
        self.spans: dict[tuple[int, int], list[int]] = {}  # the versions of a completion's tokens
        self.began: list[int] = []  # prompts, in order
        self.most = self.cancelled = 0
        self._random = Random(seed)
        self.group: dict[tuple[int, int], int] = {}  # of a number: tickets say nothing of it
        self._names: dict[str, int] = {}

    def submit(self, requests: Sequence[Request]) -> list[int]:
        tickets = [next(self._tickets) for _ in requests]
        for ticket, request in zip(tickets, requests, strict=True):
            for index in range(len(request.seeds)):
                number = ticket, index
                self.left[number] = self._random.choice([1, 2, 3, 5, 30])
                self.spans[number] = []
                name = request.prompt.sample.id
                self.group[number] = self._names.setdefault(name, len(self._names))
                self.began.append(self.group[number])
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        time.sleep(1e-4)
        self.most = max(self.most, len({self.group[number] for number in self.left}))
        for number in self.left:
            self.left[number] -= 1
            self.spans[number].append(self.version)
        ended = [number for number, left in self.left.items() if left == 0]
        return [Finished(*number, self._completion(number)) for number in ended]

    def _completion(self, number: tuple[int, int]) -> Completion:
        del self.left[number]
        own = self.spans.pop(number)
        versions = tuple((v, own.count(v)) for v in sorted(set(own)))
        several = versions if len(versions) > 1 else ()
        logprobs = np.zeros(len(own), np.float32)
        return Completion(np.ones(len(own), int), logprobs, "", False, own[0], versions=several)

    def cancel(self) -> int:
        cancelled = sum(map(len, self.spans.values()))
        self.cancelled += cancelled
        self.left, self.spans = {}, {}
        return cancelled

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        assert float(weights["w"]) == version
        self.version = version

    def probe(self, prompts: Sequence[Prompt]) -> list[Any]:
        raise NotImplementedError

    def close(self) -> None:
        """It has nothing."""


class Rewards:
    """Rewards that differ within a group, but for the groups whose index ``equal`` names."""

    def __init__(self, equal: Sequence[int] = ()) -> None:
        self.equal, self.asked = equal, 0

    def score(
        self, groups: Sequence[RolloutGroup], beside: Any = (), check: bool = True
    ) -> list[ScoredGroup]:
        assert not check  # with the step alone
        scored = []
        for group in groups:
            same = self.asked in self.equal
            values = [Reward(1.0 if same else float(i)) for i in range(len(group.completions))]
            scored.append(ScoredGroup(group, tuple(values)))
            self.asked += 1
        return scored

    def check(self, scored: Sequence[ScoredGroup]) -> None:
        """All are valid."""


@pytest.fixture
def sampler_of(parts, digit_samples):
    """Opens the sampler of a configuration, an engine, rewards and a policy."""
    family, _, media, _ = parts

    @contextmanager
    def opened(
        run: Config,
        engine: Any,
        rewards: Any = None,
        policy: Any = None,
        groups: Any = None,
        steps: StepRewards | None = None,
        replay: Replay | None = None,
    ) -> Iterator[Sampler]:
        curriculum = run.data.curriculum and Curriculum(run.data.curriculum, run.seed)
        components = TrainerComponents(
            loader=SampleLoader(
                DataSampler(digit_samples, 0), MediaCheck(media, Quarantine(0)), curriculum
            ),
            render=family.render_prompt,
            engine=engine,
            rewards=rewards or Rewards(),
            algorithm=build_algorithm(
                run.algorithm, run.rollout.max_response_length, weights_of(run.rewards)
            ),
            policy=policy or Policy(),
            reference=None,
            coefficients=Coefficients(run.algorithm),
            media=media,
            steps=steps,
            replay=replay,
            open_groups=groups
            or OpenGroups(no_prompt, planner(run, run.algorithm.advantage.type == "remax")),
        )
        with Sampler(run, components) as sampler:
            yield sampler

    return opened


def ages(batch: Batch, now: int) -> list[int]:
    """Of the tokens that a step learns from, in updates."""
    return [
        now - version
        for scored in batch.groups
        for c in scored.group.completions
        for version, _ in c.versions or ((c.policy_version, 1),)
    ]


@pytest.mark.parametrize("window", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("at_new_weights", ["continue", "restart"])
def test_no_token_is_older_than_the_bound_and_the_order_is_the_datas(
    sampler_of, ahead, window, at_new_weights
):
    steps = 12
    run = config(ahead, steps, window=window, at_new_weights=at_new_weights)
    engine, policy, seen, mixed = Scripted(ahead), Policy(), [], 0
    with sampler_of(run, engine, policy=policy) as sampler:
        for number in range(1, steps + 1):
            batch = sampler.sample(number)
            assert max(ages(batch, policy.version)) <= ahead + math.ceil((window - 1) / SIZE)
            seen += [s.group.prompt.sample.id for s in batch.groups]
            completions = [c for s in batch.groups for c in s.group.completions]
            mixed += sum(bool(c.versions) for c in completions)
            assert batch.oldest_version == min(c.policy_version for c in completions)
            policy.update()
            sampler.sync(policy)
    assert len(set(seen)) == len(seen) == SIZE * steps
    assert engine.version == steps
    assert engine.most <= (ahead + 1) * SIZE
    assert not engine.left
    assert at_new_weights == "continue" or mixed == 0
    assert at_new_weights == "continue" or engine.cancelled > 0
    if window <= 1:  # the groups of a step are those of a synchronous run
        first = list(dict.fromkeys(engine.began))
        assert first == list(range(SIZE * steps))


@given(
    ahead=st.integers(0, 3),
    size=st.integers(1, 4),
    window=st.integers(0, 12),
    seed=st.integers(0, 10_000),
)
def test_the_bound_holds_whatever_ends_first(ahead, size, window, seed):
    """The rule by itself: (S + 1) * P places, given back when the weights are loaded."""
    random, groups, steps, drawn_at = Random(seed), OpenGroups(no_prompt, no_plan), 15, {}
    window = min(window, (ahead + 1) * size)
    bound = ahead + max(0, math.ceil((window - 1) / size))
    widest = 0
    for step in range(1, steps + 1):
        while len(groups) < (ahead + 1) * size:
            (number,) = groups.add(step, [None], [0])
            drawn_at[number] = step - 1
        for _ in range(size):
            while groups.next(window) is None:
                open_ones = [n for n, group in groups if group.scored is None]
                number = random.choice(open_ones)
                groups[number].scored = ScoredGroup(RolloutGroup(None, ()), ())
            number = groups.next(window)
            groups.remove(number)
            widest = max(widest, step - 1 - drawn_at[number])
    assert widest <= bound


def no_prompt(source: str | None, name: str) -> Prompt:
    raise AssertionError("nothing is resumed")


def no_plan(step: int, prompt: Prompt | None, seed: int) -> list[Part]:
    """Of groups that nobody samples."""
    return []


def test_groups_that_are_waited_for_hold_nobody_up_but_the_trainer(sampler_of):
    """A judge that takes long: the engine samples all that there is room for meanwhile."""
    engine, judged = Scripted(), threading.Event()

    class Judge(Rewards):
        def score(
            self, groups: Sequence[RolloutGroup], beside: Any = (), check: bool = True
        ) -> list[ScoredGroup]:
            assert judged.wait(60)
            return super().score(groups, beside, check)

    with sampler_of(config(2, 6), engine, Judge()) as sampler:
        taken: list[Batch] = []
        trainer = threading.Thread(target=lambda: taken.append(sampler.sample(1)))
        trainer.start()
        while len(set(engine.began)) < 3 * SIZE or engine.left:
            time.sleep(0.001)
        assert not taken
        judged.set()
        trainer.join()
        assert len(taken[0].groups) == SIZE
        sampler.sync(policy_at(1))
        for number in range(2, 7):
            sampler.sample(number)
            sampler.sync(policy_at(number))


def policy_at(version: int) -> Policy:
    policy = Policy()
    for _ in range(version):
        policy.update()
    return policy


def test_nothing_is_drawn_while_a_validation_uses_the_engine(sampler_of):
    run = config(2, 6).changed({"trainer.validation": {"data": "any", "steps": 3}})
    engine, policy = Scripted(), Policy()
    with sampler_of(run, engine, policy=policy) as sampler:
        for number in range(1, 7):
            sampler.sample(number)
            policy.update()
            sampler.sync(policy)
            if run.trainer.validates(number):
                sampler.finish()
                began = len(engine.began)
                assert (engine.version, engine.left) == (number, {})
                time.sleep(0.02)
                assert len(engine.began) == began


def test_dynamic_sampling_draws_others_for_groups_without_a_signal(sampler_of):
    resamples = {"filter_groups": {"type": "resample", "max_num_gen_batches": 2}}
    run, engine, policy = config(1, 4, algorithm=resamples), Scripted(), Policy()
    dropped = 0.0
    with sampler_of(run, engine, Rewards(equal=[0, 3, 4]), policy) as sampler:
        for number in range(1, 5):
            batch = sampler.sample(number)
            assert len(batch.groups) == SIZE
            assert all(len({r.value for r in s.rewards}) > 1 for s in batch.groups)
            assert max(ages(batch, policy.version)) <= 1
            dropped += batch.stats["dynamic_sampling/frac_zero_std"]
            assert len(batch.all_groups) == SIZE + batch.stats["dynamic_sampling/frac_zero_std"]
            policy.update()
            sampler.sync(policy)
    assert dropped == 3
    assert len(set(engine.began)) == 4 * SIZE + 3


def test_a_run_in_which_nothing_has_a_signal_ends(sampler_of):
    resamples = {"filter_groups": {"type": "resample", "max_num_gen_batches": 2}}
    run, rewards = config(1, 4, algorithm=resamples), Rewards(equal=range(1000))
    with (
        pytest.raises(NoSignalError, match="2 generation batches"),
        sampler_of(run, Scripted(), rewards) as sampler,
    ):
        sampler.sample(1)


def test_steps_are_rewarded_and_the_curriculum_learns_as_groups_come(sampler_of):
    run = config(1, 4).changed({"data.curriculum": {"function": "any", "floor": 0.5}})
    rewarded = (((0, 0.5),),)
    steps = StepRewards(lambda groups: [rewarded[0] for g in groups for _ in g.completions])

    class Named(Rewards):
        def score(
            self, groups: Sequence[RolloutGroup], beside: Any = (), check: bool = True
        ) -> list[ScoredGroup]:
            reward = Reward(0.25, components={"any": 0.25})
            return [ScoredGroup(g, (reward,) * len(g.completions)) for g in groups]

    with sampler_of(run, Scripted(), Named(), steps=steps) as sampler:
        for number in range(1, 5):
            batch = sampler.sample(number)
            assert all(s.steps == rewarded * N for s in batch.groups)
            sampler.sync(policy_at(number))
        rates = batch.state()["sampler"]["curriculum"]
    assert "0.25" in json.dumps(rates)
    assert "curriculum/skipped" in batch.stats


@pytest.mark.parametrize("method", ["submit", "poll", "load"])
def test_what_fails_in_a_thread_of_the_stream_reaches_the_loop(sampler_of, method):
    class Broken(Scripted):
        pass

    def fail(*args: object) -> None:
        raise RuntimeError("no engine")

    setattr(Broken, method, fail)

    def run() -> None:
        with sampler_of(config(1, 6), Broken()) as sampler:
            for number in range(1, 7):
                sampler.sample(number)
                sampler.sync(policy_at(number))

    with pytest.raises(RuntimeError, match="no engine"):
        run()


def test_open_groups_are_what_they_were_after_a_resume(parts):
    _, _, _, scored = parts
    prompts = [s.group.prompt for s in scored]
    by_id = {p.sample.id: p for p in prompts}
    plan = planner(config(1, 4).changed({"rollout.n": 4}), greedy=False)
    groups = OpenGroups(lambda source, name: by_id[name], plan)
    groups.add(1, prompts, [10 * i for i in range(len(prompts))])
    whole = scored[0].group.completions
    versions = ((3, 1), (4, len(whole[1].token_ids) - 1))
    whole = (whole[0], replace(whole[1], policy_version=3, versions=versions), *whole[2:])
    for index, completion in enumerate(whole):
        groups[0].ended[index] = groups[2].ended[index] = Finished(0, index, completion)
    groups[1].ended[2] = Finished(0, 2, whole[1])
    groups[0].scored = replace(scored[0], group=groups[0].group)
    again = OpenGroups(lambda source, name: by_id[name], plan)
    again.load_state_dict(groups.state_dict())
    assert (again.drawn, len(again)) == (3, 3)
    assert again.state_dict() == groups.state_dict()
    assert again.next(0) == 0
    restored = again.remove(0)
    assert restored.rewards == scored[0].rewards
    assert restored.group.completions[1].versions == versions
    ((places, request),) = again[1].missing("group")
    assert (places, request.seeds) == ([0, 1, 3], (10, 11, 13))
    again.load_state_dict(groups.state_dict())
    told = "2 of 3 groups were sampled to the end and are kept; 3 unfinished completions"
    assert told in again.resumed()


def test_a_resumed_stream_samples_what_is_missing_and_no_more(sampler_of, parts):
    run, policy, states = config(2, 6), Policy(), []

    def stopped() -> None:
        with sampler_of(run, Scripted(1), policy=policy) as sampler:
            batch = sampler.sample(1)
            policy.update()
            sampler.sync(policy)
            states.append(json.loads(json.dumps(batch.state())))
            raise InterruptedError

    with pytest.raises(InterruptedError):
        stopped()
    (state,) = states
    entries = state["open_groups"]["groups"]
    missing = {
        entry["seed"] + index
        for entry in entries.values()
        for index in range(N)
        if str(index) not in entry["ended"]
    }
    again = OpenGroups(lambda source, name: parts[3][0].group.prompt, planner(run, greedy=False))
    again.load_state_dict(state["open_groups"])
    told: list[int] = []

    class Noting(Scripted):
        def submit(self, requests: Sequence[Request]) -> list[int]:
            told.extend(seed for request in requests for seed in request.seeds)
            return super().submit(requests)

    engine = Noting(2)
    engine.load(policy.weights(), policy.version)
    with sampler_of(run, engine, None, policy, again) as sampler:
        for number in range(2, 7):
            assert max(ages(sampler.sample(number), policy.version)) <= 2
            policy.update()
            sampler.sync(policy)
    drawn = state["open_groups"]["drawn"]
    assert len(told) == len(set(told)) == len(missing) + N * (6 * SIZE - drawn)
    assert missing <= set(told)


class Guessing:
    """An environment that opens with a hint, answers the first two turns and then ends."""

    tools: Sequence[str] = ()

    def __init__(self) -> None:
        self.begun = self.ended = 0

    def episode(self, sample: Any) -> Any:
        return Episode(self)

    def close(self) -> None:
        """It has nothing."""


class Episode:
    def __init__(self, of: Guessing) -> None:
        self._of, self._turns = of, 0

    def begin(self, prompt: str) -> Opening:
        self._of.begun += 1
        return Opening(" (even)")

    def step(self, action: Any) -> Answer:
        self._turns += 1
        message = Message("tool", (TextPart("Again."),))
        return Answer((message,) if self._turns < 3 else (), reward=0.25)

    def end(self) -> Ending:
        self._of.ended += 1
        return Ending(1.0)


@pytest.mark.parametrize("at_new_weights", ["continue", "restart"])
def test_conversations_stream_and_are_resumed(sampler_of, parts, digit_samples, at_new_weights):
    """Turns, openings and rewards outlive a stop; no token is older than the bound."""
    family, _, media, _ = parts
    run, policy, states = config(2, 6, at_new_weights=at_new_weights), Policy(), []
    settings = ToolsConfig(tools=("zoom",), workers=2, max_tokens_per_turn=40)

    def playing(seed: int) -> Player:
        return Player(Scripted(seed), Guessing(), settings, family, media, together=False)

    def check(batch: Batch) -> None:
        assert max(ages(batch, policy.version)) <= 2
        for scored in batch.groups:
            assert "(even)" in scored.group.prompt.text
            for c in scored.group.completions:
                assert [span.role for span in c.spans] == ["assistant", "tool"] * 2 + ["assistant"]
                assert c.reward == 1.75
                assert sum(tokens for _, tokens in c.versions or [(0, len(c.token_ids))]) == len(
                    c.token_ids
                )

    def stopped() -> None:
        with sampler_of(run, playing(1), policy=policy) as sampler:
            check(batch := sampler.sample(1))
            policy.update()
            sampler.sync(policy)
            states.append(json.loads(json.dumps(batch.state())))
            raise InterruptedError

    with pytest.raises(InterruptedError):
        stopped()
    (state,) = states
    by_id = {s.id: s for s in digit_samples}
    again = OpenGroups(
        lambda source, name: family.render_prompt(by_id[name]), planner(run, greedy=False)
    )
    again.load_state_dict(state["open_groups"])
    engine = playing(2)
    engine.load(policy.weights(), policy.version)
    with sampler_of(run, engine, None, policy, again) as sampler:
        for number in range(2, 7):
            check(sampler.sample(number))
            policy.update()
            sampler.sync(policy)
    episodes, until = engine.environment, time.monotonic() + 60
    while episodes.ended < episodes.begun and time.monotonic() < until:
        time.sleep(0.01)  # those that a restart dropped end in threads
    assert episodes.ended == episodes.begun
    engine.close()


REFUSED = [
    (["rollout.max_off_policy_steps=0"], "nothing is sampled while the trainer learns"),
    (["rollout.engine=hf"], "samples from the very model"),
    (["rollout.engine.colocate=true"], "engines sleep while the ranks learn"),
    (["full_determinism=true"], "which weights sample a token depends on timing"),
    (["algorithm=dapo", "algorithm.filter_groups.keep_surplus=true"], "and keeps no others"),
    (["model.lora.merge=false"], "vLLM cannot exchange the adapters"),
    (
        ["rollout.queue.at_new_weights=restart", "rollout.queue.kv_cache=keep"],
        "none has keys and values to keep",
    ),
    (["rollout.queue.window=99", "data.train_batch_size=4"], "lower the window"),
]


@pytest.mark.parametrize(("overrides", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_does_not_stream_is_refused_with_the_reason(overrides, said):
    tree = {
        "model": {"path": "any"},
        "rollout": {"max_off_policy_steps": 2, "queue": {"at_new_weights": "continue"}},
    }
    assert config_from(tree, []).max_staleness == 2
    with pytest.raises(ValueError, match=said):
        config_from(tree, overrides)


def test_a_group_of_a_stream_has_a_greedy_baseline(sampler_of):
    run = config(1, 4, algorithm={"name": "remax"})
    with sampler_of(run, Scripted()) as sampler:
        for number in range(1, 5):
            batch = sampler.sample(number)
            assert [s.greedy for s in batch.groups] == [Reward(0.0)] * SIZE
            assert [len(s.group.completions) for s in batch.groups] == [N] * SIZE
            sampler.sync(policy_at(number))


def test_a_group_of_a_stream_is_sampled_under_two_views(sampler_of):
    views = {"view": "noise", "strength": 0.5, "share": 0.5, "loss": "own"}
    run = config(1, 4).changed({"rollout.views": views})
    with sampler_of(run, Scripted()) as sampler:
        for number in range(1, 5):
            batch = sampler.sample(number)
            seen = [[bool(c.view) for c in s.group.completions] for s in batch.groups]
            assert seen == [[False, True]] * SIZE
            assert {"views/reward_clean", "views/reward_perturbed"} <= batch.stats.keys()
            sampler.sync(policy_at(number))


def test_a_stream_replays_groups_in_place_of_those_without_signal(sampler_of):
    run = config(1, 6).changed({"algorithm.filter_groups": "replay"})
    replayed = Replay(run.algorithm.replay, 0, rewards_differ, KeptGroups(no_prompt))
    with sampler_of(run, Scripted(), Rewards(equal=(5, 8)), replay=replayed) as sampler:
        names, replays = [], []
        for number in range(1, 7):
            batch = sampler.sample(number)
            names += [s.group.prompt.sample.id for s in batch.groups]
            replays.append(batch.stats["replay/num_groups"])
            assert all(rewards_differ(s) for s in batch.groups)
            sampler.sync(policy_at(number))
    assert sum(replays) == 2
    assert len(names) - len(set(names)) == 2


@pytest.mark.parametrize(
    ("can", "said"),
    [
        ({}, "samples a batch to its end"),
        ({"at_new_weights": "restart"}, "at_new_weights=continue: .* no new weights while"),
    ],
)
def test_an_engine_that_cannot_is_refused(tmp_path, can, said):
    file = tmp_path / "own.py"
    file.write_text(
        "from mmr1.engines import Abilities, engine\n"
        f"@engine('own', abilities=Abilities(**{can}))\n"
        "def own(setting):\n    'An engine.'\n"
    )
    own = {"rollout.engine": f"{file}:own"}
    with pytest.raises(ValueError, match=said):
        check_own_parts(config(1, 2).changed(own))
    if can:
        check_own_parts(config(1, 2, at_new_weights="restart").changed(own))


@pytest.mark.slow
@pytest.mark.vllm
def test_a_run_that_stops_keeps_its_groups_and_the_bound(
    tiny_model, digits, tmp_path, capsys, monkeypatch
):
    """Pictures, groups that share prompts, two updates a step; stopped after step 3."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    opened: list[Sampler] = []

    class Watched(Sampler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            opened.append(self)

    monkeypatch.setattr("mmr1.trainer.sampler.Sampler", Watched)
    run = run_config(tiny_model, digits, tmp_path, "out")
    steps = training_steps(run)
    for _ in range(3):
        next(steps)
    opened[0].finish()
    steps.close()
    assert "no token is older than 2 steps" in capsys.readouterr().out
    run_training(run, resume=True)
    assert "continuing after step 3" in (said := capsys.readouterr().out)
    assert "6 of 6 groups were sampled to the end and are kept" in said
    out = tmp_path / "out"
    state = (out / "checkpoints/step_000003/training/state.json").read_text()
    kept = json.loads(state)["open_groups"]["groups"].values()
    texts = {row["id"]: [c["text"] for c in row["completions"]] for row in learned(out)}
    for group in kept:
        assert texts[group["id"]] == [group["ended"][str(i)][0]["text"] for i in range(3)]
    assert_within(out, bound=2, updates=2)
    ids = [row["id"] for row in learned(out)]
    order = DataSampler(read_records(digits / "rl.jsonl"), run.seed).next(16)
    assert ids == [sample.id for sample in order]  # as in turn: none lost, none twice


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("what", ["conversations", "views and greedy baselines"])
def test_whole_groups_of_any_kind_stream_and_resume(tiny_model, digits, tmp_path, what):
    """With vLLM; stopped after step 2 and continued: the bound holds, and weights move."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    run = run_config(tiny_model, digits, tmp_path, "out", max_response_length=120)
    run = run.changed({"rollout.max_prompt_length": 96, "trainer.max_steps": 5})
    if what == "conversations":
        environment = {"type": "tools", "tools": ["zoom"], "max_turns": 3, "boxes": "resized"}
        environment |= {"parser": f"{PLUGINS}:always_zoom", "max_tokens_per_turn": 20}
        run = run.changed({"environment": environment | {"workers": 1, "instructions": ""}})
    else:
        views = {"view": "noise", "strength": 0.5, "share": 0.5, "loss": "own"}
        run = run.changed({"rollout.views": views, "algorithm.advantage": "remax"})
    steps = training_steps(run)
    for _ in range(2):
        next(steps)
    steps.close()
    run_training(run, resume=True)
    out = tmp_path / "out"
    assert_within(out, bound=2, updates=2)
    rows = learned(out)
    order = DataSampler(read_records(digits / "rl.jsonl"), run.seed).next(10)
    assert [row["id"] for row in rows] == [sample.id for sample in order]
    lines = read_jsonl(out / "metrics.jsonl")
    assert all(line["grad_norm"] > 0 for line in lines)
    if what == "conversations":
        assert any(line["environment/turns"] > 1 for line in lines)
    else:
        assert all("views/reward_perturbed" in line for line in lines)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize(
    ("queue", "bound"),
    [({"at_new_weights": "continue", "window": 3}, 3), ({"at_new_weights": "restart"}, 2)],
)
def test_runs_with_a_window_or_without_partial_rollouts(tiny_model, digits, tmp_path, queue, bound):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    run_training(run_config(tiny_model, digits, tmp_path, "out", queue=queue))
    out = tmp_path / "out"
    assert_within(out, bound, updates=2)
    if queue["at_new_weights"] == "restart":
        assert not any("versions" in c for row in learned(out) for c in row["completions"])


@pytest.mark.slow
@pytest.mark.vllm
def test_the_loss_of_a_stream_is_that_of_decoupled_ppo(tiny_model, digits, tmp_path, monkeypatch):
    """AReaL (arXiv 2505.24298): ``-min(p / q, 2) min(u A, clip(u) A)``, ``u = pi / p``.

    q are the weights of each token's version and p those before the update, both by a transformers
    forward; pi are p's in the first pass, and those after a step in the second.
    """
    pytest.importorskip("vllm", reason="vLLM is not installed")
    models: list[torch.nn.Module] = []  # by version
    batches: list[tuple[Experience, int, dict[str, float]]] = []
    update, step = LocalPolicy.update, Optimizer.step

    def watched_update(self: LocalPolicy, experience: Experience) -> dict[str, float]:
        models[:] = models or [copy.deepcopy(self._packed_model.model)]
        batches.append((experience, self.version, update(self, experience)))
        return batches[-1][2]

    def watched_step(self: Optimizer) -> dict[str, float]:
        stats, after = step(self), copy.deepcopy(models[0])
        for name, parameter in zip(self._names, self._parameters, strict=True):
            after.get_parameter(name).data.copy_(parameter.data)
        models.append(after)
        return stats

    monkeypatch.setattr(LocalPolicy, "update", watched_update)
    monkeypatch.setattr(Optimizer, "step", watched_step)
    config = run_config(tiny_model, digits, tmp_path, "out")
    run_training(config.changed({"trainer.step_files": False}))  # those have an update of their own
    family = load_family(str(tiny_model))
    media = MediaCache(family.prepare_media)

    @torch.no_grad()
    def logprobs(version: int, experience: Experience) -> torch.Tensor:
        groups = [group_input(family, media, scored.group) for scored in experience.groups]
        model = models[version].eval()
        return padded_scores(model, groups, Distribution(forbidden=family.forbidden_ids)).logprobs

    aged = 0
    for experience, now, stats in batches:
        tokens, mask = experience.tokens, experience.tokens.mask
        versions = tokens.versions
        if versions is None:  # each completion is of one
            own = [c.policy_version for s in experience.groups for c in s.group.completions]
            versions = torch.tensor(own)[:, None].expand(mask.shape)
        q = torch.zeros(mask.shape)
        for version in versions[mask].unique().tolist():
            q = torch.where(versions == version, logprobs(version, experience), q)
        p, advantages = logprobs(now, experience), tokens.advantages
        torch.testing.assert_close(tokens.rollout_logprobs[mask], q[mask], rtol=0, atol=1e-4)
        aged += int((versions[mask] < now).sum())
        weight, losses = (p - q).exp().clamp(max=2.0), []
        for version in (now, now + 1):
            u = (logprobs(version, experience) - p).exp()
            least = torch.minimum(u * advantages, u.clamp(0.8, 1.2) * advantages)
            losses.append(-(tokens.loss_weights * weight * least)[mask].sum())
        assert stats["loss"] == pytest.approx(float(sum(losses)) / 2, abs=2e-5)
    assert aged > 100
