"""Evaluate one or several models on one or several datasets, and compare them.

The completions of a model on a dataset have a folder, from which an evaluation can continue.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from mmr1.config import Config
from mmr1.config.file import read_written, write_yaml
from mmr1.config.run_folder import CONFIG, INPUTS
from mmr1.data.sampler import MediaCheck
from mmr1.evaluation.presets import with_preset
from mmr1.progress import Progress, report_activity
from mmr1.report.run_reader import read_lines
from mmr1.rewards import CompositeReward, RewardFunction, build_composite_reward
from mmr1.rollout.build import build_engine, with_conversations
from mmr1.rollout.engines import abilities
from mmr1.rollout.protocol import Engine
from mmr1.trainer.distributed.cluster import engines_on_ray
from mmr1.trainer.distributed.reward_ranks import reward_model_values
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.inputs import Inputs, check_inputs
from mmr1.trainer.models.loading import build_packed_model, load_model
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.runs.existing import differing_keys
from mmr1.trainer.runs.fingerprints import changed, fingerprints, write_fingerprints
from mmr1.trainer.runs.output import append_json, replace_jsonl
from mmr1.trainer.sampling.reward_models import GroupValues, reward_models
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.validation.evaluate import (
    Evaluation,
    Row,
    decodings,
    evaluate,
    prompt_scores,
    write_evaluation,
)
from mmr1.trainer.validation.statistics import Paired, paired
from mmr1.types import Sample

Results = dict[tuple[str, str], Evaluation]
"""Evaluations by ``(name of the model, name of the dataset)``."""


@dataclass(frozen=True, slots=True)
class Task:
    """The checked evaluation of one model on one dataset."""

    model: str
    data: str
    config: Config
    composite_reward: CompositeReward
    inputs: Inputs
    store: Store | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models on the prompts of a dataset that both have a score for."""

    data: str
    mode: str
    first: str
    second: str
    result: Paired


def run_evaluations(
    config: Config, functions: Mapping[str, RewardFunction] = MappingProxyType({})
) -> tuple[Results, list[Comparison]]:
    """Evaluate every model of ``eval.models`` on every dataset of ``eval.data``.

    Without these, ``model.path`` on ``trainer.validation.data``. With ``eval.output_dir`` the
    completions are saved batch by batch, and an interrupted evaluation is continued. For several
    pairs of model and dataset, ``results.json`` there holds the metrics and comparisons.

    Args:
        functions: Reward functions of this process, in place of those of their names in
            ``rewards``.

    Raises:
        ValueError: Something that the user can fix; nothing has been sampled yet.
    """
    results: Results = {}
    with ExitStack() as stack:
        values = stack.enter_context(reward_model_values(config.for_command("eval")))
        tasks = [_task(stack, functions, values, *pair) for pair in _pairs(config)]
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        for model in dict.fromkeys(task.model for task in tasks):
            tasks_of_model = [task for task in tasks if task.model == model]
            _evaluate_model(tasks_of_model, results, Path(config.eval.output_dir or scratch))
    comparisons = compare(results)
    if config.eval.output_dir and len(results) > 1:
        _write(Path(config.eval.output_dir), results, comparisons)
    return results, comparisons


def _pairs(config: Config) -> list[tuple[str, str, Config, Path | None]]:
    """Each pair of model and dataset by name, with its configuration and folder."""
    config = config.for_command("eval")
    models = config.eval.models or {"": config.model.path}
    data = config.eval.data if isinstance(config.eval.data, dict) else {}
    if not data and config.eval_records:
        data = {"": config.eval_records}
    if not data:
        raise ValueError(
            "there is nothing to evaluate on; name the held-out records, eval.data=PATH, or "
            "several, eval.data.NAME=PATH"
        )
    pairs = []
    for model, path in models.items():
        for name, records in data.items():
            pair_config = _config_of_pair(config, path, records)
            folder = Path(config.eval.output_dir) / model / name if config.eval.output_dir else None
            pairs.append((model, name, with_preset(pair_config, name, config.eval.prompt), folder))
    return pairs


def _config_of_pair(config: Config, model: str, records: str) -> Config:
    return config.changed({"model.path": model, "eval.data": records})


@report_activity("reading the data")
def _task(
    stack: ExitStack,
    functions: Mapping[str, RewardFunction],
    values: Mapping[str, GroupValues],
    model: str,
    data: str,
    config: Config,
    folder: Path | None,
) -> Task:
    own = {**reward_models(config, values), **functions}
    composite_reward = stack.enter_context(
        build_composite_reward(config.rewards, config.scoring, own)
    )
    inputs = check_inputs(config, composite_reward, train=False)
    store = Store(folder, config, inputs.held_out) if folder else None
    return Task(model, data, config, composite_reward, inputs, store)


@contextmanager
def evaluation_engine(
    config: Config, inputs: Inputs, log: Path
) -> Iterator[tuple[Engine, PackedModel | None]]:
    """An engine here, or ``resources.engines`` on Ray; and the model for ``eval.vision_use``."""
    looks = config.eval.vision_use
    if config.engines > 1:
        with engines_on_ray(config) as engines:
            own = with_conversations(config, engines, inputs.family, inputs.media)
            with closing(own) as engine:
                yield engine, None
        return
    with report_activity("starting the rollout engine"):
        samples = "shared" in abilities(config).channels
        model = load_model(config.model) if samples or looks else None
        of_engine = model if samples else None
        started = build_engine(config, inputs.family, inputs.media, log, of_engine)
    with closing(started) as engine:
        read = ModelInputs(inputs.family, inputs.media)
        sampling = config.rollout.sampling
        yield engine, build_packed_model(config, model, read, sampling) if looks else None


