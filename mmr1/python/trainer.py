"""``mmr1.Trainer`` and ``mmr1.evaluate``: the commands for Python. No torch until a run starts.

What was given in Python is written as files: a run reads, repeats and resumes these as any others.

OUTPUT/given/DIGEST/NAME.jsonl  rows, their pictures in base64
OUTPUT/given/DIGEST/NAME        a ``datasets.Dataset``
OUTPUT/given/model              a model and its processor
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mmr1 import start
from mmr1.config import Config
from mmr1.config.checks import check
from mmr1.config.commands import COMMANDS, command_named
from mmr1.config.file import load_layers
from mmr1.rewards.plugins.user_function import GivenReward
from mmr1.rollout.engines import check_capabilities, preload_engine
from mmr1.trainer.preflight import check_evaluation
from mmr1.trainer.runs.existing import check_output_dir

if TYPE_CHECKING:
    from mmr1.trainer.runs.step import Step
    from mmr1.trainer.validation.evaluate import Evaluation
import base64
import hashlib
import io
import json
import shutil
from collections.abc import Iterable

from mmr1.files import atomic

Reward = Callable[..., Any] | float | Mapping[str, Any]
"""A function; the weight of a built-in one; or the keys of a section of ``rewards``, with a
function as its ``type``."""
_GIVEN = "python"

_WRITTEN = "given"  # in place of a path until what was given is written


class Trainer:
    """A run of ``mmr1 train``, or of another ``command``, with the same start, files and numbers.

    Args:
        model: A path or a name, as ``model.path``; or a transformers model, with its
            ``processor``. The object is written to ``OUTPUT/given`` and stays as it is.
        data: A path or a name, as ``data.train``; a list of rows; or a ``datasets.Dataset``. Rows
            may hold PIL images.
        rewards: The reward functions by name: functions, weights, or the keys of their sections. In
            place of those of ``config``.
        config: A YAML file, or values: nested, or with dotted keys. What else is given goes before.
        processor: That of a model which is an object.
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
        rewards: Mapping[str, Reward] | None = None,
        config: str | Path | Mapping[str, Any] | None = None,
        *,
        processor: Any = None,
        command: str = "train",
    ) -> None:
        if command_named(command).steps is None:
            known = [name for name in COMMANDS.names() if command_named(name).steps is not None]
            raise ValueError(f"command={command}: the Trainer runs {', '.join(known)}")
        self._model, self._processor, self._data = model, processor, data
        self._functions = _functions(rewards or {})
        self.config = _resolved(model, processor, data, rewards, config, command)
        _refuse_ahead(self.config, self._functions)

    def steps(self, *, resume: bool = False) -> Iterator[Step]:
        """Run, and yield each step when it is recorded: ``step.number``, ``step.metrics``.

        Leaving the loop ends the run after that step, which is saved. With ``resume`` a run in
        ``trainer.output_dir`` continues from its last checkpoint.

        Raises:
            ValueError: Something that you can fix.
            StoppedError: A signal, or the interruption of the kernel; the last step is saved.
        """
        check_output_dir(self.config, resume=resume)
        self._write_objects(resume)
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
            ValueError: There is none yet.
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
            data: As for the run.

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
            self._write_objects(resume=True)
        path = self.config.model.path if last is None else str(last)
        config = self.config.for_command("eval").changed(
            {
                "model.path": path,
                "eval.data": data_path(data, _given(self.config), "held_out"),
                "eval.models": {},
            }
        )
        check(config)
        return _evaluation(config, self._functions)

    def save(self, output: str | Path) -> Path:
        """Write the last checkpoint as a Hugging Face model with a card, as ``mmr1 export``."""
        from mmr1.trainer.runs.export import export

        return export(self.checkpoint, Path(output))

    def _write_objects(self, resume: bool) -> None:
        """Write objects that were given as files; the configuration then names these."""
        folder = _given(self.config)
        if self._processor is not None:
            path = folder / "model"
            if not (resume and path.exists()):
                write_model(self._model, self._processor, path)
            self.config = self.config.changed({"model.path": str(path)})
        if self._data is not None:
            path_of_data = data_path(self._data, folder, "train")
            self.config = self.config.changed({"data.train": path_of_data})
        check(self.config)


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
    with TemporaryDirectory() as folder:
        path = data_path(data, Path(folder), "held_out")
        on_top = {"model.path": str(model), "eval.data": path}
        loaded = _loaded(on_top, rewards, config, "eval")
        return _evaluation(loaded, _functions(rewards or {}))


def _evaluation(config: Config, functions: Mapping[str, GivenReward]) -> Evaluation:
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
    check_capabilities(loaded.config)
    return loaded.config


def _sections(rewards: Mapping[str, Reward]) -> dict[str, Any]:
    return {name: _section(reward) for name, reward in rewards.items()}


def _section(reward: Reward) -> Any:
    if callable(reward):
        return {"type": _GIVEN}
    if isinstance(reward, Mapping) and callable(reward.get("type")):
        return {**reward, "type": _GIVEN}
    return reward


def _functions(rewards: Mapping[str, Reward]) -> dict[str, GivenReward]:
    """The rewards that are functions, by name."""
    types = {n: r.get("type") if isinstance(r, Mapping) else r for n, r in rewards.items()}
    return {name: GivenReward(name, of) for name, of in types.items() if callable(of)}


def _refuse_ahead(config: Config, functions: Mapping[str, GivenReward]) -> None:
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


def data_path(data: Any, folder: Path, name: str) -> str:
    """The value for ``data.train`` or ``eval.data``: a path or name, or a new file of rows.

    Raises:
        ValueError: It is neither, or a row holds what no file can.
    """
    if isinstance(data, str | Path):
        return str(data)
    if hasattr(data, "save_to_disk") and isinstance(data, Mapping):
        raise ValueError(f"data is a dataset with the splits {', '.join(data)}; give one of them")
    if hasattr(data, "save_to_disk"):  # its media stay encoded
        saved = folder / data._fingerprint / name
        if not saved.exists():
            data.save_to_disk(saved)
        return str(saved)
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise ValueError(
            f"data is a {type(data).__name__}; give a path, a list of rows or a datasets.Dataset"
        )
    text = "".join(f"{_json(row, number)}\n" for number, row in enumerate(data))
    # Named by the content, so that other rows cannot take their place in a run that is resumed.
    path = folder / hashlib.sha256(text.encode()).hexdigest()[:8] / f"{name}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as file:
            file.write(text)
    return str(path)


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
