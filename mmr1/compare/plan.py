"""What is compared: arms, metrics, and what is expected of their differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from mmr1.compare.metrics import parse_metric
from mmr1.config import Config
from mmr1.config.file import load_config, published
from mmr1.config.section import Section
from mmr1.trainer.preflight import check_training

SEED = "{seed}"
"""In an override, it stands for the seed of the run."""
_OWN = ("seed", "trainer.output_dir")
"""Keys that a comparison sets itself."""


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


class ComparisonFile(Section):
    """A comparison whose arms are one configuration with overrides."""

    title: str = Field("", description="Of the claim that is tested")
    sentence: str = Field("", description="The claim")
    source: str = Field("", description="Who makes it, as Markdown")
    base: str | None = Field(None, description="The configuration, relative to this file")
    overrides: list[str] = Field([], description="Of all arms, before their own")
    arms: dict[str, list[str]] = Field(description="Overrides by the name of the arm")
    metrics: dict[str, str] = Field({}, description="Metrics by the name in tables")
    shown: dict[str, str] = Field({}, description="Headings of the metrics that tables show")
    hypotheses: list[Hypothesis] = Field([], description="What is expected")
    plot: Plot | None = Field(None, description="What is drawn")


@dataclass(frozen=True, slots=True)
class Arm:
    """A configuration file with overrides."""

    name: str
    file: Path
    overrides: tuple[str, ...] = ()

    def arguments(self, seed: int, output: Path) -> list[str]:
        """The overrides of the run with this seed."""
        given = [override.replace(SEED, str(seed)) for override in self.overrides]
        return [*given, f"seed={seed}", f"trainer.output_dir={self.folder(seed, output)}"]

    def folder(self, seed: int, output: Path) -> Path:
        """The folder of that run."""
        return output / self.name.replace("/", "-") / f"seed{seed}"

    def config(self, seed: int, output: Path) -> Config:
        """The configuration of that run."""
        return load_config(self.file, self.arguments(seed, output))


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison.

    Attributes:
        arms: The first is the one that the others are compared with.
        metrics: By the name in tables.
        hypotheses: None: each arm is compared with the first, in each metric.
        margin: Smallest difference that would matter, where there are no hypotheses.
        headings: Of the metrics that tables show, by their names.
    """

    arms: tuple[Arm, ...]
    metrics: Mapping[str, str]
    hypotheses: tuple[Hypothesis, ...] = ()
    margin: float | None = None
    headings: Mapping[str, str] = field(default_factory=dict)
    plot: Plot | None = None

    @property
    def drawn(self) -> Mapping[str, str]:
        """The metrics that are drawn, by the label of their axis."""
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
    arms = tuple(Arm(n, f, overrides) for n, f in zip(_names(files), files, strict=True))
    return _checked(Plan(arms, named, margin=margin))


def read_comparison(path: Path) -> ComparisonFile:
    """A file with arms.

    Raises:
        ValueError: It cannot be read; names file and key.
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
    base = path.parent / given.base
    arms = tuple(
        Arm(name, base, (*given.overrides, *own, *overrides)) for name, own in given.arms.items()
    )
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


def _checked(plan: Plan) -> Plan:
    """Raise before the first run what would be found in a later one."""
    if not plan.metrics:
        raise ValueError("name what is compared: --metric eval/greedy, or --metric reward/mean")
    for metric in plan.metrics.values():
        for part in metric.split(" - "):
            parse_metric(part)
    configs = {arm.name: arm.config(0, Path("compare")) for arm in plan.arms}
    for name, config in configs.items():
        check_training(config, resume=True, samples=True)
        evaluates = any("eval/" in metric for metric in plan.metrics.values())
        if evaluates and config.eval_records is None:
            raise ValueError(f"{name}: a metric of eval/ needs records in trainer.validation.data")
    trees = {name: flat_keys(config) for name, config in configs.items()}
    for first, second in combinations(trees, 2):
        if trees[first] == trees[second]:
            raise ValueError(f"{first} and {second} are the same configuration")
    return plan


def differing(arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """The keys in which configurations differ, with the value in each arm."""
    trees = {arm.name: flat_keys(arm.config(0, Path("compare"))) for arm in arms}
    keys = list(dict.fromkeys(key for tree in trees.values() for key in tree))
    values = {key: {name: tree.get(key) for name, tree in trees.items()} for key in keys}
    return {k: v for k, v in values.items() if len({repr(value) for value in v.values()}) > 1}


def flat_keys(config: Config) -> dict[str, Any]:
    """The values of a configuration by dotted key, without those that a comparison sets."""
    found: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), inner)
        elif prefix not in _OWN:
            found[prefix] = value

    add("", published(config))
    return found


def _names(files: Sequence[Path]) -> list[str]:
    """The shortest that differ: without the folder where that is enough."""
    for name in (lambda p: p.stem, lambda p: f"{p.parent.name}/{p.stem}", str):
        names = [name(file) for file in files]
        if max(Counter(names).values()) == 1:
            return names
    twice = next(name for name, count in Counter(names).items() if count > 1)
    raise ValueError(f"{twice} is named twice")