def _evaluate_model(tasks: list[Task], results: Results, folder: Path) -> None:
    """Evaluate one model on all its datasets with the same engines."""
    config, inputs = tasks[0].config, tasks[0].inputs
    log = folder / tasks[0].model / "engine.log"
    with evaluation_engine(config, inputs, log) as (engine, policy):
        for task in tasks:
            name = " ".join(filter(None, (task.model, task.data)))
            name = f"evaluating {name}" if name else "evaluating"
            total = len(decodings(task.config)) * len(task.inputs.held_out[: config.eval.limit])
            # The media cache of the engine, so that each image is prepared once.
            reward_manager = RewardManager(
                task.composite_reward,
                inputs.media,
                task.config.scoring.max_invalid_fraction,
                inputs.family.coordinates,
            )
            store = task.store
            with report_activity(name), Progress(name, "prompts", total) as progress:
                result = evaluate(
                    task.config,
                    engine,
                    task.inputs.render,
                    reward_manager,
                    task.inputs.held_out,
                    MediaCheck(inputs.media, task.inputs.quarantines["eval"]),
                    progress.advance,
                    earlier_rows=store.rows() if store else (),
                    save_rows=store.save if store else lambda rows: None,
                    policy=policy,
                )
            if store:
                store.finish(result, task.inputs.dropped)
            results[task.model, task.data] = result


def compare(results: Mapping[tuple[str, str], Evaluation]) -> list[Comparison]:
    """Compare every two models on every dataset and mode, paired by prompt."""
    models = list(dict.fromkeys(model for model, _ in results))
    datasets = list(dict.fromkeys(data for _, data in results))
    comparisons = []
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
                    comparisons.append(Comparison(data, mode, first, second, pair))
    return comparisons


def _write(folder: Path, results: Results, comparisons: list[Comparison]) -> None:
    entries: list[dict[str, Any]] = [
        {
            "model": model,
            "data": data,
            "prompts": result.prompts,
            "modes": {name: asdict(mode) for name, mode in result.modes.items()},
        }
        for (model, data), result in results.items()
    ]
    text = json.dumps(
        {"results": entries, "comparisons": [asdict(c) for c in comparisons]}, indent=2
    )
    (folder / "results.json").write_text(text + "\n")


_DECIDING = (
    "seed", "model", "data", "environment", "rewards",
    "rollout.max_prompt_length", "rollout.max_response_length", "rollout.stop",
    "eval.sampled", "eval.views", "eval.vision_use",
    "eval.accuracy_function", "eval.accuracy_thresholds", "eval.group_by",
)  # fmt: skip
"""Keys, and sections, that a completion and its score depend on. Others may change when an
evaluation is continued."""
_FREE = ("data.train_batch_size", "data.media_root", "eval.sampled.best_of")
"""Keys in these sections that change no completion; media are compared by their contents."""


def deciding_changes(before: Config, now: Config) -> list[str]:
    """Return the keys whose values differ and that a completion or its score depends on."""
    precision = ["rollout.engine.dtype"] if before.rollout_dtype != now.rollout_dtype else []
    return precision + [
        key
        for key in differing_keys(before, now)
        if _is_below(key, _DECIDING) and not _is_below(key, _FREE)
    ]


def _is_below(key: str, names: Sequence[str]) -> bool:
    return any(f"{key}.".startswith(f"{name}.") for name in names)


class Store:
    """The folder of one evaluation.

    Raises:
        ValueError: If the folder holds completions of another evaluation.
    """

    def __init__(self, folder: Path, config: Config, samples: Sequence[Sample]) -> None:
        self._folder, self._config = folder, config
        evaluated = {str(config.eval_records): samples[: config.eval.limit]}
        records = [(s.id, s.question, str(s.answer)) for s in samples]
        digest = hashlib.sha256(repr(records).encode("utf-8", "replace")).hexdigest()
        self._fingerprints = fingerprints(folder, config, evaluated)
        self._fingerprints["records"] = {"sha256": digest}  # of the Hub too, which has no file
        self._described = all((folder / name).is_file() for name in (CONFIG, INPUTS))
        if self._described:
            self._check()
        elif (folder / "completions.jsonl").exists():
            raise ValueError(
                f"{folder} holds an evaluation without {CONFIG} and {INPUTS} that describe it; "
                "name another eval.output_dir, or remove it"
            )

    def _check(self) -> None:
        differs = deciding_changes(read_written(self._folder / CONFIG), self._config)
        differs += changed(self._folder, self._fingerprints)
        if differs:
            raise ValueError(
                f"{self._folder} holds an evaluation with another {', '.join(differs)}; name "
                "another eval.output_dir, or remove it"
            )

    def rows(self) -> list[Row]:
        """The completions on disk; a last line that the interruption cut off is removed."""
        file = self._folder / "completions.jsonl"
        if file.is_file():
            with file.open("rb+") as lines:
                lines.truncate(file.read_bytes().rfind(b"\n") + 1)
        return list(read_lines(file))

    def save(self, rows: Sequence[Row]) -> None:
        """Add the completions of a batch."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._described:
            write_fingerprints(self._folder, self._fingerprints)
            # The folder that the configuration means is this one, and not that of the run.
            own = self._config.changed({"trainer.output_dir": str(self._folder)})
            write_yaml(self._folder / CONFIG, own)
            self._described = True
        append_json(self._folder / "completions.jsonl", rows)

    def finish(self, result: Evaluation, dropped: Sequence[dict[str, str]]) -> None:
        """Write the result, the completions in the order of the records, and the rows left out."""
        write_evaluation(self._folder, result)
        replace_jsonl(self._folder / "quarantine.jsonl", dropped)
