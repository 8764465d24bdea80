"""A file of another project as flat keys, and which kind of configuration it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mmr1.config import Config
from mmr1_contrib.migrate.migration import Tree
from mmr1_contrib.migrate.shell import Script, read_script
from mmr1_contrib.migrate.source import Source, flattened

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")
FIELDS = "program_fields"
"""What a program declares, where its file is found near the script."""
PROGRAM = "\0program"
_OTHERS = {
    "swift": "ms-swift",
    "megatron": "ms-swift",
    "llamafactory-cli": "LLaMA-Factory",
    "xtuner": "XTuner",
    "train_async.py": "slime",
}
_SWITCHES = {
    "standalone",
    "multi_gpu",
    "no_python",
    "module",
    "m",
    "use_deepspeed",
    "use_fsdp",
    "no_wait",
}
"""Options of launchers that take no value."""
_OPTION = re.compile(r"--?[A-Za-z_][\w.-]*")


@dataclass(slots=True)
class Given:
    """The contents of a file and its overrides.

    Attributes:
        source: The kind of configuration.
        keys: Its keys, flat.
        folder: The folder that a script changes into before; empty if it does not.
        notes: Notes for the user about the reading.
    """

    source: Source
    keys: Tree
    folder: str = ""
    notes: list[str] = field(default_factory=list)


def read(
    path: Path, overrides: Sequence[str], sources: Sequence[Source], named: bool = False
) -> Given:
    """A YAML file, or a shell script that starts one of the projects.

    Args:
        path: The file.
        overrides: Overrides, as the project's command line has them.
        sources: The kinds of configuration that it may be.
        named: The user has said so, and did not leave it to the content.

    Raises:
        ValueError: If the file cannot be read, or is none of them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if path.suffix == ".py":
        raise ValueError(
            f"{path} is a program, whose settings are given where it is started: put the command "
            "that starts it (python, torchrun, accelerate launch …) into a .sh file and migrate "
            "that, or the YAML file of its --config"
        )
    if path.suffix in (".yaml", ".yml", ".json"):
        return _of_yaml(text, overrides, sources, named)
    return _of_script(path, text, overrides, sources, named)


def _of_yaml(text: str, overrides: Sequence[str], sources: Sequence[Source], named: bool) -> Given:
    tree = _yaml(text)
    if _is_ours(tree):
        raise ValueError(
            "this is a configuration of mmr1 already, and needs no migration; mmr1 COMMAND FILE "
            "--dry-run shows it with all defaults"
        )
    for source in sources:
        keys = with_arguments(tree, overrides, source)
        is_theirs = source.is_theirs(keys) and (source.sure or named)
        if is_theirs or (source.kind and len(sources) == 1):
            return Given(source, keys)
    kinds = [source.kind for source in sources if source.kind]
    if kinds and keys.keys() & set(sources[-1].renamed):
        raise ValueError(f"several trainers have these keys; add --from {', or '.join(kinds)}")
    raise ValueError(
        f"these are not keys of {_titles(sources)}; docs/migration.md has the tables of their keys"
    )


def _is_ours(tree: Mapping[str, Any]) -> bool:
    """True for a file with our sections alone, and the key that all our configurations have."""
    model = tree.get("model")
    return (
        isinstance(model, Mapping) and "path" in model and tree.keys() <= Config.model_fields.keys()
    )


def _of_script(
    path: Path, text: str, overrides: Sequence[str], sources: Sequence[Source], named: bool
) -> Given:
    script = read_script(text, str(path.resolve()))
    found = _runs_of(path, script, overrides, sources, named)
    if not found:  # perhaps it stands under a condition that only a run could tell
        script = read_script(text, str(path.resolve()), unknown_holds=True)
        found = _runs_of(path, script, overrides, sources, named)
    if not found:
        raise ValueError(_none_found(script.commands, sources, named))
    if len(found) > 1:
        all_titles = ", ".join(given.source.title for given in found)
        found[-1].notes.append(
            f"the script starts {len(found)} runs ({all_titles}); this is the last of them"
        )
    return found[-1]


def _runs_of(
    path: Path, script: Script, overrides: Sequence[str], sources: Sequence[Source], named: bool
) -> list[Given]:
    """The runs that a script starts, in their order."""
    found: list[Given] = []
    folders: list[str] = []
    for at, command in enumerate(script.commands):
        if command[0] == "cd":
            folders += command[1:2]
        rest = _torn_off(script.commands[at + 1 :])
        started = {
            source.kind or source.project: start
            for source in sources
            if (start := _start(command, source, named)) is not None
        }
        if not started:
            continue
        program = next(iter(started.values())).program
        declared = _declared(path, folders, program)
        readings = []
        for source in sources:
            if (start := started.get(source.kind or source.project)) is None:
                continue
            words = [*_of_start(path, start, source, declared), *start.arguments, *rest]
            keys = _of_command(path, words, overrides, source)
            folder = str(PurePosixPath(*folders)) if folders else ""
            readings.append(Given(source, keys, "" if "$" in folder else folder))
        given = next((g for g in readings if g.source.is_theirs(_seen(g.keys, declared))), None)
        if given is None and not (named or readings[0].source.sure):
            raise ValueError(_which(program, [g.source for g in readings]))
        given = given or readings[0]
        given.notes += script.notes_on([*command, *rest])
        if rest:
            given.notes.append(
                f"a comment or a missing backslash ends the command before {rest[0]}: the shell "
                "does not pass on what follows; it is read as if it did"
            )
        found.append(given)
    return found


