"""Read and write configuration files.

OmegaConf reads the YAML file, so interpolations work.
The file lies over the preset, the command line over the file. Pydantic then checks the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from mmr1.config.algorithm import AlgorithmConfig
from mmr1.config.checks import problems_of, warnings_of
from mmr1.config.commands import (
    command_of,
    first_layer,
    ignored_keys,
    optional_sections,
    refuse_unread,
    with_learning_rate,
)
from mmr1.config.explain import explain
from mmr1.config.overrides import Entries, empty_keys, nested, read_overrides
from mmr1.config.presets import PARTS, with_preset
from mmr1.config.rewards import default_rewards
from mmr1.config.run_folder import in_its_folder
from mmr1.config.secrets import (
    MASK,
    REMEDY,
    find_references,
    masked_keys,
    redact,
    resolved_but_for_environment,
    secret_keys,
)
from mmr1.config.tree import Config
from mmr1.config.yaml_limits import one_line, read_mapping
from mmr1.files import OPEN_MODE, atomic
from mmr1.section import Section, Shape, shapes

Tree = dict[str, Any]


def overlay(
    low: Mapping[str, Any],
    high: Mapping[str, Any],
    section: type[Section],
    notes: list[str],
    path: str = "",
) -> Tree:
    """``high`` over ``low``.

    Args:
        low: Values of a section, written out by this function.
        high: Values of the same section; they may be short.
        section: Its class.
        notes: Gets a line for each key that a changed type drops.
        path: Where the section is, with a dot behind it.
    """
    out = section.below(low, high)
    known = shapes(section)
    for key, value in high.items():
        here = f"{path}{key}"
        shape = known.get(key)
        if shape is None:
            out[key] = _plain(out.get(key), value)
        elif shape.is_mapping:
            out[key] = _entries(out.get(key), value, shape, notes, here)
        else:
            out[key] = _one(out.get(key), value, shape, notes, here)
    return out


def _one(low: Any, value: Any, shape: Shape, notes: list[str], path: str) -> Any:
    high = shape.expanded(value)
    if not isinstance(high, Mapping):
        return high
    below = low if isinstance(low, Mapping) else {}
    before = shape.kind(below)
    now = shape.kind({**below, **high})
    if before != now:
        gone = [key for key in non_defaults(below, shape) if key not in high]
        if gone:
            notes.append(f"{path}: {now} in place of {before}; {', '.join(gone)} dropped")
        below = {}
    section = shape.section({**below, **high})
    return (
        {**below, **_plain({}, high)}
        if section is None
        else overlay(below, high, section, notes, f"{path}.")
    )


def non_defaults(values: Mapping[str, Any], shape: Shape) -> Tree:
    """The values of a section that are not its class's defaults, without the discriminator."""
    section = shape.section(values)
    fields = {} if section is None else section.model_fields
    return {
        key: value
        for key, value in values.items()
        if key not in ("type", "use") and (key not in fields or fields[key].default != value)
    }


def _entries(low: Any, high: Any, shape: Shape, notes: list[str], path: str) -> Any:
    if not isinstance(high, Mapping):
        return high
    kept = _kept(low, high)
    laid = {
        name: _one(_named(shape, name, kept.get(name)), value, shape, notes, f"{path}.{name}")
        for name, value in high.items()
    }
    return {**kept, **laid}


def _named(shape: Shape, name: str, value: Any) -> Any:
    """What an entry of a mapping is below: at the least, of the type that its name says."""
    return shape.entry(name, {} if value is None else value) if shape.by_type else value


