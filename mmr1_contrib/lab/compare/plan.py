"""The plan of a comparison: arms, metrics, and hypotheses about their differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field, ValidationError

from mmr1.config import Config
from mmr1.config.commands import command_named, optional_sections
from mmr1.config.file import load_config, redacted
from mmr1.config.show import flat
from mmr1.section import Section
from mmr1.trainer.preflight import check_evaluation, check_training
from mmr1_contrib.lab.compare.metrics import BEFORE, check_metric


def _check_trains(command: str) -> str:
    """Return a command whose run is a sequence of steps.

    Raises:
        ValueError: If there is no such command.
    """
    declaration = command_named(command)
    if not declaration.trains or declaration.steps is None:
        raise ValueError(f"mmr1 {command} does not train step by step; take train or sft")
    return command


TrainedBy = Annotated[str, AfterValidator(_check_trains)]
"""A training command."""


SEED = "{seed}"
"""In an override, it stands for the seed of the run."""
_OWN = ("seed", "trainer.output_dir")
"""Keys that a comparison sets itself."""
_BEFORE = "before all"
"""The folder of the runs that all arms continue from."""


class Hypothesis(Section):
    """``metric`` is higher in the arm ``more`` than in ``less``."""

    text: str = Field(description="As a sentence")
    metric: str = Field(description="One of metrics")
    more: str = Field(description="An arm")
    less: str = Field(description="Another arm")
    smallest: float = Field(
        description="Smallest difference that would matter. Below 0: more is not worse by as much"
    )


class Plot(Section):
    """The curves of the arms."""

    of: str | None = Field(None, description="A column of metrics.jsonl")
    label: str = Field(description="Of the vertical axis")
    over: str = Field("tenths of the run", description="Of the horizontal axis")
    axis: list[str] = Field([], description="Names of the points")


class RunOfFile(Section):
    """One run of an arm."""

    command: TrainedBy = Field("train", description="What trains")
    base: str | None = Field(None, description="Its configuration; null: that of the comparison")
    overrides: list[str] = Field([], description="Of this run")


class ComparisonFile(Section):
    """A comparison: arms that change one configuration, or run several."""

    title: str = Field("", description="Of the claim that is tested")
    sentence: str = Field("", description="The claim")
    source: str = Field("", description="Who makes it, as Markdown")
    base: str | None = Field(None, description="The configuration, relative to this file")
    overrides: list[str] = Field([], description="Of each run of base, before its own")
    before: list[RunOfFile] = Field([], description="Runs that all arms continue from")
    arms: dict[str, list[str] | list[RunOfFile]] = Field(
        description="Overrides of the arm, or its runs: each trains the model of the one before"
    )
    metrics: dict[str, str] = Field({}, description="Metrics by the name in tables")
    shown: dict[str, str] = Field({}, description="Headings of the metrics that tables show")
    hypotheses: list[Hypothesis] = Field([], description="What is expected")
    plot: Plot | None = Field(None, description="What is drawn")


@dataclass(frozen=True, slots=True)
class Run:
    """A configuration file with overrides, trained once for each seed.

    Attributes:
        name: Name of its folder.
        evaluation: File and overrides of the evaluation after a command that has none.
    """

    name: str
    file: Path
    overrides: tuple[str, ...] = ()
    command: TrainedBy = "train"
    evaluation: tuple[Path, tuple[str, ...]] | None = None

    def arguments(self, seed: int, output: Path, model: Path | None = None) -> list[str]:
        """The overrides of the run with this seed.

        Args:
            model: The checkpoint that it starts from; None: that of its configuration.
        """
        own = [f"seed={seed}", f"trainer.output_dir={self.folder(seed, output)}"]
        return [*_with_seed(self.overrides, seed), *_starting(model), *own]

    def folder(self, seed: int, output: Path) -> Path:
        """The folder of that run."""
        return output / self.name.replace("/", "-") / f"seed{seed}"

    def config(self, seed: int, output: Path, model: Path | None = None) -> Config:
        """The configuration of that run."""
        return load_config(self.file, self.arguments(seed, output, model), self.command)

    def evaluation_arguments(self, seed: int, output: Path, model: Path) -> list[str]:
        """File and overrides of the evaluation of that run's last checkpoint."""
        assert self.evaluation is not None
        file, overrides = self.evaluation
        own = [f"seed={seed}", f"eval.output_dir={self.folder(seed, output) / 'eval'}"]
        return [str(file), *_with_seed(overrides, seed), *_starting(model), *own]


