"""Read a ``SPEC`` of the command line: a name with settings, a file, a URL or a YAML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mmr1.config.explain import explain
from mmr1.config.file import read_layer
from mmr1.config.tree import Config
from mmr1.rewards.kind import RewardConfig

_WITH_SETTINGS = re.compile(r"(?P<type>.+?):(?P<settings>[A-Za-z_]\w*=.*)", re.DOTALL)


def read_spec(spec: str, **scoring: Any) -> Config:
    """Return a configuration with the rewards that a SPEC describes.

    Args:
        spec: ``math``, ``iou:space=resized,threshold=0.5``, ``my.py:reward:bonus=2``,
            ``http://host:port/get_reward`` or ``composite.yaml``, which holds ``rewards``, and
            perhaps ``scoring``, as a run's configuration does.
        scoring: Keys of ``scoring`` that win over the file's; None changes nothing.

    Raises:
        ValueError: The file cannot be read, or its rewards are wrong.
    """
    values = _read_file(Path(spec)) if spec.endswith((".yaml", ".yml")) else _one(spec)
    given = {key: value for key, value in scoring.items() if value is not None}
    return _checked({**values, "scoring": {**(values.get("scoring") or {}), **given}}, spec)


def read_rewards(values: Mapping[str, Any]) -> dict[str, RewardConfig]:
    """Return rewards by name, from their keys as a file has them.

    >>> read_rewards({"near": {"type": "iou", "threshold": 0.7}})["near"].threshold
    0.7

    Raises:
        ValueError: A key is wrong.
    """
    return _checked({"rewards": dict(values)}, "rewards").rewards


def _checked(values: Mapping[str, Any], source: str) -> Config:
    try:
        return Config.model_validate({"model": {"path": source}, **values})
    except ValidationError as error:
        raise ValueError("\n".join(explain(error, source))) from error


def _one(spec: str) -> dict[str, Any]:
    if spec.startswith(("http://", "https://")):
        return {"rewards": {"remote": {"type": "remote", "url": spec}}}
    match = _WITH_SETTINGS.fullmatch(spec)
    kind, settings = (match["type"], _settings(match["settings"], spec)) if match else (spec, {})
    name = kind.rpartition(":")[2].rpartition(".")[2] or kind
    return {"rewards": {name: {"type": kind, **settings}}}


def _settings(text: str, spec: str) -> dict[str, Any]:
    """``a=1,b=[2,3]`` as a mapping. Values are YAML; only a comma before ``name=`` separates."""
    settings = {}
    for pair in re.split(r",(?=[A-Za-z_]\w*=)", text):
        name, _, value = pair.partition("=")
        try:
            settings[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"{spec}: the value of {name} cannot be read: {value}") from error
    return settings


def _read_file(path: Path) -> dict[str, Any]:
    content = read_layer(path)
    if not isinstance(content.get("rewards"), dict):
        raise ValueError(f"{path}: there is no section 'rewards'")
    return {key: content[key] for key in ("rewards", "scoring") if key in content}
