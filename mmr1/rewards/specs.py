"""Read a ``SPEC`` of the command line: a name, with options, a plugin, a URL or a YAML file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from mmr1.config import Config, RewardsConfig
from mmr1.config.explain import explain
from mmr1.rewards.http.addresses import is_url

_WITH_OPTIONS = re.compile(r"(?P<use>.+?):(?P<options>[A-Za-z_]\w*=.*)", re.DOTALL)
_FUNCTION_KEYS = ("call", "sandbox", "timeout_s")


def read_spec(spec: str, **overrides: Any) -> RewardsConfig:
    """The section ``rewards`` that a SPEC describes.

    Args:
        spec: ``math``, ``iou:space=resized,threshold=0.5``, ``my.py:reward:bonus=2``,
            ``http://host:port/get_reward`` or ``composite.yaml``, which holds ``functions`` as the
            section ``rewards`` of a run's configuration does.
        overrides: Keys of ``RewardsConfig`` that win over the file's; None changes nothing.

    Raises:
        ValueError: The file cannot be read, or is not a rewards section.
    """
    section = _read_file(Path(spec)) if spec.endswith((".yaml", ".yml")) else _one_function(spec)
    section.update({k: v for k, v in overrides.items() if v is not None})
    try:
        return Config.model_validate({"model": {"path": spec}, "rewards": section}).rewards
    except ValidationError as error:
        raise ValueError("\n".join(explain(error, spec))) from error


def _one_function(spec: str) -> dict[str, Any]:
    match = None if is_url(spec) else _WITH_OPTIONS.fullmatch(spec)
    use, options = (match["use"], _options(match["options"], spec)) if match else (spec, {})
    function_keys = {key: options.pop(key) for key in _FUNCTION_KEYS if key in options}
    name = "remote" if is_url(use) else use.rpartition(":")[2].rpartition(".")[2] or use
    return {"functions": {name: {"use": use, "options": options, **function_keys}}}


def _options(text: str, spec: str) -> dict[str, Any]:
    """``a=1,b=[2,3]`` as a mapping. Values are YAML; only a comma before ``name=`` separates."""
    options = {}
    for pair in re.split(r",(?=[A-Za-z_]\w*=)", text):
        name, _, value = pair.partition("=")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"{spec}: the value of {name} cannot be read: {value}") from error
    return options


def _read_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a composite is a mapping with 'functions'")
    section = content.get("rewards", content)
    if not isinstance(section, dict) or "functions" not in section:
        raise ValueError(f"{path}: there are no 'functions', nor a 'rewards' section with them")
    return {str(key): value for key, value in section.items()}
