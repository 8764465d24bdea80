"""``mmr1 dpo`` with ``dpo.rounds``: iterative preference optimisation (arXiv 2404.19733).

A round samples completions, scores them with the rewards, takes preferences from the scores and
learns from them. The reference is the policy at the start of the round. The next round samples with
the new weights.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mmr1.config import Config
from mmr1.data.sampler import SampleLoader
from mmr1.progress import WAIT_S, report_activity
from mmr1.rewards import RewardFunction, build_composite_reward
from mmr1.rewards.composite import reward_stats
from mmr1.rollout.build import build_engine
from mmr1.rollout.protocol import Engine, complete, request_seed, requests_for
from mmr1.trainer.distributed.cluster import learner_on_ray
from mmr1.trainer.distributed.ray_policy import RayLearner
from mmr1.trainer.distributed.reward_ranks import reward_model_values
from mmr1.trainer.inputs import Inputs, check_inputs, refuse_keys_of_train
from mmr1.trainer.models.learner import PolicyLearner
from mmr1.trainer.models.state import WriteCheckpoint, load_progress, progress
from mmr1.trainer.run import Steps, already_finished, to_the_end, with_state
from mmr1.trainer.runs.step import PhaseTimer, Step
from mmr1.trainer.sampling.reward_models import reward_models
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.train import SamplingRun, started
from mmr1.trainer.validation.evaluate import accuracy_function, evaluate, is_right
from mmr1.types import Completion, Prompt, Reward, RolloutGroup, ScoredGroup, StepStats
from mmr1_contrib.offline.commands import rounds_of
from mmr1_contrib.offline.dpo import (
    PAIR,
    Preference,
    build_dpo,
    check_loss,
    preferences_of,
    with_unrelated,
)
from mmr1_contrib.offline.preference_losses import balanced
from mmr1_contrib.offline.sections import DpoConfig, RoundsConfig


def run_iterative_dpo(config: Config, *, resume: bool = False) -> Path:
    """``dpo.rounds.count`` rounds, ``trainer.max_steps`` steps in all.

    With ``resume`` a run in ``trainer.output_dir`` continues from its latest valid checkpoint, in
    the middle of a round too. Its results are the same as without the interruption.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        NoPreferencesError: The completions of a round gave nothing to learn from.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    return to_the_end(iterative_dpo_steps(config, resume=resume))


def iterative_dpo_steps(
    config: Config,
    *,
    resume: bool = False,
    functions: Mapping[str, RewardFunction] = MappingProxyType({}),
) -> Steps:
    """The run of :func:`run_iterative_dpo`, step by step; ``functions`` as in ``train``."""
    config = config.for_command("dpo")
    refuse_keys_of_train(config.trainer)
    if last := already_finished(config, resume=resume):
        return last
    check_loss(config.section(DpoConfig))
    timer = PhaseTimer("start", WAIT_S)
    with ExitStack() as stack:
        values = stack.enter_context(reward_model_values(config))
        own = {**reward_models(config, values), **functions}
        rewards = stack.enter_context(build_composite_reward(config.rewards, config.scoring, own))
        with timer("reading the data"):
            inputs = check_inputs(config, rewards, train=True)
        workers = stack.enter_context(_workers(config, inputs))
        # A round's completions are logged with its first step, whichever that is.
        start = started(config, inputs, rewards, workers.engine, timer, log_completions_steps=1)
        with start as sampling:
            return (yield from _train(config, inputs, sampling, workers.learner, timer))


@dataclass(frozen=True, slots=True)
class Workers:
    """The learner and the engine, here or on a cluster; ``engine(log)`` starts the sampling."""

    learner: PolicyLearner[Preference] | RayLearner[Preference]
    engine: Callable[[Path], Engine]


@contextmanager
def _workers(config: Config, inputs: Inputs) -> Iterator[Workers]:
    if config.distributed:
        group_of, engines = attrgetter("group"), config.engines
        with learner_on_ray(config, build_dpo, group_of, engines) as (on_ranks, on_ray):
            yield Workers(on_ranks, lambda log: on_ray)
        return
    with report_activity("loading the model", "start"):
        learner = build_dpo(config, inputs.family, inputs.media)
    own = learner.packed_model

    def engine(log: Path) -> Engine:
        return build_engine(config, inputs.family, inputs.media, log, own.model, own.features)

    yield Workers(learner, engine)


