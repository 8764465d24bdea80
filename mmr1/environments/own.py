"""A class of one's own as an environment: ``reset(sample)``, ``step(action)``.

Each conversation has an object of the class, which lives in one of the environment's processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from mmr1.config import EnvironmentConfig
from mmr1.environments.environment import Action, Answer, Episode
from mmr1.environments.tools import read_parts
from mmr1.environments.workers import ToolWorkers
from mmr1.rewards.item import Job
from mmr1.types import Message, Sample, Status, TextPart


class OwnEnvironment:
    """An ``Environment``.

    Raises:
        ValueError: The class cannot be loaded, or has no ``reset`` or ``step``.
    """

    tools: Sequence[str] = ()

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        job = Job("mmr1.environments.worker:check_environment", (config.use,))
        self._workers = ToolWorkers(config, [config.use], prepare=job)
        self._numbers = count()
        self._workers.start()

    def episode(self, sample: Sample) -> Episode:
        return _OwnEpisode(self._config, self._workers, next(self._numbers), sample)

    def close(self) -> None:
        self._workers.close()


class _OwnEpisode:
    """A conversation, in the process of its number."""

    def __init__(
        self, config: EnvironmentConfig, workers: ToolWorkers, number: int, sample: Sample
    ) -> None:
        self._config, self._workers, self._number = config, workers, number
        self._sample = sample

    def begin(self) -> Answer:
        config = self._config
        arguments = (self._number, config.use, config.options, self._sample)
        answer = self._workers.call("reset", *arguments, worker=self._number)
        if answer.error is not None:
            return Answer(failure=(answer.status, f"reset: {answer.error}"))
        return Answer()

    def step(self, action: Action) -> Answer:
        limits = (self._config.max_pixels, self._config.max_characters)
        answer = self._workers.call("step", self._number, action.text, *limits, worker=self._number)
        if answer.error is not None:
            return Answer(failure=(answer.status, f"step: {answer.error}"))
        if not answer.value:
            told = "its process was replaced, after another conversation had brought it down"
            return Answer(failure=(Status.KILLED, f"step: {told}"))
        try:
            parts = read_parts(answer.value["parts"], self._config)
            done, reward = answer.value["done"], answer.value["reward"]
            number = None if reward is None else float(reward)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            return Answer(failure=(Status.ERROR, f"step: {error}"))
        if done or action.last:
            return Answer(cut=not done, reward=number)
        return Answer((Message("tool", parts or (TextPart(""),)),), reward=number)

    def end(self) -> None:
        self._workers.call("forget", self._number, worker=self._number)