def _which(program: str, sources: Sequence[Source]) -> str:
    names = dict.fromkeys(source.kind or source.project for source in sources)
    return (
        f"{program} is the program of several projects, which count and default differently; add "
        f"--from {', or '.join(names)}, or leave the script in its checkout, where the program is "
        "looked into"
    )


def _none_found(commands: Sequence[Sequence[str]], sources: Sequence[Source], named: bool) -> str:
    """The reason why no command is theirs; a known trainer has a separate sentence."""
    for command in commands:
        for word in command:
            if (name := word.rpartition("/")[2]) in _OTHERS:
                return f"it starts {_OTHERS[name]}, whose keys are not read here"
    projects = ", ".join(dict.fromkeys(source.project for source in sources))
    message = f"no program of {projects} that is known here is started"
    scripts = [w for c in commands for w in c if w.endswith(".py") and not re.search("^-|=", w)]
    if scripts and not named:
        return f"{message}; if {scripts[-1]} is of one of them, add --from {projects}"
    modules = [c[at + 1] for c in commands for at, word in enumerate(c[:-1]) if word == "-m"]
    if started := dict.fromkeys([*scripts, *modules]):
        return f"{message}; started are {', '.join(started)}"
    return message


def _titles(sources: Sequence[Source]) -> str:
    return ", ".join(source.title for source in sources)


@dataclass(frozen=True, slots=True)
class _Start:
    """The start of a program.

    Attributes:
        launcher: The words before it.
        program: Its path, or what its name is made of.
        arguments: The words after it.
    """

    launcher: Sequence[str]
    program: str
    arguments: Sequence[str]


def _start(command: Sequence[str], source: Source, named: bool) -> _Start | None:
    """The start of the source's program, if the command has it. A value of an option is none."""
    programs = (*source.program, *(source.if_named if named else ()))
    for at in range(len(command)):
        if at and command[at - 1].startswith("--") and not _is_switch(command[at - 1]):
            continue
        for program in programs:
            patterns = program.split()
            words = command[at : at + len(patterns)]
            if len(words) == len(patterns) and all(map(fnmatchcase, words, patterns)):
                return _Start(command[:at], words[-1], command[at + len(patterns) :])
    return None


def _is_switch(word: str) -> bool:
    """True for an option of a launcher that takes no value, or has it with it."""
    return word == "--" or "=" in word or word.lstrip("-").replace("-", "_") in _SWITCHES


def _of_start(path: Path, start: _Start, source: Source, declared: Mapping[str, str]) -> list[str]:
    """The start of the program as arguments of the program."""
    arguments = _processes(path, start.launcher) if "num_processes" in source.known else []
    if "program" in source.known:
        arguments.append(f"--program={declared.get(PROGRAM, start.program)}")
    return arguments


def _processes(path: Path, launcher: Sequence[str]) -> list[str]:
    """The number of processes that accelerate, torchrun or deepspeed start, as an argument.

    accelerate counts those of all machines, the others those of each.
    """
    start = next((at for at, word in enumerate(launcher) if word.startswith("-")), len(launcher))
    options = dict(_options(launcher[start:]))
    if isinstance(options.get("num_processes"), int):
        return [f"--num_processes={options['num_processes']}"]
    for name, machines in (("nproc_per_node", "nnodes"), ("num_gpus", "num_nodes")):
        each, nodes = options.get(name), options.get(machines, 1)
        if isinstance(each, int) and isinstance(nodes, int):
            return [f"--num_processes={each * nodes}"]
    if isinstance(file := options.get("config_file"), str):
        try:
            text = _beside(path, file).read_text(encoding="utf-8")
        except ValueError:  # it only says where the processes run
            return []
        return [f"--num_processes={_yaml(text).get('num_processes', 1)}"]
    return []


def _declared(script: Path, folders: Sequence[str], program: str) -> Mapping[str, str]:
    """The names that a program and its trainer declare, if its file is found near the script.

    It is looked for from the script's own folder upwards, below the folders that the script changes
    into, and below those of a package, as ``src/PACKAGE``. Nothing is run.
    """
    if not program.endswith(".py") or program.startswith("/"):
        return {}
    for folder in script.resolve().parents[:5]:
        inner = [folder, *(folder / name for name in folders if "$" not in name)]
        for root in [*inner, *sorted(folder.glob("src/*")), *sorted(folder.glob("*"))]:
            if (file := root / program).is_file():
                names = {PROGRAM: str(file)}
                for source in (file, file.parent / "trainer/grpo_trainer.py"):
                    if source.is_file():
                        names |= dict.fromkeys(_names_of(source), "")
                return names
    return {}


