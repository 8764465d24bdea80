"""Evaluate one or several models on one or several datasets, and compare them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import Progress

from mmr1.config import Config
from mmr1.evaluation.presets import with_preset
from mmr1.evaluation.store import Store
from mmr1.rewards import CompositeReward, build_composite_reward
from mmr1.rollout.build import build_engine
from mmr1.trainer.models.loading import load_model
from mmr1.trainer.sampling.reward_models import reward_models
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.train import Inputs, check_inputs
from mmr1.trainer.validation.evaluate import Evaluation, decodings, evaluate, prompt_scores
from mmr1.trainer.validation.statistics import Paired, paired

Results = dict[tuple[str, str], Evaluation]
"""By the names of model and dataset."""


@dataclass(frozen=True, slots=True)
class Task:
    """One model on one dataset, checked."""

    model: str
    data: str
    config: Config
    scorer: CompositeReward
    inputs: Inputs
    store: Store | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models on the prompts of one dataset that both have a score for."""

    data: str
    mode: str
    first: str
    second: str
    result: Paired


def run_evaluations(config: Config) -> tuple[Results, list[Comparison]]:
    """Every model of ``eval.models`` on every dataset of ``eval.data``.

    Without these, ``model.path`` on ``data.eval``. With ``eval.output_dir`` the completions of each
    pair are kept batch by batch and an interrupted evaluation is continued; of several pairs
    ``results.json`` holds everything but the completions.

    Raises:
        ValueError: Something the user can mend; no model has been asked anything yet.
    """
    results: Results = {}
    with ExitStack() as stack:
        tasks = [_task(stack, *pair) for pair in _pairs(config)]
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        progress = stack.enter_context(Progress(disable=not Console().is_terminal))
        for model in dict.fromkeys(task.model for task in tasks):
            own = [task for task in tasks if task.model == model]
            _evaluate_model(own, results, progress, Path(config.eval.output_dir or scratch))
    comparisons = compare(results)
    if config.eval.output_dir and len(results) > 1:
        _write(Path(config.eval.output_dir), results, comparisons)
    return results, comparisons


def _pairs(config: Config) -> list[tuple[str, str, Config, Path | None]]:
    """Model and dataset by name, the configuration of each pair and its folder."""
    models = config.eval.models or {"": config.model.path}
    data = config.eval.data or ({"": config.data.eval} if config.data.eval else {})
    if not data:
        raise ValueError(
            "there is nothing to evaluate on; name the held-out records, data.eval=PATH, or "
            "several, eval.data.NAME=PATH"
        )
    found = []
    for model, path in models.items():
        for name, records in data.items():
            own = _named(config, path, records)
            folder = Path(config.eval.output_dir) / model / name if config.eval.output_dir else None
            found.append((model, name, with_preset(own, name, config.eval.prompt), folder))
    return found


def _named(config: Config, model: str, records: str) -> Config:
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": model}),
            "data": config.data.model_copy(update={"eval": records}),
        }
    )


def _task(stack: ExitStack, model: str, data: str, config: Config, folder: Path | None) -> Task:
    scorer = stack.enter_context(build_composite_reward(config.rewards, reward_models(config)))
    inputs = check_inputs(config, scorer, train=False)
    store = Store(folder, config, inputs.held_out) if folder else None
    return Task(model, data, config, scorer, inputs, store)


def _evaluate_model(tasks: list[Task], results: Results, progress: Progress, folder: Path) -> None:
    """All datasets of one model: the engine starts once."""
    config, inputs = tasks[0].config, tasks[0].inputs
    model = load_model(config.model) if config.rollout.engine == "hf" else None
    log = folder / tasks[0].model / "engine.log"
    engine = build_engine(config, inputs.family, inputs.media, log, model)
    with closing(engine):
        for task in tasks:
            name = " ".join(filter(None, (task.model, task.data))) or "eval"
            total = len(decodings(task.config)) * len(task.inputs.held_out)
            bar = progress.add_task(name, total=total)
            # The engine's own media cache: each picture is prepared once.
            groups = RewardManager(
                task.scorer, inputs.media, task.config.rewards.max_invalid_fraction
            )
            store = task.store
            result = evaluate(
                task.config,
                engine,
                task.inputs.render,
                groups,
                task.inputs.held_out,
                partial(progress.advance, bar),
                done=store.rows() if store else (),
                keep=store.keep if store else lambda rows: None,
            )
            if store:
                store.finish(result)
            results[task.model, task.data] = result


def compare(results: Mapping[tuple[str, str], Evaluation]) -> list[Comparison]:
    """Every two models on every dataset, in every mode: the same prompts, paired."""
    models = list(dict.fromkeys(model for model, _ in results))
    datasets = list(dict.fromkeys(data for _, data in results))
    found = []
    for data in datasets:
        for first, second in combinations(models, 2):
            a, b = results[first, data], results[second, data]
            for mode in a.modes:
                scores = [
                    prompt_scores(r for r in rows.rows if r["mode"] == mode) for rows in (a, b)
                ]
                shared = [name for name in scores[0] if name in scores[1]]
                if shared:
                    pair = paired([scores[0][n] for n in shared], [scores[1][n] for n in shared])
                    found.append(Comparison(data, mode, first, second, pair))
    return found


def _write(folder: Path, results: Results, comparisons: list[Comparison]) -> None:
    found: list[dict[str, Any]] = [
        {
            "model": model,
            "data": data,
            "prompts": result.prompts,
            "modes": {name: asdict(mode) for name, mode in result.modes.items()},
        }
        for (model, data), result in results.items()
    ]
    text = json.dumps({"results": found, "comparisons": [asdict(c) for c in comparisons]}, indent=2)
    (folder / "results.json").write_text(text + "\n")