def _with_seed(overrides: Sequence[str], seed: int) -> list[str]:
    return [override.replace(SEED, str(seed)) for override in overrides]


def _starting(model: Path | None) -> list[str]:
    return [] if model is None else [f"model.path={model}"]


@dataclass(frozen=True, slots=True)
class Arm:
    """Runs of which each trains the model of the one before; the last is compared."""

    name: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison.

    Attributes:
        arms: The first is the one that the others are compared with.
        metrics: Metrics by their names in tables.
        hypotheses: None: each arm is compared with the first, in each metric.
        margin: Smallest difference that would matter, where there are no hypotheses.
        headings: Headings of the metrics that tables show, by their names.
    """

    arms: tuple[Arm, ...]
    metrics: Mapping[str, str]
    hypotheses: tuple[Hypothesis, ...] = ()
    margin: float | None = None
    headings: Mapping[str, str] = field(default_factory=dict)
    plot: Plot | None = None

    @property
    def drawn(self) -> Mapping[str, str]:
        """The metrics to plot, by the label of their axis."""
        if self.plot is None or self.plot.of is None:
            return self.metrics
        return {self.plot.label: self.plot.of}


def read_plan(
    arguments: Sequence[str], metrics: Sequence[str], margin: float | None = None
) -> Plan:
    """Configuration files and ``key=value`` for all of them, or one file with arms.

    Raises:
        ValueError: A file, an override or a metric cannot be used, or there is nothing to compare.
    """
    files = [Path(a) for a in arguments if "=" not in a or Path(a).is_file()]
    overrides = tuple(a for a in arguments if "=" in a and not Path(a).is_file())
    for name in (key for key in _OWN for given in overrides if given.startswith(f"{key}=")):
        raise ValueError(f"{name} is set by the comparison for each run; leave it out (--output)")
    named = {metric: metric for metric in metrics}
    if len(files) == 1 and "arms" in _tree(files[0]):
        return _of_file(files[0], overrides, named, margin)
    if len(files) < 2:
        raise ValueError(
            "a comparison needs two configurations or more, or one file with arms "
            "(docs/evaluation.md)"
        )
    named_files = zip(_names(files), files, strict=True)
    arms = tuple(Arm(name, (Run(name, file, overrides),)) for name, file in named_files)
    return _checked(Plan(arms, named, margin=margin))


def read_comparison(path: Path) -> ComparisonFile:
    """A file with arms.

    Raises:
        ValueError: If the file cannot be read; the message names file and key.
    """
    try:
        return ComparisonFile.model_validate(_tree(path))
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ValueError(f"{path}: {'; '.join(lines)}") from error


def _tree(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path}: no such configuration file")
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    return tree if isinstance(tree, dict) else {}


def _of_file(
    path: Path, overrides: tuple[str, ...], metrics: dict[str, str], margin: float | None
) -> Plan:
    given = read_comparison(path)
    if given.base is None:
        raise ValueError(f"{path}: 'base' is missing, the configuration that its arms change")
    arms = tuple(arm_of(path, given, name, overrides) for name in given.arms)
    named = {**given.metrics, **metrics}
    for hypothesis in given.hypotheses:
        for arm in (hypothesis.more, hypothesis.less):
            if arm not in given.arms:
                raise ValueError(f"{path}: a hypothesis names the arm '{arm}', which is not there")
        if hypothesis.metric not in named:
            raise ValueError(
                f"{path}: a hypothesis names the metric '{hypothesis.metric}', which is not there"
            )
    headings = {name: heading for name, heading in given.shown.items() if name in named}
    hypotheses = tuple(given.hypotheses)
    return _checked(Plan(arms, named, hypotheses, margin, headings, given.plot))


def arm_of(path: Path, given: ComparisonFile, name: str, overrides: tuple[str, ...] = ()) -> Arm:
    """The runs of an arm, those of all arms first."""
    own = [run for run in given.arms[name] if isinstance(run, RunOfFile)]
    changes = [override for override in given.arms[name] if isinstance(override, str)]
    own = own or [RunOfFile(overrides=changes)]
    names = [*_numbered(_BEFORE, len(given.before)), *_numbered(f"{name} before", len(own) - 1)]
    runs = [
        _run(path, given, run_name, run, (), overrides)
        for run_name, run in zip(names, [*given.before, *own[:-1]], strict=True)
    ]
    return Arm(name, (*runs, _run(path, given, name, own[-1], overrides, overrides)))


def _numbered(name: str, count: int) -> list[str]:
    return [name if number == 1 else f"{name} {number}" for number in range(1, count + 1)]


def _run(
    path: Path,
    given: ComparisonFile,
    name: str,
    own: RunOfFile,
    overrides: tuple[str, ...],
    in_evaluation: tuple[str, ...],
) -> Run:
    """A run of a file, with the overrides of the command line that its command reads."""
    base = path.parent / str(given.base)
    shared = tuple(given.overrides)
    read = tuple(change for change in overrides if _reads(own.command, change))
    if own.base is None:
        return Run(name, base, (*shared, *own.overrides, *read), own.command)
    evaluation = None if own.command == "train" else (base, (*shared, *in_evaluation))
    changes = (*own.overrides, *read)
    return Run(name, path.parent / own.base, changes, own.command, evaluation)


def _reads(command: TrainedBy, override: str) -> bool:
    section = override.partition("=")[0].partition(".")[0]
    return section not in _unread(command)


def _unread(command: str) -> set[str]:
    """Return the sections that a command on records does not read."""
    declaration = command_named(command)
    return {*optional_sections()} - {*declaration.reads, *declaration.may_read}


def _checked(plan: Plan) -> Plan:
    """Check the plan, so that no later run fails for what can be seen before the first."""
    if not plan.metrics:
        raise ValueError("name what is compared: --metric eval/greedy, or --metric reward/mean")
    for metric in plan.metrics.values():
        check_metric(metric)
    for arm in plan.arms:
        _check_runs(arm, plan.metrics.values())
    trees = {arm.name: _keys_of(arm) for arm in plan.arms}
    for first, second in combinations(trees, 2):
        if trees[first] == trees[second]:
            raise ValueError(f"{first} and {second} are the same configuration")
    return plan


def _check_runs(arm: Arm, metrics: Collection[str]) -> None:
    """Raise ValueError for keys that a run of the arm cannot use, or a metric it lacks."""
    model = None  # of the first run: those of the later ones are not written yet
    records: str | None = None
    for run in arm.runs:
        config = run.config(0, Path("compare"), model)
        model = Path(config.model.path)
        check_training(config, resume=True, samples=config.samples)
        records = config.eval_records if config.samples else None
        if run.evaluation is not None:
            file, *overrides = run.evaluation_arguments(0, Path("compare"), model)
            evaluated = load_config(Path(file), overrides, "eval")
            check_evaluation(evaluated)
            records = evaluated.eval_records
    if records is None and any("eval/" in metric for metric in metrics):
        raise ValueError(f"{arm.name}: a metric of eval/ needs records in trainer.validation.data")
    if len(arm.runs) == 1 and any(BEFORE in metric for metric in metrics):
        raise ValueError(f"{arm.name}: a metric{BEFORE} needs a run before the one compared")


def _keys_of(arm: Arm) -> dict[str, Any]:
    """The arm's command and keys; those of earlier runs behind their place and a colon."""
    found: dict[str, Any] = {}
    for place, run in enumerate(arm.runs, 1):
        prefix = "" if run is arm.runs[-1] else f"{place}: "
        keys = {"command": run.command, **flat(redacted(run.config(0, Path("compare"))))}
        found |= {f"{prefix}{key}": value for key, value in keys.items() if key not in _OWN}
    return found


def differing(arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """The keys in which configurations differ, with the value in each arm.

    Of arms of several commands, without the sections that one of these does not read.
    """
    trees = {arm.name: _keys_of(arm) for arm in arms}
    commands = {arm.runs[-1].command for arm in arms}
    unread = {section for command in commands for section in _unread(command)}
    keys = list(dict.fromkeys(key for tree in trees.values() for key in tree))
    values = {
        key: {name: tree.get(key) for name, tree in trees.items()}
        for key in keys
        if key.partition(".")[0] not in unread
    }
    return {k: v for k, v in values.items() if len({repr(value) for value in v.values()}) > 1}


def _names(files: Sequence[Path]) -> list[str]:
    """The shortest names that differ: without the folder where that is enough."""
    for name in (lambda p: p.stem, lambda p: f"{p.parent.name}/{p.stem}", str):
        names = [name(file) for file in files]
        if max(Counter(names).values()) == 1:
            return names
    twice = next(name for name, count in Counter(names).items() if count > 1)
    raise ValueError(f"{twice} is named twice")