def _names_of(file: Path) -> set[str]:
    """Classes, imported names and annotated fields."""
    names: set[str] = set()
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return names
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.ImportFrom(module=module, names=imported):
                names |= {f"{module}.{alias.name}" for alias in imported}
                names |= {alias.name for alias in imported}
    return names


def _seen(keys: Tree, declared: Mapping[str, str]) -> Tree:
    """The keys, and what the program declares under ``program_fields``."""
    return {**keys, FIELDS: frozenset(declared)} if declared else keys


def _torn_off(commands: Sequence[Sequence[str]]) -> list[str]:
    """The words of the next commands that can only be arguments of the one before."""
    words: list[str] = []
    for command in commands:
        if not re.match(r"--\w|[+~]*[a-z_]\w*(\.\w+)+=", command[0]):
            break
        words += command
    return words


def _of_command(path: Path, words: Sequence[str], overrides: Sequence[str], source: Source) -> Tree:
    tree: Mapping[str, Any] = {}
    name = source.config_argument
    if name and (config := with_arguments({}, words, source).get(name)):
        tree = _yaml(_beside(path, str(config)).read_text(encoding="utf-8"))
    keys = with_arguments(tree, [*words, *overrides], source)
    keys.pop(name, None)
    return keys


def _beside(script: Path, name: str) -> Path:
    """A file that a script names relative to where it is started: a folder above it, or here."""
    for folder in (Path(), *script.resolve().parents):
        if (folder / name).is_file():
            return folder / name
    raise ValueError(
        f"{name}, which the script names, is neither here nor above it; run this where the script "
        "runs"
    )


def with_arguments(theirs: Mapping[str, Any], arguments: Sequence[str], source: Source) -> Tree:
    """A configuration of theirs with the arguments of a command line, flat.

    Raises:
        ValueError: An argument is not of the form that the project's command line has.
    """
    keys = flattened(_with_numbers(theirs), source.whole)
    changes = _overrides(arguments) if source.arguments == "hydra" else _options(arguments)
    known = set(source.known)
    for key, value in changes:
        if key.startswith("no_") and value is True and key not in known and key[3:] in known:
            keys[key[3:]] = False
        elif key.startswith("~"):
            keys.pop(key[1:], None)
        elif isinstance(value, dict) and key in source.whole:
            keys[key] = {**(keys.get(key) or {}), **value}
        else:
            keys.update(flattened({key: value}, source.whole))
    return keys


def _overrides(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """``a.b=value``, ``+a.b=value`` and ``~a.b`` of hydra; its own options stay text."""
    changes: list[tuple[str, Any]] = []
    options = iter(arguments)
    for argument in options:
        key, equals, text = argument.partition("=")
        if argument.startswith("--"):
            changes.append((key, text if equals else next(options, None)))
        elif argument.startswith("~"):
            changes.append((key, None))
        elif equals:
            changes.append((key.lstrip("+"), scalar(text)))
        elif argument.strip():
            raise ValueError(f"'{argument}' is not an override; write it as key=value")
    return changes


def _options(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """``--a value``, ``--a=value``, ``--a v1 v2`` and ``--a``; overrides as ``a=value`` too."""
    changes: list[tuple[str, Any]] = []
    values: list[Any] = []

    def close() -> None:
        if changes and values:
            changes[-1] = (changes[-1][0], values[0] if len(values) == 1 else list(values))
        values.clear()

    for argument in arguments:
        name, equals, text = argument.partition("=")
        if _OPTION.fullmatch(name) and not _NUMBER.fullmatch(argument):
            close()
            changes.append((name.lstrip("-").replace("-", "_"), scalar(text) if equals else True))
        elif equals and re.fullmatch(r"[A-Za-z_][\w.]*", name):
            close()
            changes.append((name, scalar(text)))
        elif not argument.strip():
            continue
        elif changes:
            values.append(scalar(argument.rstrip(",")))
        else:
            raise ValueError(f"'{argument}' follows no option; write it as --key value")
    close()
    return changes


def scalar(text: str) -> Any:
    """A text's value in YAML; ``1e-6`` is a number, and what is not YAML stays text."""
    if text == "-":
        return text  # which YAML takes for a list of nothing
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, dict) and value and not any(v is not None for v in value.values()):
        return text  # {name}, which stands for something
    return _with_numbers(value)


def _with_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_numbers(inner) for inner in value]
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _yaml(text: str) -> Mapping[str, Any]:
    """The mapping in a YAML text; ``${a.b}`` is looked up in it where it exists."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise ValueError("the configuration must be a mapping of keys to values")
    try:
        looked_up: Mapping[str, Any] = _looked_up(OmegaConf.create(tree), tree, "")
    except OmegaConfBaseException:  # not all that looks like an interpolation is one
        return tree
    return looked_up


def _looked_up(whole: Any, tree: Any, key: str) -> Any:
    if isinstance(tree, Mapping):
        return {
            n: _looked_up(whole, value, f"{key}.{n}" if key else n) for n, value in tree.items()
        }
    if not isinstance(tree, str) or "${" not in tree:
        return tree
    try:
        value = OmegaConf.select(whole, key)
    except OmegaConfBaseException:
        return tree
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