def _train(
    config: Config,
    inputs: Inputs,
    sampling: SamplingRun,
    learner: PolicyLearner[Preference] | RayLearner[Preference],
    timer: PhaseTimer,
) -> Steps:
    run, engine = sampling.run, sampling.engine
    rounds = Rounds(config, inputs, engine, sampling.rewards, learner)
    before = run.directory.last_checkpoint(warn=run.display.say)
    done = 0
    if before:
        done = _restore(rounds, before)
        run.display.continue_after(done)
    else:  # as after each round: so the check below is one of the transfer too
        engine.load(learner.weights(), 0)
    sampling.make_ready(config, inputs, learner, timer)
    with run.display:
        checkpoint = yield from run.take(rounds.steps(done), partial(_snapshot, rounds))
    if inputs.held_out:
        engine.load(learner.weights(), rounds.count)
        result = evaluate(
            config,
            engine,
            inputs.render,
            sampling.rewards,
            inputs.held_out,
            inputs.check_held_out,
        )
        run.record_evaluation(result)
    run.display.say(f"checkpoint: {checkpoint}")
    return checkpoint


def _snapshot(rounds: Rounds, step: Step) -> WriteCheckpoint:
    """A function that writes the present state of the run."""
    write = rounds.learner.snapshot(rounds.config.trainer.async_save)
    return with_state(
        [write], progress(step.number, {"optimizer": rounds.learner, "rounds": rounds})
    )


def _restore(rounds: Rounds, checkpoint: Path) -> int:
    """Restore the run from a checkpoint; returns the last step that is done."""
    rounds.learner.load_snapshot(checkpoint)
    done = load_progress(checkpoint, {"optimizer": rounds.learner, "rounds": rounds})
    rounds.engine.load(rounds.learner.weights(), 0)
    return done


