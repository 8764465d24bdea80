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

from mmr1.config import Config, RewardsConfig
from mmr1.config.secrets import (
    MASK,
    REMEDY,
    find_references,
    masked_keys,
    publish,
    secret_keys,
)
from mmr1.config.section import Section
from mmr1.files import OPEN_MODE, atomic
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
        tree = _with_default_functions(tree, overrides)
        merged = OmegaConf.merge(tree, OmegaConf.from_dotlist(list(overrides)))
        values = OmegaConf.to_container(merged, resolve=True)
        references = find_references(OmegaConf.to_container(merged, resolve=False), values)
    except OmegaConfBaseException as error:
        raise ValueError(f"{path or 'overrides'}: {error}") from error
    config = _validate(values, "configuration" if path is None else str(path))
    config.keep_references(references)
    return config


def _with_default_functions(tree: Any, overrides: Sequence[str]) -> Any:
    """The default reward functions, where the file names none and an override changes one of them.

    The override ``rewards.functions.format.weight=0.2`` would otherwise leave ``format`` alone.
    """
    defaults = RewardsConfig().model_dump(mode="json")["functions"]
    changes_one = any(
        override.startswith(f"rewards.functions.{name}.")
        for override in overrides
        for name in defaults
    )
    if not changes_one or OmegaConf.select(tree, "rewards.functions") is not None:
        return tree
    return OmegaConf.merge({"rewards": {"functions": defaults}}, tree)


def read_written(path: Path) -> Config:
    """Read the ``config.yaml`` of a run, to look at it and not to run it.

    Credentials are what stands in their place: no variable of the environment is needed.

    Raises:
        ValueError: There is no such file, or it is no configuration.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: the configuration must be a mapping of keys to values")
    return _validate(values, str(path))


def refuse_masked(config: Config, path: Path) -> None:
    """Refuse a configuration whose credentials were masked when it was written.

    Raises:
        ValueError: Names the keys.
    """
    if masked := masked_keys(config.model_dump(mode="json")):
        raise ValueError(
            f"{path}: {', '.join(masked)} is masked ({MASK}): it was given in clear when this file "
            f"was written; {REMEDY}, or give it as {masked[0]}=..."
        )


def _validate(values: Any, source: str) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
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
            value = publish(problem["input"], path=problem["loc"])
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


def published(config: Config) -> dict[str, Any]:
    """The configuration as a tree that may be shown and stored: without credentials."""
    tree: dict[str, Any] = publish(config.model_dump(mode="json"), config.references)
    return tree


def dump_yaml(config: Config) -> str:
    """The resolved configuration as YAML, in the order of the tree, without credentials.

    A credential from the environment stays ``${oc.env:NAME}``. One given in clear becomes ``***``,
    and the first line says what to do.
    """
    tree = published(config)
    masked = masked_keys(tree)
    note = f"# {', '.join(masked)} was given in clear and is masked; {REMEDY}.\n" if masked else ""
    return note + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def write_yaml(path: Path, config: Config) -> None:
    """Write the configuration so that a crash leaves the file before or this one, never a part.

    Only the owner may read it if it has credentials or says where they are.
    """
    mode = 0o600 if secret_keys(published(config)) else OPEN_MODE
    with atomic(path, mode) as file:
        file.write(dump_yaml(config))
