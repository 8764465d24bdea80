"""OpenRLHF's ``agent_func.py``: ``AgentInstance``, its ``AgentExecutor``, or a function ``step``.

What they answer has the chat template's own tokens in its text, and is fed to the policy as it is.
https://github.com/OpenRLHF/OpenRLHF: openrlhf/utils/agent.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mmr1.environments.forms.own import StepResult, awaited
from mmr1.types import Sample

_BASES = ("openrlhf.utils.agent", "mmr1.environments.forms.stand_ins")


def instance_class(executor: Any) -> Any:
    """The ``AgentInstance`` of an ``AgentExecutor``.

    Raises:
        ValueError: It runs conversations in a way of its own.
    """
    owner = next(c for c in executor.__mro__ if "execute" in vars(c))
    if owner.__module__ not in _BASES:
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
            "and name its reward_func in rewards.functions"
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


def is_step(function: Any) -> bool:
    """True for a module's ``step``."""
    names = set(inspect.signature(function).parameters)
    return inspect.isfunction(function) and {"observation", "action", "label"} <= names


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
