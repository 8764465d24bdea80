"""Trials that train: one run from the cold start, evaluated on the 500 held-out scans."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from mmr1.compare.metrics import tenths
from mmr1.config import Config
from mmr1.config.file import load_config
from mmr1.evaluation.benchmarks import run_evaluations
from mmr1.report.curves import read_metrics
from mmr1.trainer.offline.sft import run_sft
from mmr1.trainer.train import run_training
from scripts.claims.claim import Measured, Trial

QUICK_STEPS, QUICK_EVAL = "trainer.max_steps=40", "eval.limit=100"
QUICK = (QUICK_STEPS, QUICK_EVAL)


def newest(run: Path) -> Path:
    """The last checkpoint of a run."""
    return max((run / "checkpoints").glob("step_*"))


def settings(
    trial: Trial, run: Path, model: Path | None = None, data: Path | None = None
) -> list[str]:
    """Overrides of a trial: its model, data, seed and folder, and the held-out questions.

    Args:
        model: Default: the cold start of the digits.
        data: A folder of :func:`~scripts.claims.tasks.made`; default: the digits of the start.
    """
    return [
        *learns(trial, run, model, data),
        f"trainer.validation.data={(data or trial.start) / 'eval.jsonl'}",
        *([QUICK_EVAL] if trial.quick else ()),
    ]


def learns(
    trial: Trial, run: Path, model: Path | None = None, data: Path | None = None
) -> list[str]:
    """As :func:`settings`, without the held-out questions."""
    start = trial.start
    return [
        f"model.path={model or newest(start / 'sft')}",
        f"data.train={(data or start) / 'rl.jsonl'}",
        f"data.media_root={data or start / 'data'}",
        f"trainer.output_dir={run}",
        f"seed={trial.seed}",
        *([QUICK_STEPS] if trial.quick else ()),
    ]


def train(
    trial: Trial,
    path: Path,
    overrides: Iterable[str],
    model: Path | None = None,
    data: Path | None = None,
) -> Config:
    """``mmr1 train``, continued where it was interrupted; the run is in ``trial.folder / run``."""
    config = load_config(path, [*overrides, *settings(trial, trial.folder / "run", model, data)])
    run_training(config, resume=True)
    return config


def taught(path: Path, output: Path, model: Path, records: Path, media: Path, trial: Trial) -> Path:
    """``mmr1 sft``, continued where it was interrupted; returns the last checkpoint."""
    own = [
        *(f"model.path={model}", f"seed={trial.seed}", f"trainer.output_dir={output}"),
        *(f"data.train={records}", f"data.media_root={media}"),
    ]
    run_sft(load_config(path, own, "sft"), resume=True)
    return newest(output)


def measured(run: Path, curve: str = "reward/math", accuracy: str = "reward/math") -> Measured:
    """Of a finished run: held-out numbers, and means over its tenths."""
    metrics = read_metrics(run / "metrics.jsonl")
    numbers = {**held_out(run / "eval"), **in_training(metrics, accuracy)}
    return Measured(numbers, tenths(metrics[curve]))


def evaluated(
    trial: Trial, path: Path, model: Path, folder: Path, data: Path | None = None
) -> dict[str, float]:
    """The held-out numbers of a model that is not trained any further, kept in ``folder``."""
    own = [*settings(trial, trial.folder / "run", model, data), f"eval.output_dir={folder}"]
    run_evaluations(load_config(path, own, "eval"))
    return held_out(folder)


def by_kind(folder: Path, kind: Callable[[str], str], column: str = "right") -> dict[str, float]:
    """Accuracies of the kinds of held-out questions: ``greedy_<kind>`` and ``sampled_<kind>``.

    Args:
        kind: Of a question's id.
        column: ``right``, or ``score`` for means such as that of the IoU.
    """
    rows = map(json.loads, (folder / "completions.jsonl").open())
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        values[f"{row['mode']}_{kind(row['id'])}"].append(row[column])
    return {name: fmean(of_kind) for name, of_kind in values.items()}


def held_out(folder: Path) -> dict[str, float]:
    """Accuracy, share in the right form and length, greedy and sampled."""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    numbers: dict[str, float] = {}
    for mode in ("greedy", "sampled"):
        numbers[mode] = result[mode]["accuracy"]
        numbers[f"{mode}_format"] = result[mode]["components"]["format"]
        numbers[f"{mode}_length"] = result[mode]["length_mean"]
    return numbers


def in_training(metrics: dict[str, list[float]], accuracy: str) -> dict[str, float]:
    """The mean accuracy of all rollouts, which is the area under the learning curve, and others.

    ``entropy`` and ``kl``, in nats per token, are means over the last tenth of the run, the others
    over all of it; ``tokens`` is the number of tokens of all completions.
    """
    return {
        "area": fmean(metrics[accuracy]),
        "entropy": tenths(metrics["entropy"])[-1],
        "kl": tenths(metrics["kl"])[-1],
        "clipped": fmean(metrics.get("clip_fraction", [0.0])),
        "no_signal": fmean(metrics["reward/no_signal"]),
        "tokens": sum(metrics["tokens/completion"]),
    }