@dataclass
class Rounds:
    """``dpo.rounds.count`` rounds of ``trainer.max_steps`` steps in all.

    A round samples with the policy of its start, which is also its reference. A checkpoint holds
    what the round learns from, so a run resumes in its middle. The loss is of the model itself: its
    log-probs are those at temperature 1, whatever the rollout's.
    """

    config: Config
    inputs: Inputs
    engine: Engine
    reward_manager: RewardManager
    learner: PolicyLearner[Preference] | RayLearner[Preference]
    _loader: SampleLoader = field(init=False)
    _loader_before: dict[str, Any] = field(init=False)
    _prompts: list[Prompt] = field(default_factory=list, init=False)
    _preferences: list[Preference] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._loader = self.inputs.loader(self.config.seed)
        self._loader_before = self._loader.state_dict()

    @property
    def rounds(self) -> RoundsConfig:
        """``dpo.rounds``, which is set."""
        rounds = rounds_of(self.config)
        assert rounds is not None, "else nothing is sampled"
        return rounds

    @property
    def count(self) -> int:
        """The number of rounds."""
        return self.rounds.count

    def steps(self, done: int) -> Iterator[Step]:
        """Yields each finished step after step ``done``.

        The first step of a round carries the round's completions.

        Raises:
            NoPreferencesError: A round gave nothing to learn from.
        """
        for number in range(1, self.count + 1):
            begin, end = self._ends(number - 1), self._ends(number)
            if done >= end:
                continue
            yield from self._round(number, begin, end, max(done, begin))

    def _ends(self, number: int) -> int:
        """The last step of a round; 0 before the first."""
        return self.config.trainer.steps * number // self.count

    def _round(self, number: int, begin: int, end: int, done: int) -> Iterator[Step]:
        timer = PhaseTimer(f"step {done + 1}")
        stats: StepStats = {}
        scored: Sequence[ScoredGroup] = ()
        if done == begin:
            scored = self._sample(number, timer)
            stats = reward_stats([r for s in scored for r in s.rewards])
            kind = "pairs" if self.config.section(DpoConfig).loss.paired else "labelled_prompts"
            stats[f"dpo/{kind}"] = len(self._preferences)
        rng = random.Random(request_seed(self.config.seed, number, "batches"))
        batches = _batches(self._preferences, self.config.data.train_batch_size, rng)
        for step, batch in enumerate(islice(batches, done - begin, end - begin), done + 1):
            with timer("update"):
                stats |= self.learner.step(batch)
            times = {f"time/{name}": spent for name, spent in timer.seconds().items()}
            yield Step(step, {"step": step, "dpo/round": number, **stats, **times}, scored)
            timer, stats, scored = PhaseTimer(f"step {step + 1}"), {}, ()

    def _sample(self, number: int, timer: PhaseTimer) -> list[ScoredGroup]:
        """Sample, score and judge; keeps the preferences that the round learns from."""
        config = self.config
        if number > 1:
            self.engine.load(self.learner.weights(), number - 1)
        self._draw()
        with timer("rollout"):
            rollout = config.rollout
            requests = requests_for(self._prompts, rollout.n, rollout.sampling, config.seed, number)
            groups = complete(self.engine, requests)
        with timer("reward"):
            scored = self.reward_manager.score(groups)
        rng = random.Random(request_seed(config.seed, number, "pairs"))
        accuracy_name = accuracy_function(config.rewards, config.eval.accuracy_function)
        try:
            labelled = judged(
                scored, self.rounds, config.section(DpoConfig).loss.paired, accuracy_name, rng
            )
        except NoPreferencesError as error:
            raise NoPreferencesError(
                f"round {number}: {error}: begin with supervised training, choose other data, or "
                "raise rollout.n, dpo.rounds.prompts or the temperature"
            ) from None
        own = [group for group, _ in labelled]
        if not config.section(DpoConfig).loss.paired:
            own = with_unrelated(own)
        with timer("reference"):
            desirable = [wanted for _, wanted in labelled]
            self._preferences = preferences_of(
                own, desirable, self.learner.by_token, config.section(DpoConfig).loss
            )
        if config.section(DpoConfig).balances_labels:
            weights = balanced(desirable)
            self._preferences = [
                replace(p, weights=w) for p, w in zip(self._preferences, weights, strict=True)
            ]
        return scored

    def _draw(self) -> None:
        """Draw the prompts of the next round."""
        self._loader_before = self._loader.state_dict()
        samples = self._loader.next(self.rounds.prompts)
        self._prompts = [self.inputs.render(sample) for sample in samples]

    def state_dict(self) -> dict[str, Any]:
        """The round's prompts, by the loader before them, and its preferences, as JSON values."""
        left_out = self._loader.state_dict()["left_out"]  # also what the round's draw found
        return {
            "sampler": {**self._loader_before, "left_out": left_out},
            "preferences": [_encode(p, self._prompts) for p in self._preferences],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the round of ``state``.

        Raises:
            ValueError: The data are others than those of the state.
        """
        self._loader.load_state_dict(state["sampler"])
        self._draw()
        self._preferences = [_decode(row, self._prompts) for row in state["preferences"]]


def _encode(preference: Preference, prompts: Sequence[Prompt]) -> dict[str, Any]:
    return {
        "prompt": prompts.index(preference.group.prompt),
        "completions": [c.token_ids.tolist() for c in preference.group.completions],
        "desirable": preference.desirable,
        "reference": preference.reference,
        "weights": preference.weights,
    }


def _decode(row: Mapping[str, Any], prompts: Sequence[Prompt]) -> Preference:
    """A preference from JSON; text and log-probs stay empty, as learning needs the tokens alone."""
    completions = tuple(
        Completion(np.array(ids, dtype=np.int64), np.zeros(len(ids), np.float32), "", False, 0)
        for ids in row["completions"]
    )
    group = RolloutGroup(prompts[row["prompt"]], completions)
    numbers = (tuple(row[name]) for name in ("desirable", "reference", "weights"))
    return Preference(group, *numbers)


def _batches(
    preferences: Sequence[Preference], size: int, rng: random.Random
) -> Iterator[list[Preference]]:
    """Endless batches; each pass over the preferences has a new random order."""
    shuffled: list[Preference] = []
    while True:
        while len(shuffled) < size:
            shuffled += rng.sample(preferences, len(preferences))
        batch, shuffled = shuffled[:size], shuffled[size:]
        yield batch


Labelled = tuple[RolloutGroup, tuple[bool, ...]]
"""Completions of one prompt, and whether each is wanted."""


class NoPreferencesError(RuntimeError):
    """The completions of a round gave no preferences."""


def judged(
    scored: Sequence[ScoredGroup],
    config: RoundsConfig,
    paired: bool,
    accuracy_name: str,
    rng: random.Random,
) -> list[Labelled]:
    """The preferences of a round: pairs, or for KTO each prompt's labelled completions.

    Equal completions of a prompt count once. Completions without a valid reward are left out.

    Raises:
        NoPreferencesError: If the round has no preferences.
    """
    found: list[Labelled] = []
    for group in scored:
        rated = _distinct(group)
        if not paired:
            found += _labelled(group, rated, config, accuracy_name)
            continue
        pairs = (
            _best_with_worst(rated)
            if config.preferred_by == "reward"
            else _right_with_wrong(rated, accuracy_name, rng)
        )
        found += [
            (RolloutGroup(group.group.prompt, pair), PAIR)
            for pair in pairs[: config.pairs_per_prompt]
        ]
    if not found:
        raise NoPreferencesError(_nothing(scored, config, accuracy_name))
    return found


def _distinct(scored: ScoredGroup) -> list[tuple[Completion, Reward]]:
    valid = [
        (completion, reward)
        for completion, reward in zip(scored.group.completions, scored.rewards, strict=True)
        if reward.valid
    ]
    return list({c.token_ids.tobytes(): (c, r) for c, r in valid}.values())


def _right_with_wrong(
    rated: Iterable[tuple[Completion, Reward]], accuracy_name: str, rng: random.Random
) -> list[tuple[Completion, Completion]]:
    """All pairs of a right and a wrong completion, in random order.

    Only right completions with the highest reward are used, so that the format counts too.
    """
    right = [(c, r) for c, r in rated if is_right(r, accuracy_name)]
    best = max((_value(r) for _, r in right), default=None)
    winners = [c for c, r in right if r.value == best]
    losers = [c for c, r in rated if not is_right(r, accuracy_name)]
    pairs = list(product(winners, losers))
    rng.shuffle(pairs)
    return pairs


def _best_with_worst(
    rated: Iterable[tuple[Completion, Reward]],
) -> list[tuple[Completion, Completion]]:
    """Pairs of the best and the worst, the second best and second worst, while rewards differ."""
    ranked = sorted(rated, key=lambda both: -_value(both[1]))
    return [
        (best, worst)
        for (best, high), (worst, low) in zip(ranked, reversed(ranked), strict=True)
        if _value(high) > _value(low)
    ]


def _labelled(
    scored: ScoredGroup,
    rated: Sequence[tuple[Completion, Reward]],
    config: RoundsConfig,
    accuracy_name: str,
) -> list[Labelled]:
    """Labelled completions, desirable if right, or above the mean reward of the prompt."""
    if config.preferred_by == "reward":
        mean = sum(_value(r) for _, r in rated) / max(len(rated), 1)
        kept = [(c, _value(r) > mean) for c, r in rated if r.value != mean]
    else:
        kept = [(c, is_right(r, accuracy_name)) for c, r in rated]
    if not kept:
        return []
    group = RolloutGroup(scored.group.prompt, tuple(c for c, _ in kept))
    return [(group, tuple(wanted for _, wanted in kept))]


def _value(reward: Reward) -> float:
    assert reward.value is not None, "only valid rewards are compared"
    return reward.value


def _nothing(scored: Sequence[ScoredGroup], config: RoundsConfig, accuracy_name: str) -> str:
    rewards = [r for s in scored for r in s.rewards]
    if config.preferred_by == "reward":
        return f"no prompt of {len(scored)} has two completions of different reward"
    right = sum(is_right(r, accuracy_name) for r in rewards)
    return (
        f"no prompt of {len(scored)} has both a right and a wrong completion "
        f"({right} of {len(rewards)} completions are right by reward function '{accuracy_name}')"
    )
