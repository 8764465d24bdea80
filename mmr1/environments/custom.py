"""The environment that ``environment.type`` names: mmr1's own form, or a declared style."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from mmr1.config.environment import ENVIRONMENTS
from mmr1.environments.styles import (
    Candidate,
    SpokenEnvironment,
    StepResult,
    ToolClass,
    awaited,
    required,
    tool_styles,
)
from mmr1.registry import check_settings
from mmr1.types import Sample

_OWN = "mmr1: class: reset(self, sample), step(self, action) -> (observation, done, reward)"


class OwnEpisode:
    """One conversation with an object of mmr1's own form: ``reset(sample)``, ``step(action)``."""

    def __init__(self, environment: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._environment = environment(**options)

    def reset(self, sample: Sample, prompt: str) -> None:
        """Begin the conversation.

        Raises:
            ValueError: If the environment's ``reset`` returns something.
        """
        if awaited(self._environment.reset(sample)) is not None:
            raise ValueError(
                "reset returned something; the conversation begins with the record's own"
            )

    def step(self, action: str) -> StepResult:
        observation, done, reward = awaited(self._environment.step(action))
        return StepResult(observation, bool(done), reward)


def load_environment(spec: str, options: Mapping[str, Any]) -> SpokenEnvironment | ToolClass:
    """Load an environment.

    Args:
        spec: Name in ``environment.type``.
        options: Its settings.

    Raises:
        ValueError: If it cannot be imported, has no form that is known, or does not take the
            options.
    """
    return _load(spec, json.dumps(options, sort_keys=True))


@lru_cache(64)
def _load(spec: str, options: str) -> SpokenEnvironment | ToolClass:
    candidate = Candidate(spec, ENVIRONMENTS.load(spec), json.loads(options))
    try:
        environment = _recognise(candidate)
    except ValueError as error:
        raise ValueError(f"environment '{spec}': {error}") from error
    if inspect.isclass(environment.factory):
        check_settings("environment", spec, environment.factory, candidate.options)
    return environment


def _recognise(candidate: Candidate) -> SpokenEnvironment | ToolClass:
    if isinstance(candidate.found, Mapping):
        raise ValueError("it is a dictionary of environments; name one of them")
    for style in tool_styles():
        if (environment := style.environment(candidate)) is not None:
            return environment
    reset, step = candidate.parameters("reset"), candidate.parameters("step")
    if reset is not None and step is not None and len(required(step)) == 1:
        factory, options = candidate.found, candidate.options
        return SpokenEnvironment(factory, lambda: OwnEpisode(factory, options))
    missing = next((n for n, p in (("reset", reset), ("step", step)) if p is None), None)
    lacks = f"it has no method {missing}" if missing else "its parameters are those of no form"
    known = [_OWN, *(f"{s.name}: {line}" for s in tool_styles() for line in s.signatures)]
    raise ValueError(f"{lacks}; known are:\n" + "\n".join(f"  {line}" for line in known))
