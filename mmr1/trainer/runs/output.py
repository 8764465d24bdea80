"""The output directory of a run: configuration, metrics, rollouts, checkpoints.

OUTPUT/config.yaml            the resolved configuration
OUTPUT/inputs.json            fingerprints of what the run reads: data, plugins, models, media
OUTPUT/metrics.jsonl          one object per step
OUTPUT/train.log              what mmr1 logs, INFO and above
OUTPUT/rollouts/step_*.jsonl  one object per prompt
OUTPUT/quarantine.jsonl       the rows of the data that were left out, with the reasons
OUTPUT/summary.json           how far the run is, and every fault that it continued after
OUTPUT/media/DIGEST           media of the rollouts that have no file of their own
OUTPUT/set_aside/N            metrics and rollouts of steps that the Nth resumed run repeats
OUTPUT/checkpoints/step_*     Hugging Face model directories, and the state for --resume
OUTPUT/run.lock               locked by the process that writes here
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, repeat
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from mmr1.config import Config
from mmr1.config.file import read_written, write_yaml
from mmr1.config.run_folder import CONFIG
from mmr1.data.quarantine import Quarantine
from mmr1.files import append, atomic, atomic_binary
from mmr1.logs import ROOT, FaultCounter, failing_output_muted, log_to_file, report_fault
from mmr1.trainer.runs.checkpoint import (
    Checkpoints,
    DamagedCheckpointError,
    checkpoints,
    latest_valid_checkpoint,
    step_of,
    verify_checkpoint,
)
from mmr1.trainer.runs.fingerprints import Fingerprints, fingerprints, write_fingerprints
from mmr1.trainer.runs.step import StoppedError
from mmr1.types import Completion, MediaRef, ScoredGroup, Span, StepStats, TextPart
from mmr1.vision.prepare import MediaCache, Medium

logger = logging.getLogger(__name__)


SUMMARY = "summary.json"
EVALUATION = "eval"
"""The folder of the evaluation of the last weights."""


class RecordError(RuntimeError):
    """Metrics or rollouts could not be written; the checkpoints are unchanged."""


def finished(config: Config) -> Path | None:
    """The last checkpoint of a run that is finished and evaluated, or None.

    Reads only, because another process may be writing here.
    """
    path = Path(config.trainer.output_dir)
    steps = _known_steps(path, config)
    last = max(checkpoints(path / "checkpoints"), key=step_of, default=None)
    if last is None or steps is None or step_of(last) < steps:
        return None
    if config.eval_records and not (path / EVALUATION / "result.json").exists():
        return None
    try:
        verify_checkpoint(last)
    except DamagedCheckpointError:  # --resume reports it and uses the one before
        return None
    return last


def _known_steps(path: Path, config: Config) -> int | None:
    """Return the steps of a run; None where its epochs are to be counted on the data.

    They were counted if the run was asked for the same number before.
    """
    asked = config.trainer
    if asked.total_epochs is None:
        return asked.steps
    if not (path / CONFIG).exists():
        return None
    before = read_written(path / CONFIG).trainer
    if (before.total_epochs, before.max_steps) != (asked.total_epochs, asked.max_steps):
        return None
    return _read(path / SUMMARY).get("steps")


class RunDirectory:
    """The directory of a new or resumed run, locked so that only this process writes into it.

    A context. When it ends, everything is on the disk, and the summary says how it ended.

    Args:
        config: The configuration with the number of steps that its epochs are.
        asked: The configuration as it was asked for, which is written; None for ``config``.
        found: The fingerprints of what the run reads, with those of media; None: without these.

    Raises:
        ValueError: If another process writes into it, or it cannot be written to.
    """

    def __init__(
        self, config: Config, asked: Config | None = None, found: Fingerprints | None = None
    ) -> None:
        self.path = Path(config.trainer.output_dir)
        self._config, self._asked, self._fingerprints = config, asked or config, found
        with self._writable():
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path / "run.lock")
        self._dropped = -1  # as many rows as quarantine.jsonl names; not written yet
        self._log = ExitStack()
        self._log.enter_context(log_to_file(self.path / "train.log"))
        self._log.enter_context(failing_output_muted())
        self._summary = RunSummary(self.path / SUMMARY, config.trainer.steps)
        self.metrics_file = self.path / "metrics.jsonl"
        kept = config.trainer.checkpoints
        self.checkpoints = Checkpoints(
            self.path / "checkpoints",
            2 if kept is None else kept.save_total_limit,
            None if kept is None else kept.metric_for_best_model,
            config.trainer.async_save,
        )

    def last_checkpoint(self, warn: Callable[[str], None]) -> Path | None:
        """The latest undamaged checkpoint, or None.

        Raises:
            ValueError: All checkpoints are damaged.
        """
        self.checkpoints.last = latest_valid_checkpoint(self.path / "checkpoints", warn)
        return self.checkpoints.last

    @property
    def steps_before(self) -> int | None:
        """The steps that the run was to have, as it was begun or last resumed; None if unknown."""
        return _read(self.path / SUMMARY).get("steps")

    def begin(self) -> None:
        """Write ``config.yaml``, and set the logs of the steps after the last checkpoint aside.

        Called once nothing can refuse the run any more. A run that is refused thus leaves the
        directory as it was, but for the lock and the logs of its processes.
        """
        last = self.checkpoints.last
        done = 0 if last is None else step_of(last)
        self._rewind(done)
        with self._writable():
            write_yaml(self.path / CONFIG, self._asked)
            found = self._fingerprints or fingerprints(self.path, self._asked)
            write_fingerprints(self.path, found)
        self._summary.begin(done)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        """Turn errors of the disk into a ValueError with a remedy."""
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"trainer.output_dir '{self.path}' cannot be written to ({error}); free some "
                "space, make it writable or name another directory"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Wait for pending writes, and release the lock."""
        self.checkpoints.close()
        self._summary.end(error, self.checkpoints.last)
        self._log.close()
        self._lock.release()

    def _rewind(self, step: int) -> None:
        """Move the logs of later steps, which will run again, into ``set_aside/N``."""
        aside = _next_number(self.path / "set_aside")
        if self.metrics_file.exists():
            lines = self.metrics_file.read_text().splitlines(keepends=True)
            later = [line for line in lines if _step_of_line(line) > step]
            if later:
                aside.mkdir(parents=True)
                (aside / "metrics.jsonl").write_text("".join(later))
                with atomic(self.metrics_file) as file:
                    file.writelines(line for line in lines if _step_of_line(line) <= step)
        evaluated = self.path / EVALUATION
        if evaluated.exists() and step < self._config.trainer.steps:  # of weights that are not last
            aside.mkdir(parents=True, exist_ok=True)
            evaluated.replace(aside / EVALUATION)
        for folder in ("rollouts", "validation"):
            for path in sorted((self.path / folder).glob("step_*.jsonl")):
                if int(path.stem.removeprefix("step_")) > step:
                    (aside / folder).mkdir(parents=True, exist_ok=True)
                    path.replace(aside / folder / path.name)

    def log(self, stats: StepStats) -> None:
        """Append one line to ``metrics.jsonl``.

        Raises:
            OSError: The disk refuses, or the folder of the run was removed.
        """
        self._append(self.metrics_file, [stats])
        self._summary.write(int(stats["step"]))

    def log_dropped(self, quarantines: Iterable[Quarantine]) -> None:
        """Bring ``quarantine.jsonl`` up to all the rows left out; no file if there are none."""
        rows = [entry for quarantine in quarantines for entry in quarantine.dropped]
        if len(rows) != self._dropped:
            file = self.path / "quarantine.jsonl"
            replace_jsonl(file, rows)
            self._dropped = len(rows)
            self._summary.quarantined = rows

    def log_validation(
        self, step: int, scored: Mapping[str, Iterable[ScoredGroup]], media: MediaCache
    ) -> None:
        """Write the completions of a validation, by its way of decoding, in place of earlier ones.

        A run that was killed at its end evaluates again.
        """
        (self.path / "validation" / f"step_{step:06d}.jsonl").unlink(missing_ok=True)
        for mode, groups in scored.items():
            self.log_rollouts(step, groups, media, mode=mode)

    def log_rollouts(
        self,
        step: int,
        scored: Iterable[ScoredGroup],
        media: MediaCache,
        advantages: Iterable[float | None] = repeat(None),
        mode: str | None = None,
        vision_use: Mapping[int, Sequence[Any]] = MappingProxyType({}),
    ) -> Path:
        """Write the prompts, completions, rewards and (in RL) advantages; returns the file.

        ``mode`` is a validation's way of decoding; its completions go into ``validation/``. Of a
        group in ``vision_use``, by its number, each completion has what it gives for it.
        """
        in_order, rows = iter(advantages), []
        for number, group in enumerate(scored):
            prompt, sample = group.group.prompt, group.group.prompt.sample
            completions = [
                {
                    "text": completion.text,
                    "tokens": completion.sampled_tokens,
                    "truncated": completion.truncated,
                    "policy_version": completion.policy_version,
                    **({"versions": completion.versions} if completion.versions else {}),
                    **({"view": dict(completion.view)} if completion.view else {}),
                    **(self._turns(completion, media) if completion.spans else {}),
                    "reward": reward.value,
                    "components": dict(reward.components),
                    "status": str(reward.status),
                    "error": reward.error,
                    "advantage": next(in_order),
                }
                for completion, reward in zip(group.group.completions, group.rewards, strict=True)
            ]
            for shown, pieces in zip(completions, vision_use.get(number, ()), strict=False):
                shown["vision_use"] = pieces
            row = {
                "step": step,
                "id": sample.id,
                "prompt": prompt.text,
                "question": sample.question,
                "answer": sample.answer,
                "task": sample.task,
                "completions": completions,
                **({} if mode is None else {"mode": mode}),
                "media": [self._medium(m, media[m]) for m in prompt.media],
            }
            rows.append(row)
        folder = "rollouts" if mode is None else "validation"
        file = self.path / folder / f"step_{step:06d}.jsonl"
        self._append(file, rows)
        return file

    def _turns(self, completion: Completion, media: MediaCache) -> dict[str, Any]:
        """The spans of policy and environment in a conversation."""
        return {
            "turns": [
                {
                    "role": span.role,
                    "text": span.text,
                    "tokens": span.tokens,
                    "media": [self._medium(m, media[m]) for m in span.media],
                    "calls": [
                        {"name": c.name, "arguments": dict(c.arguments), "error": c.error}
                        for c in span.calls
                    ],
                    "answers": _answers(span),
                    **({} if span.reward is None else {"reward": span.reward}),
                }
                for span in completion.spans
            ]
        }

    def _append(self, file: Path, rows: Iterable[Any]) -> None:
        if not (self.path / "run.lock").exists():
            raise FileNotFoundError(f"{self.path} was removed")
        append(file, json_lines(rows))

    def _medium(self, ref: MediaRef, prepared: Medium) -> dict[str, Any]:
        """A medium's path and the size that the model saw; without a file it is copied here."""
        path = str(ref.path)
        if ref.path is None:
            path = f"media/{prepared.digest}"
            copy = self.path / path
            if not copy.exists():
                _write_file(copy, ref.read())
        return {
            "kind": ref.kind,
            "path": path,
            "digest": prepared.digest,
            "seen": list(prepared.pixels),
            "options": dict(ref.options),
        }


