"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from mmr1.evaluation.benchmarks import Comparison, Results
from mmr1.trainer.validation.evaluate import Mode

FILE_WIDTH = 200  # of tables that are written to a file


def print_results(results: Results, comparisons: Sequence[Comparison], folder: str | None) -> None:
    """Print a row per model, dataset and decoding; then by kind of prompt; then the comparisons.

    ``folder`` has the completions; None if they were not saved.
    """
    width = None if Console().is_terminal else FILE_WIDTH
    console = Console(width=width, markup=False, emoji=False)
    console.print(_scores(results))
    if any(mode.by for result in results.values() for mode in result.modes.values()):
        console.print(_kinds(results))
    if comparisons:
        console.print(_comparisons(comparisons))
    if folder:
        line = f"completions and results: {folder}"
    else:
        line = "completions were not saved; eval.output_dir=DIR saves them, and can be continued"
    console.print(line, highlight=False, soft_wrap=True)


def _scores(results: Results) -> Table:
    modes = [m for r in results.values() for m in r.modes.values()]
    components = list(dict.fromkeys(name for mode in modes for name in mode.components))
    ks = sorted({int(k) for mode in modes for k in mode.pass_at})
    extra = [f"pass@{k}" for k in ks if k > 1] + (["majority"] if ks else [])
    picked = any(mode.best_of is not None for mode in modes)
    extra += ["best of n"] if picked else []
    columns = (
        "decoding",
        "accuracy",
        "95%",
        *extra,
        *components,
        "length",
        "completions",
        "invalid",
    )
    table = Table("model", "data", *columns)
    for (model, data), result in results.items():
        for name, mode in result.modes.items():
            cells = [f"{mode.accuracy:.3f}", _interval(mode.interval)]
            cells += [_optional(mode.pass_at.get(str(k))) for k in ks if k > 1]
            cells += [_optional(mode.majority)] if ks else []
            cells += [_optional(mode.best_of)] if picked else []
            cells += [_optional(mode.components.get(component)) for component in components]
            table.add_row(model, data, name, *cells, *_counts(mode))
    return table


def _counts(mode: Mode) -> tuple[str, str, str]:
    return f"{mode.length_mean:.1f}", str(mode.completions), str(mode.invalid)


def _kinds(results: Results) -> Table:
    table = Table("model", "data", "decoding", "kind", "prompts", "accuracy", "95%")
    for (model, data), result in results.items():
        for name, mode in result.modes.items():
            for kind, share in mode.by.items():
                numbers = (f"{share.accuracy:.3f}", _interval(share.interval))
                table.add_row(model, data, name, kind, str(share.prompts), *numbers)
    return table


def _comparisons(comparisons: Sequence[Comparison]) -> Table:
    table = Table("data", "decoding", "models", "difference", "95%", "better", "worse", "p")
    for c in comparisons:
        result = c.result
        table.add_row(
            c.data,
            c.mode,
            f"{c.first} → {c.second}",
            f"{result.difference:+.3f}",
            _interval(result.interval),
            str(result.better),
            str(result.worse),
            f"{result.p_value:.2g}",
        )
    return table


def _interval(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.3f} to {bounds[1]:.3f}"


def _optional(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
