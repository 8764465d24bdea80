"""``mmr1.Trainer`` and ``mmr1.evaluate``: the commands for Python. No torch until a run starts.

What was given in Python is written as files: a run reads, repeats and resumes these as any others.

OUTPUT/given/DIGEST/NAME.jsonl  rows, their pictures in base64
OUTPUT/given/DIGEST/NAME        a ``datasets.Dataset``
OUTPUT/given/model              a model and its processor
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mmr1 import start
from mmr1.config import Config
from mmr1.config.checks import check, check_own_parts
from mmr1.config.commands import COMMANDS, command_named
from mmr1.config.file import load_layers
from mmr1.files import atomic
from mmr1.rewards.builtin.elsewhere import PythonConfig
from mmr1.rewards.plugins.user_function import CallableReward
from mmr1.rollout.engines import preload_engine
from mmr1.trainer.preflight import check_evaluation
from mmr1.trainer.runs.existing import check_output_dir

if TYPE_CHECKING:
    from mmr1.trainer.runs.step import Step
    from mmr1.trainer.validation.evaluate import Evaluation

Reward = Callable[..., Any] | float | Mapping[str, Any]
"""A function; the weight of a built-in one; or the keys of a section of ``rewards``, with a
function as its ``type``."""
Rewards = Mapping[str, Reward] | Sequence[Callable[..., Any]]
"""By name; or functions, which have their own names."""
_GIVEN = PythonConfig.model_fields["type"].default
"""Type of a reward that is a function in Python."""

_WRITTEN = "given"  # in place of a path until what was given is written


class Trainer:
    """A run of ``mmr1 train``, or of another ``command``, with the same start, files and numbers.

    Args:
        model: A path or a name, as ``model.path``; or a transformers model, with its
            ``processor``. The object is written to ``OUTPUT/given`` and stays as it is.
        data: A path or a name, as ``data.train``; a list of rows; or a ``datasets.Dataset``. Rows
            may hold PIL images.
        rewards: The reward functions by name: functions, weights, or the keys of their sections; or
            a list of functions, which have their own names. In place of those of ``config``.
        config: A YAML file, or values: nested, or with dotted keys. What else is given goes before.
        processor: Processor of a model which is an object.
        command: ``train``, ``sft``, or a command of a package whose run is a sequence of steps.

    Attributes:
        config: The resolved configuration.

    Raises:
        ValueError: A value is wrong; the message names the key. Nothing has been written.
    """

    def __init__(
        self,
        model: Any = None,
        data: Any = None,
        rewards: Rewards | None = None,
        config: str | Path | Mapping[str, Any] | None = None,
        *,
        processor: Any = None,
        command: str = "train",
    ) -> None:
        if command_named(command).steps is None:
            known = [name for name in COMMANDS.names() if command_named(name).steps is not None]
            raise ValueError(f"command={command}: the Trainer runs {', '.join(known)}")
        self._model, self._processor, self._data = model, processor, data
        named = None if rewards is None else _by_name(rewards)
        self._functions = _functions(named or {})
        self.config = _resolved(model, processor, data, named, config, command)
        _refuse_ahead(self.config, self._functions)

    def steps(self, *, resume: bool = False) -> Iterator[Step]:
        """Run, and yield each step when it is recorded: ``step.number``, ``step.metrics``.

        Leaving the loop ends the run after that step, which is saved. With ``resume`` a run in
        ``trainer.output_dir`` continues from its last checkpoint.

        Raises:
            ValueError: Something that you can fix.
            StoppedError: A signal, or the interruption of the kernel; the last step is saved.
        """
        files = self._name_objects()
        check_output_dir(self.config, resume=resume)
        _write_missing(files, again=not resume)
        config, why = start.with_gpus(self.config, resume=resume)
        if why is not None:
            _say(f"resources: auto: {why}")
        start.check_run(config, resume=resume)
        with closing(start.steps_of(config, resume=resume, functions=self._functions)) as run:
            yield from run

    def train(self, *, resume: bool = False) -> Path:
        """Run all steps; returns the directory of the last checkpoint."""
        for _ in self.steps(resume=resume):
            pass
        return self.checkpoint

    @property
    def checkpoint(self) -> Path:
        """The directory of the last checkpoint: a Hugging Face model.

        Raises:
            ValueError: If the run has written none yet.
        """
        last = _last_checkpoint(self.config)
        if last is None:
            raise ValueError(
                f"{self.config.trainer.output_dir} has no checkpoint yet; call train() first"
            )
        return last

    def evaluate(self, data: Any) -> Evaluation:
        """Evaluate the last checkpoint, or the model before the first, by the run's rewards.

        Args:
            data: Held-out data, in the forms that the run takes.

        Raises:
            ValueError: Something that you can fix; or the command samples no completions.
        """
        if not self.config.samples:
            raise ValueError(
                f"a run of {self.config.command} has no rewards to evaluate by; call "
                "mmr1.evaluate(trainer.checkpoint, data, rewards=..., config=...)"
            )
        last = _last_checkpoint(self.config)
        if last is None:
            _write_missing(self._name_objects())
        path = self.config.model.path if last is None else str(last)
        rows = given_data(data, _given(self.config), "held_out")
        _write_missing(rows.files)
        changes = {"model.path": path, "eval.data": rows.path, "eval.models": {}}
        config = self.config.for_command("eval").changed({**changes, **rows.base(self.config)})
        check(config)
        return _evaluation(config, self._functions)

    def save(self, output: str | Path) -> Path:
        """Write the last checkpoint as a Hugging Face model with a card, as ``mmr1 export``."""
        from mmr1.trainer.runs.export import export

        return export(self.checkpoint, Path(output))

    def _name_objects(self) -> Files:
        """Name the files of objects that were given in the configuration; return how to write
        them.
        """
        folder, files = _given(self.config), {}
        if self._processor is not None:
            path = folder / "model"
            files[path] = lambda: write_model(self._model, self._processor, path)
            self.config = self.config.changed({"model.path": str(path)})
        if self._data is not None:
            rows = given_data(self._data, folder, "train")
            files |= rows.files
            changes = {"data.train": rows.path, **rows.base(self.config)}
            self.config = self.config.changed(changes)
        check(self.config)
        return files


def evaluate(
    model: str | Path,
    data: Any,
    rewards: Mapping[str, Reward] | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
) -> Evaluation:
    """Evaluate a model on held-out records, as ``mmr1 eval``. See :class:`Trainer` for the values.

    Raises:
        ValueError: Something that you can fix.
    """
    named = None if rewards is None else _by_name(rewards)
    with TemporaryDirectory() as folder:
        rows = given_data(data, Path(folder), "held_out")
        _write_missing(rows.files)
        on_top = {"model.path": str(model), "eval.data": rows.path}
        loaded = _loaded(on_top, named, config, "eval")
        loaded = loaded.changed(rows.base(loaded))
        return _evaluation(loaded, _functions(named or {}))


def _evaluation(config: Config, functions: Mapping[str, CallableReward]) -> Evaluation:
    """The one evaluation that the configuration asks for."""
    check_evaluation(config)
    preload_engine(config)
    from mmr1.evaluation.benchmarks import run_evaluations

    results, _ = run_evaluations(config, functions)
    (result,) = results.values()
    return result


def _resolved(
    model: Any, processor: Any, data: Any, rewards: Any, config: Any, command: str
) -> Config:
    is_object = model is not None and not isinstance(model, str | Path)
    if is_object != (processor is not None):
        raise ValueError(
            "a transformers model comes with its processor, and a path without: "
            "Trainer(model=model, processor=processor)"
        )
    on_top: dict[str, Any] = {}
    if model is not None:
        on_top["model.path"] = _WRITTEN if is_object else str(model)
    if data is not None:
        on_top["data.train"] = str(data) if isinstance(data, str | Path) else _WRITTEN
    return _loaded(on_top, rewards, config, command)


def _loaded(on_top: dict[str, Any], rewards: Any, config: Any, command: str) -> Config:
    """The configuration: file or values, and the separate arguments laid over them."""
    below = [] if config is None else [Path(config) if isinstance(config, str) else config]
    if rewards is not None:
        instead = load_layers([*below, on_top], command).config.rewards
        on_top["rewards"] = {**dict.fromkeys(instead), **_sections(rewards)}
    loaded = load_layers([*below, on_top], command)
    for line in (*loaded.notes, *loaded.warnings):
        _say(f"configuration: {line}")
    check_own_parts(loaded.config)
    return loaded.config


def _by_name(rewards: Rewards) -> Mapping[str, Reward]:
    """Return reward functions by name; those of a list have their own."""
    if isinstance(rewards, Mapping):
        return rewards
    functions = [rewards] if callable(rewards) else list(rewards)
    names = [getattr(function, "__name__", "") for function in functions]
    if not all(map(callable, functions)) or len({*names}) < len(names):
        raise ValueError(
            "rewards is a list of functions with names of their own, or a mapping by name: "
            "rewards={'mine': function, 'format': 0.2}"
        )
    if unnamed := [name for name in names if not name.isidentifier()]:
        raise ValueError(
            f"rewards: {unnamed[0] or 'a function'} has no name of its own; give it one: "
            "rewards={'mine': function}"
        )
    return dict(zip(names, functions, strict=True))


def _sections(rewards: Mapping[str, Reward]) -> dict[str, Any]:
    return {name: _section(reward) for name, reward in rewards.items()}


def _section(reward: Reward) -> Any:
    if callable(reward):
        return {"type": _GIVEN}
    if isinstance(reward, Mapping) and callable(reward.get("type")):
        return {**reward, "type": _GIVEN}
    return reward


def _functions(rewards: Mapping[str, Reward]) -> dict[str, CallableReward]:
    """The rewards that are functions, by name."""
    types = {n: r.get("type") if isinstance(r, Mapping) else r for n, r in rewards.items()}
    return {name: CallableReward(name, of) for name, of in types.items() if callable(of)}


def _refuse_ahead(config: Config, functions: Mapping[str, CallableReward]) -> None:
    if functions and config.rollout.max_off_policy_steps:
        raise ValueError(
            f"rewards: {', '.join(functions)} would be called by another thread while the trainer "
            "learns (rollout.max_off_policy_steps); set that to 0, or write them into a file and "
            "name it: file.py:function"
        )


def _given(config: Config) -> Path:
    return Path(config.trainer.output_dir) / "given"


def _last_checkpoint(config: Config) -> Path | None:
    from mmr1.trainer.runs.checkpoint import checkpoints, step_of

    folder = Path(config.trainer.output_dir) / "checkpoints"
    return max(checkpoints(folder), key=step_of, default=None)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


Files = Mapping[Path, Callable[[], None]]
"""What writes a file or folder, by its path."""


def _write_missing(files: Files, again: bool = False) -> None:
    """Write the files that are not there; with ``again`` also a model that is."""
    for path, write in files.items():
        if (again and path.name == "model") or not path.exists():
            write()


@dataclass(frozen=True)
class GivenData:
    """Data as the configuration names it.

    Attributes:
        path: Value of ``data.train`` or ``eval.data``.
        files: Files that have to be written first.
        root: Folder that the paths of its media are relative to; None where the data is a path.
    """

    path: str
    files: Files
    root: str | None = None

    def base(self, config: Config) -> dict[str, str]:
        """Return the change of the configuration that finds the media, unless it names a folder."""
        return {} if self.root is None or config.data.media_root else {"data.media_root": self.root}


def given_data(data: Any, folder: Path, name: str) -> GivenData:
    """Name data that was given: a path or name stays, rows get a file in ``folder``.

    Raises:
        ValueError: If it is neither, or a row holds what no file can.
    """
    if isinstance(data, str | Path):
        return GivenData(str(data), {})
    if hasattr(data, "save_to_disk") and isinstance(data, Mapping):
        raise ValueError(f"data is a dataset with the splits {', '.join(data)}; give one of them")
    if hasattr(data, "save_to_disk"):  # its media stay encoded
        saved = folder / data._fingerprint / name
        files = {saved: lambda: data.save_to_disk(saved)}
        return GivenData(str(saved), files, _media_root(islice(data, 1)))
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise ValueError(
            f"data is a {type(data).__name__}; give a path, a list of rows or a datasets.Dataset"
        )
    rows = list(data)
    text = "".join(f"{_json(row, number)}\n" for number, row in enumerate(rows))
    # Named by the content, so that other rows cannot take their place in a run that is resumed.
    path = folder / hashlib.sha256(text.encode()).hexdigest()[:8] / f"{name}.jsonl"
    return GivenData(str(path), {path: lambda: _write_text(path, text)}, _media_root(rows))


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as file:
        file.write(text)


def _media_root(rows: Iterable[Any]) -> str:
    """Return the folder of the media that rows name: the working folder, or one above all files
    that are named by absolute paths.
    """
    here = Path.cwd()
    folders = {path.parent for row in rows for path in _absolute_files(row)}
    if all(folder.is_relative_to(here) for folder in folders):
        return str(here)
    return os.path.commonpath(folders)


def _absolute_files(value: Any) -> Iterator[Path]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _absolute_files(entry)
    elif isinstance(value, Path):
        yield value.resolve()
    elif isinstance(value, str) and value.startswith("/") and os.path.isfile(value):  # noqa: PTH113
        yield Path(value)


def _json(row: Any, number: int) -> str:
    if not isinstance(row, Mapping):
        raise ValueError(f"data[{number}] is a {type(row).__name__}; a row is a dict")
    try:
        return json.dumps(row, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"data[{number}]: {error}") from error


def _plain(value: Any) -> Any:
    """JSON values: pictures and bytes as ``data:`` URLs, paths as texts, numpy's numbers plain."""
    if hasattr(value, "save") and hasattr(value, "mode"):
        return _data_url(_png(value), "image/png")
    if isinstance(value, bytes | bytearray):
        return _data_url(bytes(value), "application/octet-stream")
    if isinstance(value, Path):
        return str(value.resolve())
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written into a file of rows")


def _png(picture: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def _data_url(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def write_model(model: Any, processor: Any, folder: Path) -> None:
    """Write a transformers model and its processor as a model directory."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