def _answers(span: Span) -> list[list[dict[str, Any]]]:
    """The parts of each answer: a text, or the number of a picture among those of the turn."""
    number = count()
    return [
        [
            {"text": part.text} if isinstance(part, TextPart) else {"medium": next(number)}
            for part in message.parts
        ]
        for message in span.answers
    ]


def append_json(path: Path, rows: Iterable[Any]) -> None:
    """Append objects to a JSON Lines file, all of them or none.

    Raises:
        OSError: The file cannot be written.
    """
    append(path, json_lines(rows))


def json_lines(rows: Iterable[Any]) -> bytes:
    """Objects as the lines of a JSON Lines file.

    A lone surrogate, which UTF-8 has not and a reward server's message may have, is written as the
    escape that JSON has for it.
    """
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return text.encode("utf-8", errors="backslashreplace")


def _write_file(path: Path, data: bytes) -> None:
    with atomic_binary(path, sync=False) as (file,):
        file.write(data)


def replace_jsonl(path: Path, rows: Sequence[Any]) -> None:
    """Replace a JSON Lines file by these objects; no file for no objects."""
    if rows:
        _write_file(path, json_lines(rows))
    else:
        path.unlink(missing_ok=True)


def _next_number(folder: Path) -> Path:
    """``folder/N`` with the first N that is not there yet, from 1."""
    return next(path for n in count(1) if not (path := folder / str(n)).exists())


