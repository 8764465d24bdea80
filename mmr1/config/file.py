"""Read and write configuration files.

OmegaConf reads the YAML file and the ``key.path=value`` overrides, so interpolations work. Pydantic
then checks the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from mmr1.config import Config
from mmr1.config.section import Section
from mmr1.registry import suggest


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, apply ``key.path=value`` overrides and check every value.

    Raises:
        ValueError: Something is wrong. The message names the file and the key, and for an unknown
            key the most similar valid one.
    """
    tree = OmegaConf.create({})
    if path is not None:
        if not path.is_file():
            raise ValueError(f"{path}: no such configuration file")
        tree = _read_yaml(path)
    for override in overrides:
        key, separator, _ = override.partition("=")
        if not separator or not key:
            raise ValueError(f"override '{override}' is not of the form key.path=value")
    try:
        merged = OmegaConf.merge(tree, OmegaConf.from_dotlist(list(overrides)))
        values = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(f"{path or 'overrides'}: {error}") from error
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        source = str(path) if path is not None else "configuration"
        raise ValueError("\n".join(_explain(error, source))) from error


def _read_yaml(path: Path) -> Any:
    try:
        tree = OmegaConf.load(path)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not OmegaConf.is_dict(tree):
        raise ValueError(f"{path}: the configuration must be a mapping of keys to values")
    return tree


def _explain(error: ValidationError, source: str) -> Iterable[str]:
    """One line per problem: the file, the key, what is wrong and how to fix it."""
    for problem in error.errors():
        key = ".".join(str(name) for name in problem["loc"])
        if problem["type"] == "extra_forbidden":
            valid = _sibling_keys(problem["loc"])
            near = suggest(str(problem["loc"][-1]), valid)
            hint = near or f"; valid keys here: {', '.join(valid)}"
            yield f"{source}: unknown key '{key}'{hint}"
        elif problem["type"] == "missing":
            yield f"{source}: '{key}' is missing; set it in the file or as {key}=..."
        else:
            message = problem["msg"].removeprefix("Value error, ")
            value = problem["input"]
            shown = "" if isinstance(value, dict) else f" (it is {value!r})"
            yield f"{source}: '{key}': {message}{shown}" if key else f"{source}: {message}"


def _sibling_keys(location: tuple[int | str, ...]) -> list[str]:
    """The valid keys of the section that holds the unknown key."""
    section: Any = Config
    for name in location[:-1]:
        field = getattr(section, "model_fields", {}).get(name)
        if field is None:  # an entry of a mapping, such as rewards.functions.NAME
            continue
        section = _section_of(field.annotation)
    return sorted(getattr(section, "model_fields", {}))


def _section_of(annotation: Any) -> Any:
    """The Section in an annotation such as ``dict[str, RewardFunctionConfig]`` or ``X | None``."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    inner = [_section_of(argument) for argument in getattr(annotation, "__args__", ())]
    return next((section for section in inner if section is not None), None)


def dump_yaml(config: Section) -> str:
    """The resolved configuration as YAML, in the order of the tree."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
