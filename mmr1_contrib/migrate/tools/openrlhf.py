"""OpenRLHF's ``agent_func.py``: ``AgentInstance``, its ``AgentExecutor``, or a function ``step``.

What they answer has the chat template's own tokens in its text, and is fed to the policy as it is.
https://github.com/OpenRLHF/OpenRLHF: openrlhf/utils/agent.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmr1.environments.styles import (
    Candidate,
    SpokenEnvironment,
    StepResult,
    ToolStyle,
    awaited,
)
from mmr1.registry import import_file
from mmr1.types import Sample

_AGENT = "openrlhf.utils.agent"
_STATES = ("states", "state_dict")
_STEP = {"observation", "action", "label"}


def environment_of(candidate: Candidate) -> SpokenEnvironment | None:
    """Return an ``AgentInstance``, that of an ``AgentExecutor``, or a ``step``; None for others.

    Raises:
        ValueError: If an executor runs conversations in a way of its own.
    """
    found, options = candidate.found, candidate.options
    if inspect.isfunction(found) and set(inspect.signature(found).parameters) >= _STEP:
        return SpokenEnvironment(found, lambda: StepEpisode(_fresh(candidate), options))
    executes = inspect.isclass(found) and callable(getattr(found, "execute", None))
    if executes and not hasattr(found, "reset"):  # with it, execute may be a tool of TRL's form
        found = _instance_class(found)
        candidate = Candidate(candidate.spec, found, options)
    step = candidate.parameters("step")
    if not step or step[0].name not in _STATES:
        return None
    return SpokenEnvironment(found, lambda: AgentEpisode(found, options))


def _fresh(candidate: Candidate) -> Callable[..., Any]:
    """Return the function of a module that is imported anew, if it is in a file."""
    file, _, name = candidate.spec.rpartition(":")
    in_file = file.endswith(".py")
    return getattr(import_file(Path(file).expanduser()), name) if in_file else candidate.found


def _instance_class(executor: Any) -> Any:
    """Return the ``AgentInstance`` of an ``AgentExecutor``."""
    owner = next(c for c in executor.__mro__ if "execute" in vars(c))
    if owner.__module__ not in (_AGENT, __name__):
        raise ValueError(
            "its execute samples turns itself, which the engine does here; name the class of the "
            "environment in its place, such as agent_func.py:AgentInstance"
        )
    try:
        found = getattr(executor(), "agent_instance_cls", None)
    except TypeError as error:
        raise ValueError(f"it cannot be made ({error}); name the class AgentInstance") from error
    if found is None:
        raise ValueError(
            "it has no AgentInstance, so its conversations are of one turn; leave environment out, "
            "and name its reward_func in rewards"
        )
    return found


class AgentEpisode:
    """One conversation with an ``AgentInstance``: ``reset(states)``, ``step(states)``.

    ``scores`` and ``extra_logs`` are not read.
    """

    def __init__(self, agent: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._agent = agent(**options)
        self._observation = ""
        self._label: Any = None

    def reset(self, sample: Sample, prompt: str) -> None:
        """Raises ValueError if it changes the prompt."""
        self._observation, self._label = prompt, sample.answer
        states = {"observation": prompt, "label": sample.answer}
        begun = awaited(self._agent.reset(states)) if hasattr(self._agent, "reset") else states
        if not isinstance(begun, Mapping) or begun.get("observation") != prompt:
            raise ValueError(
                "reset changed the observation; the conversation begins with the record's own "
                "prompt: write it into the record"
            )

    def step(self, action: str) -> StepResult:
        states = {
            "observation_text": self._observation,
            "action_text": action,
            "label": self._label,
            "sampling_params": None,
        }
        answer = _answer(awaited(self._agent.step(states)))
        feedback = _text(answer, "environment_feedback")
        self._observation += action + feedback
        return _step_result(answer, feedback)


class StepEpisode:
    """One conversation with a module's ``step(observation, action, label)``.

    ``next_observation`` is the conversation with what the environment added to it. The module is
    its state, so each conversation has one of its own.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._function, self._options = function, options
        self._observation = ""
        self._label: Any = None

    def reset(self, sample: Sample, prompt: str) -> None:
        self._observation, self._label = prompt, sample.answer

    def step(self, action: str) -> StepResult:
        called = self._function(self._observation, action, self._label, **self._options)
        answer = _answer(awaited(called))
        whole, before = _text(answer, "next_observation"), self._observation + action
        if not whole.startswith(before):
            raise ValueError("next_observation does not begin with the observation and the action")
        self._observation = whole
        return _step_result(answer, whole.removeprefix(before))


def _answer(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, Mapping) or not {"rewards", "done"} <= set(answer):
        raise ValueError("step returned no dictionary with 'rewards' and 'done'")
    if answer.get("sampling_params") is not None:
        raise ValueError("step returned sampling_params; those of the run are used, return None")
    return answer


def _text(answer: Mapping[str, Any], key: str) -> str:
    if not isinstance(answer.get(key), str):
        raise ValueError(f"step returned no text '{key}'")
    return str(answer[key])


def _step_result(answer: Mapping[str, Any], feedback: str) -> StepResult:
    reward = answer["rewards"]
    reward = reward.item() if hasattr(reward, "item") else reward
    pictures = answer.get("environment_images") or []
    return StepResult([feedback, *pictures], bool(answer["done"]), reward, verbatim=True)


# Stand-ins for the base classes that agent files import. They give a name to inherit from.


class AgentInstanceBase:
    """OpenRLHF's base of an environment."""

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        return states


class AgentExecutorBase:
    """OpenRLHF's base class that runs a conversation."""

    async def execute(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError


class MultiTurnAgentExecutor(AgentExecutorBase):
    """OpenRLHF's executor, which holds the class of the environment."""

    def __init__(self, agent_instance_cls: type) -> None:
        self.agent_instance_cls = agent_instance_cls


class SingleTurnAgentExecutor(AgentExecutorBase):
    """OpenRLHF's executor without an environment."""


_BASES = (
    AgentInstanceBase,
    AgentExecutorBase,
    MultiTurnAgentExecutor,
    SingleTurnAgentExecutor,
)
STYLE = ToolStyle(
    "OpenRLHF",
    (
        "class AgentInstance: reset(self, states), step(self, states) -> dict; its AgentExecutor",
        "step(observation, action, label) -> dict",
    ),
    environment_of,
    modules={
        "openrlhf": {},
        "openrlhf.utils": {},
        _AGENT: {base.__name__: base for base in _BASES},
    },
)