def _kept(low: Any, high: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries that stay of a mapping whose keys are the user's own."""
    return low if isinstance(high, Entries) and isinstance(low, Mapping) else {}


def _plain(low: Any, high: Any) -> Any:
    """Lay a value over another; of a mapping, such as ``options``, dotted keys change entries."""
    if not isinstance(high, Mapping):
        return high
    kept = _kept(low, high)
    return {**kept, **{key: _plain(kept.get(key), value) for key, value in high.items()}}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and what its user should know.

    Attributes:
        config: The checked configuration.
        notes: Settings of the layers below that a changed type or preset dropped.
        warnings: Settings that run as they are written and do less than they seem to.
    """

    config: Config
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def load_config(path: Path | None, overrides: Sequence[str] = (), command: str = "train") -> Config:
    """Read a YAML file, apply ``key.path=value`` overrides and check every value.

    Raises:
        ValueError: Something is wrong. The message names the file and the key, and for an unknown
            key the most similar valid one.
    """
    return load(path, overrides, command).config


def load(path: Path | None, overrides: Sequence[str] = (), command: str = "train") -> Loaded:
    """Like :func:`load_config`, with what is to be said at the start.

    Raises:
        ValueError: If it is refused there.
    """
    source = "configuration" if path is None else str(path)
    layers = [] if path is None else [read_layer(path)]
    return _load(layers, overrides, command, source)


def command_in(path: Path) -> str:
    """The command that a configuration file is for, by its sections.

    Raises:
        ValueError: If the file is missing, or is not a mapping.
    """
    return command_of(read_layer(path))


def config_from(
    values: Mapping[str, Any], overrides: Sequence[str] = (), command: str = "train"
) -> Config:
    """A configuration from values in Python, read and checked as a file is.

    >>> config_from({"model": {"path": "m"}}, ["algorithm.loss=gspo"]).algorithm.loss.type
    'gspo'

    Raises:
        ValueError: If :func:`load_config` raises it.
    """
    return _load([dict(values)], overrides, command, "configuration").config


def load_layers(layers: Iterable[Path | Mapping[str, Any]], command: str = "train") -> Loaded:
    """Like :func:`load`, from YAML files and values in Python, each laid over those before it.

    The keys of the values may have dots: ``{"trainer.max_steps": 3}``.

    Raises:
        ValueError: If :func:`load_config` raises it.
    """
    layers = list(layers)
    source = ", ".join(str(layer) for layer in layers if isinstance(layer, Path))
    read = [read_layer(layer) if isinstance(layer, Path) else nested(layer) for layer in layers]
    return _load(read, (), command, source or "configuration")


def _load(files: list[Tree], overrides: Sequence[str], command: str, source: str) -> Loaded:
    notes: list[str] = []
    try:
        given = read_overrides(overrides)
        layers = [*files, nested(given)]
        tree = {**first_layer(command), **_with_default_rewards(layers, given)}
        for layer in layers:
            tree = _overlay(tree, layer, notes)
        merged = OmegaConf.create(tree)
        values = _container(merged, resolve=True)
        references = find_references(
            resolved_but_for_environment(_container(merged, resolve=False)), values
        )
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{source}: {one_line(error)}") from error
    optional = optional_sections()
    values = {k: v for k, v in values.items() if v is not None or k not in optional}
    values = with_learning_rate(values, command)
    config = _validate(values, source).for_command(command)
    refuse_unread(values, config, source)
    config.keep_references(references)
    if problems := problems_of(config):
        raise ValueError("\n".join(f"{source}: {problem}" for problem in problems))
    unread = [f"{key}: mmr1 {command} does not read it" for key in ignored_keys(given, command)]
    return Loaded(config, tuple(notes), (*unread, *warnings_of(config)))


def _overlay(tree: Tree, layer: Tree, notes: list[str]) -> Tree:
    """Lay one layer over the tree. One that names a preset first lays down all of that."""
    raw = dict(layer)
    algorithm = raw.get("algorithm")
    if isinstance(algorithm, str) and "${" not in algorithm:
        raw["algorithm"] = algorithm = {"name": algorithm}
    if not isinstance(algorithm, Mapping):
        return overlay(tree, raw, Config, notes)
    below = dict(tree.get("algorithm") or {})
    if algorithm.get("name") is not None:
        values = OmegaConf.create(_plain({}, raw))
        name = str(OmegaConf.select(values, "algorithm.name") or algorithm["name"])
        notes += _replaced(below, name)
        below = {key: value for key, value in below.items() if key not in PARTS} | {"name": name}
    raw["algorithm"] = {key: value for key, value in algorithm.items() if key != "name"}
    return overlay({**tree, "algorithm": with_preset(below)}, raw, Config, notes)


def _container(node: Any, resolve: bool) -> Tree:
    values = OmegaConf.to_container(node, resolve=resolve)
    assert isinstance(values, dict), "a configuration is a mapping"
    return {str(key): value for key, value in values.items()}


def _replaced(below: Mapping[str, Any], name: str) -> Iterator[str]:
    """The keys, besides a preset, that a preset in a higher layer replaces."""
    preset = with_preset({"name": below.get("name", "grpo")})
    for part in PARTS:
        values, own = below.get(part), preset.get(part)
        if part not in below or values == own:
            continue
        if not isinstance(values, Mapping):
            yield f"algorithm.{part}: that of {name}; {part}={values} dropped"
            continue
        of_preset = own if isinstance(own, Mapping) else {}
        set_here = non_defaults(values, shapes(AlgorithmConfig)[part])
        if gone := [key for key, value in set_here.items() if of_preset.get(key, ...) != value]:
            yield f"algorithm.{part}: that of {name}; {', '.join(gone)} dropped"


def _with_default_rewards(layers: Iterable[Tree], given: Mapping[str, Any]) -> Tree:
    """The default rewards, if no file names any and an override changes one.

    The override ``rewards.format.weight=0.2`` would otherwise leave ``format`` alone.
    """
    *files, _ = layers
    named = any(file.get("rewards") is not None for file in files)
    keys = [f"rewards.{name}" for name in default_rewards()]
    changes_one = any(key == own or key.startswith(f"{own}.") for key in given for own in keys)
    if named or not changes_one:
        return {}
    return {"rewards": {name: {"weight": each.weight} for name, each in default_rewards().items()}}


def read_written(path: Path) -> Config:
    """Read the ``config.yaml`` of a run for inspection, not to run it.

    Credentials are what stands in their place: no variable of the environment is needed.

    Raises:
        ValueError: If the file is missing, or is not a configuration.
    """
    text, _ = read_mapping(path)
    values = in_its_folder(path, yaml.safe_load(text) or {})
    return _validate(values, str(path)).for_command(command_of(values))


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
        raise ValueError("\n".join(explain(error, source))) from error


def read_layer(path: Path) -> Tree:
    """Read the values of a YAML file, as they are written.

    Raises:
        ValueError: If it is missing, is not YAML, or has a key without a value.
    """
    if not path.is_file():
        hint = "; a YAML file comes first, then KEY=VALUE" if "=" in str(path) else ""
        raise ValueError(f"{path}: no such configuration file{hint}")
    text, node = read_mapping(path)
    if empty := list(empty_keys(node)):
        raise ValueError(
            f"{path}: {', '.join(empty)}: no value is given; write null, or {{}} for the "
            "defaults of a section"
        )
    try:
        tree = OmegaConf.load(StringIO(text))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{path} is not valid YAML: {one_line(error)}") from error
    return in_its_folder(path, _container(tree, resolve=False))


def redacted(config: Config) -> dict[str, Any]:
    """The configuration as a tree that may be shown and stored: without credentials.

    It has the sections that its command reads, each with all of its keys, ``type`` first.
    """
    whole = redact(config.model_dump(mode="json"), config.references)
    return {key: _type_first(whole[key]) for key in config.sections}


def _type_first(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    keys = sorted(tree, key=lambda key: key != "type")
    return {key: _type_first(tree[key]) for key in keys}


def dump_yaml(config: Config) -> str:
    """The resolved configuration as YAML, in the order of the tree, without credentials.

    A credential from the environment stays ``${oc.env:NAME}``. One given in clear becomes ``***``,
    and the first line says what to do.
    """
    tree = redacted(config)
    masked = masked_keys(tree)
    note = f"# {', '.join(masked)} was given in clear and is masked; {REMEDY}.\n" if masked else ""
    return note + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def write_yaml(path: Path, config: Config) -> None:
    """Write the configuration so that a crash leaves the file before or this one, never a part.

    Only the owner may read it if it has credentials or says where they are.
    """
    mode = 0o600 if secret_keys(redacted(config)) else OPEN_MODE
    with atomic(path, mode) as file:
        file.write(dump_yaml(config))
