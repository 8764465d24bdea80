"""Find the form of an environment by its signature."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

from mmr1.environments.forms.openrlhf import AgentEpisode, StepEpisode, instance_class, is_step
from mmr1.environments.forms.own import OwnEpisode, StepResult
from mmr1.environments.forms.trl import TrlEpisode, tools_of
from mmr1.registry import Registry, check_options, import_file
from mmr1.types import Sample

PLUGINS = Registry("environment", {}, group="mmr1.environments", attribute="Class")
SIGNATURES = """\
  mmr1       class: reset(self, sample), step(self, action) -> (observation, done, reward)
  TRL        class: reset(self, **columns), and a public method for each tool
  OpenRLHF   class AgentInstance: reset(self, states), step(self, states) -> dict; its
             AgentExecutor; or step(observation, action, label) -> dict"""

Form = Literal["mmr1", "TRL", "OpenRLHF class", "OpenRLHF step"]
_STATES = ("states", "state_dict")


class SpokenEpisode(Protocol):
    """One conversation with an environment that reads the text of a turn."""

    def reset(self, sample: Sample, prompt: str) -> None: ...

    def step(self, action: str) -> StepResult: ...


def load(spec: str, options: Mapping[str, Any]) -> tuple[Any, Form]:
    """Load the object behind a name, and its form.

    Args:
        options: That it is made with.

    Raises:
        ValueError: It cannot be imported, or has no form that is known.
    """
    return _load(spec, json.dumps(options, sort_keys=True))


@lru_cache(64)
def _load(spec: str, options: str) -> tuple[Any, Form]:
    found = PLUGINS.load(spec)
    try:
        if inspect.isclass(found) and callable(getattr(found, "execute", None)):
            found = instance_class(found)
        form = form_of(found, json.loads(options))
    except ValueError as error:
        raise ValueError(f"environment '{spec}': {error}") from error
    if inspect.isclass(found):
        check_options("environment", spec, found, json.loads(options))
    return found, form


def form_of(found: Any, options: Mapping[str, Any]) -> Form:
    """The form of a class, or of a function that makes an object with these options.

    Raises:
        ValueError: It has none that is known.
    """
    if isinstance(found, Mapping):
        raise ValueError("it is a dictionary of environments; name one of them")
    if is_step(found):
        return "OpenRLHF step"
    shown = found if inspect.isclass(found) else _instance(found, options)
    reset, step = (_parameters(getattr(shown, name, None)) for name in ("reset", "step"))
    if step is not None and next(iter(step), "") in _STATES:
        return "OpenRLHF class"
    if reset is not None and _takes_all(reset) and not _positional(reset):
        return "TRL"
    if reset is not None and _takes_all(reset) and step is None:
        return "TRL"
    if reset is not None and step is not None and len(_positional(step)) == 1:
        return "mmr1"
    missing = next((n for n, p in (("reset", reset), ("step", step)) if p is None), None)
    lacks = f"it has no method {missing}" if missing else "its parameters are those of no form"
    raise ValueError(f"{lacks}; known are:\n{SIGNATURES}")


def spoken_episode(spec: str, options: Mapping[str, Any]) -> SpokenEpisode:
    """A conversation with an environment that reads the text of a turn."""
    found, form = load(spec, options)
    if form == "OpenRLHF step":
        return StepEpisode(_fresh(spec, found), options)
    return (AgentEpisode if form == "OpenRLHF class" else OwnEpisode)(found, options)


def trl_episode(spec: str, options: Mapping[str, Any]) -> TrlEpisode:
    return TrlEpisode(load(spec, options)[0], options)


def trl_tools(spec: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The tools of an environment by name; none unless it has TRL's form."""
    found, form = load(spec, options)
    return tools_of(found, options) if form == "TRL" else {}


def _instance(factory: Any, options: Mapping[str, Any]) -> Any:
    """The object of a factory, for inspection."""
    try:
        return factory(**options)
    except TypeError as error:
        given = f"environment.options ({', '.join(options)})" if options else "no arguments"
        raise ValueError(
            f"it is not a class, and cannot be called with {given}: {error}"
        ) from error


def _fresh(spec: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a module that is imported anew, if it is in a file."""
    file, _, name = spec.rpartition(":")
    return getattr(import_file(Path(file).expanduser()), name) if file.endswith(".py") else function


def _parameters(method: Any) -> dict[str, inspect.Parameter] | None:
    """The parameters of a method, without ``self``."""
    if not callable(method):
        return None
    parameters = dict(inspect.signature(method).parameters)
    parameters.pop("self", None)
    return parameters


def _takes_all(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _positional(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """The required positional parameters."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [n for n, p in parameters.items() if p.kind in kinds and p.default is p.empty]
