"""Rounds of sampling, scoring and learning from preferences, and where a run stands in them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from mmr1.config import Config, RoundsConfig
from mmr1.data.loader import SampleLoader
from mmr1.rewards.composite import reward_stats
from mmr1.rollout.engine import RolloutEngine, request_seed, requests_for
from mmr1.trainer.distributed.ray_policy import RayLearner
from mmr1.trainer.inputs import Inputs
from mmr1.trainer.models.learner import PolicyLearner
from mmr1.trainer.offline.dpo import Preference, preferences_of, with_unrelated
from mmr1.trainer.offline.judged import NoPreferencesError, judged
from mmr1.trainer.offline.preference_losses import balanced
from mmr1.trainer.runs.step import PhaseTimer, Step
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.validation.evaluate import accuracy_function
from mmr1.types import Completion, Prompt, RolloutGroup, ScoredGroup, StepStats


@dataclass
class Rounds:
    """``dpo.rounds.count`` rounds of ``trainer.max_steps`` steps in all.

    A round samples with the policy of its start, which is also its reference. A checkpoint holds
    what the round learns from, so a run resumes in its middle. The loss is of the model itself: its
    log-probs are those at temperature 1, whatever the rollout's.
    """

    config: Config
    inputs: Inputs
    engine: RolloutEngine
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
        assert self.config.dpo.rounds is not None, "else nothing is sampled"
        return self.config.dpo.rounds

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
            kind = "pairs" if self.config.dpo.loss.paired else "labelled_prompts"
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
        """Sample, score and judge; keeps what the round learns from."""
        config = self.config
        if number > 1:
            self.engine.load_weights(self.learner.weights(), number - 1)
        self._draw()
        with timer("rollout"):
            requests = requests_for(self._prompts, config.rollout.n, config.seed, number)
            groups = self.engine.generate(requests, config.rollout.sampling)
        with timer("reward"):
            scored = self.reward_manager.score(groups)
        rng = random.Random(request_seed(config.seed, number, "pairs"))
        accuracy_name = accuracy_function(config.rewards, config.eval.accuracy_function)
        try:
            labelled = judged(scored, self.rounds, config.dpo.loss.paired, accuracy_name, rng)
        except NoPreferencesError as error:
            raise NoPreferencesError(
                f"round {number}: {error}: begin with supervised training, choose other data, or "
                "raise rollout.n, dpo.rounds.prompts or the temperature"
            ) from None
        own = [group for group, _ in labelled]
        if not config.dpo.loss.paired:
            own = with_unrelated(own)
        with timer("reference"):
            desirable = [wanted for _, wanted in labelled]
            self._preferences = preferences_of(
                own, desirable, self.learner.by_token, config.dpo.loss
            )
        if config.dpo.balances_labels:
            weights = balanced(desirable)
            self._preferences = [
                replace(p, weights=w) for p, w in zip(self._preferences, weights, strict=True)
            ]
        return scored

    def _draw(self) -> None:
        """The prompts of the next round."""
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
    """Learning needs the tokens alone: text and log-probs are left empty."""
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
