"""The environment that a configuration names: tools, or a class that reads the text of a turn.

Each conversation with such a class has an object of it, in one of the environment's processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

from mmr1.boxes import SpaceName
from mmr1.config import EnvironmentConfig, OwnEnvironment
from mmr1.environments.environment import Action, Answer, Ending, Environment, Episode, Opening
from mmr1.environments.schemas import described
from mmr1.environments.tools import ToolEnvironment, read_parts
from mmr1.environments.workers import REPLACED, ToolWorkers, tool_workers
from mmr1.rewards.item import Job
from mmr1.types import Message, Sample, Status, TextPart


def build_environment(
    config: EnvironmentConfig,
    timeout_s: float = math.inf,
    model_space: SpaceName | None = None,
) -> Environment:
    """Start the processes of tools, or of a custom class.

    Args:
        config: The section ``environment``.
        timeout_s: Seconds that the tools of one conversation may take together.
        model_space: Space of the model's boxes, for ``environment.boxes: model``.

    Raises:
        ValueError: A tool or the class cannot be loaded.
    """
    if not isinstance(config, OwnEnvironment) or described(config):
        return ToolEnvironment(config, timeout_s, model_space)
    fields = type(config).model_fields
    for key in ("parser", "max_calls", "boxes"):
        if (value := getattr(config, key)) != fields[key].default:
            raise ValueError(
                f"environment.{key}={value}: {config.type} reads the text of a turn itself and has "
                f"no described tools; leave environment.{key} out"
            )
    return PlayedEnvironment(config)


class PlayedEnvironment:
    """The environment of a custom class; an ``Environment``.

    Raises:
        ValueError: The class cannot be loaded, or has no form that is known.
    """

    tools: Sequence[str] = ()

    def __init__(self, config: OwnEnvironment) -> None:
        self._config = config
        job = Job("mmr1.environments.worker:check_environment", (config.type, config.settings))
        self._workers = tool_workers(config, [config.type], job)
        self._numbers = count()
        self._workers.start()

    def episode(self, sample: Sample) -> Episode:
        return _OwnEpisode(self._config, self._workers, next(self._numbers), sample)

    def close(self) -> None:
        self._workers.close()


class _OwnEpisode:
    """A conversation, in one process of the environment."""

    def __init__(
        self, config: OwnEnvironment, workers: ToolWorkers, number: int, sample: Sample
    ) -> None:
        self._config, self._workers, self._number = config, workers, number
        self._sample = sample

    def begin(self, prompt: str) -> Opening:
        config = self._config
        arguments = (self._number, config.type, config.settings, self._sample, prompt)
        answer = self._workers.call("reset", *arguments, worker=self._number)
        if answer.error is not None:
            return Opening(failure=(answer.status, f"reset: {answer.error}"))
        return Opening()

    def step(self, action: Action) -> Answer:
        limits = (self._config.max_pixels, self._config.max_characters)
        answer = self._workers.call("step", self._number, action.text, *limits, worker=self._number)
        if answer.error is not None:
            return Answer(failure=(answer.status, f"step: {answer.error}"))
        if not answer.value:
            return Answer(failure=(Status.KILLED, f"step: {REPLACED}"))
        try:
            parts = read_parts(answer.value["parts"], self._config)
            done, reward = answer.value["done"], answer.value["reward"]
            number = None if reward is None else float(reward)
            verbatim = bool(answer.value["verbatim"])
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            return Answer(failure=(Status.ERROR, f"step: {error}"))
        if done or action.last:
            return Answer(cut=not done, reward=number)
        message = Message("tool", parts or (TextPart(""),))
        return Answer((message,), reward=number, verbatim=verbatim)

    def end(self) -> Ending:
        self._workers.call("forget", self._number, worker=self._number)
        return Ending()