def _step_of_line(line: str) -> float:
    """The step of a line of metrics.jsonl; infinite for a line that a kill cut off."""
    try:
        return json.loads(line)["step"]
    except ValueError:
        return float("inf")


def _lock(path: Path) -> FileLock:
    """Lock the file until it is released or the process ends, however it ends."""
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(
            f"another process is writing into '{path.parent}'; wait for it, stop it, or name "
            "another trainer.output_dir"
        ) from error
    return lock


RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"


class RunSummary:
    """The summary of a run, written from ``begin`` to ``end``; faults count from the start.

    A full disk keeps the summary as it was; the next write has everything.

    Attributes:
        quarantined: The rows of the data that were left out; they are written at the end.

    Args:
        steps: Steps that the run is to have.
    """

    def __init__(self, path: Path, steps: int) -> None:
        self._path, self._steps = path, steps
        self.quarantined: list[dict[str, str]] = []
        self._step = 0
        self._state = RUNNING
        self._began = False
        self._counter = FaultCounter(self.write)
        logging.getLogger(ROOT).addHandler(self._counter)

    def begin(self, step: int) -> None:
        """Begin after ``step`` steps; the counts of the processes before this one continue."""
        before = _read(self._path)
        if before["step"] and not self._began:
            self._counter.counts.update(before["faults"])
            _report_previous_end(before)
        self._began = True
        self.write(step)

    def end(self, error: BaseException | None, checkpoint: Path | None) -> None:
        """Record the end of the process, with an error or without, and the last checkpoint."""
        if error is None:
            self._state = FINISHED
        elif isinstance(error, StoppedError | KeyboardInterrupt | GeneratorExit):
            self._state = STOPPED
        else:
            self._state = FAILED
        last = None if checkpoint is None else str(checkpoint.relative_to(self._path.parent))
        self.write(results={"checkpoint": last, "quarantined": self.quarantined})
        logging.getLogger(ROOT).removeHandler(self._counter)

    def write(
        self, step: int | None = None, results: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Write the summary; ``step`` is the last that is done, if that has changed.

        Not synced to the disk: what a kill leaves is enough, and it is written at every step.
        """
        self._step = self._step if step is None else step
        if not self._began:
            return
        summary = {
            "state": self._state,
            "step": self._step,
            "steps": self._steps,
            "faults": dict(sorted(self._counter.counts.items())),
            **results,
        }
        text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
        with suppress(OSError), atomic_binary(self._path, sync=False) as (file,):
            file.write(text.encode(errors="backslashreplace"))


def _report_previous_end(before: dict[str, Any]) -> None:
    """Record how the process before this one ended."""
    kinds = {RUNNING: "killed", STOPPED: "stopped", FAILED: "failed"}
    if kind := kinds.get(before["state"]):
        message = f"the process before this one was at step {before['step']} when it {_ENDS[kind]}"
        report_fault(logger, f"run/{kind}", message, level=logging.INFO)


_ENDS = {"killed": "was killed", "stopped": "was stopped", "failed": "failed"}


def _read(path: Path) -> dict[str, Any]:
    """The summary on the disk; an empty one where none exists or it cannot be read."""
    try:
        summary: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {"state": FINISHED, "step": 0, "faults": {}}
    return summary
