"""Results as tables for the terminal: numbers neither wrap nor vanish at 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mmr1.evaluation.benchmarks import Comparison, Results
from mmr1.trainer.validation.evaluate import Mode, Share

FILE_WIDTH = 200  # of tables that are written to a file
NAME_WIDTH = 10
"""Characters of a name that a narrow table leaves to it; a longer one is folded."""

Row = tuple[dict[str, str], dict[str, str]]
"""The names of a row, and its numbers, by column."""


def print_results(results: Results, comparisons: Sequence[Comparison], folder: str | None) -> None:
    """Print a row per model, dataset and decoding; then by kind of prompt; then the comparisons.

    ``folder`` has the completions; None if they were not saved.
    """
    width = None if Console().is_terminal else FILE_WIDTH
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    for rows in (_scores(results), _kinds(results), _comparisons(comparisons)):
        for table in tables(list(rows), console.width):
            console.print(table)
            console.print()
    for line in _unreached(results):
        console.print(line, soft_wrap=True)
    if folder:
        line = f"completions and results: {folder}"
    else:
        line = "completions were not saved; eval.output_dir=DIR saves them, and can be continued"
    console.print(line, soft_wrap=True)


def tables(rows: Sequence[Row], width: int) -> Iterator[Table]:
    """The rows as one table, or as several that have the same names and other numbers.

    A name that is empty in all rows has no column.
    """
    names = [n for n in _columns(r[0] for r in rows) if any(r[0].get(n) for r in rows)]
    numbers = _columns(r[1] for r in rows)
    name_widths = [min(NAME_WIDTH, _width(n, (r[0] for r in rows))) for n in names]
    left = width - sum(w + 2 for w in name_widths)
    chunks: list[list[str]] = []
    room = 0
    for column in numbers:
        needed = _width(column, (r[1] for r in rows)) + 2
        if needed > room:
            chunks.append([])
            room = left
        chunks[-1].append(column)
        room -= needed
    for chunk in chunks:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for name in names:
            table.add_column(name, overflow="fold")
        for column in chunk:
            table.add_column(column, justify="right", no_wrap=True, min_width=len(column))
        for of_row, values in rows:
            cells = [of_row.get(name, "") for name in names]
            table.add_row(*cells, *(values.get(column, "") for column in chunk))
        yield table


def _columns(cells: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(column for of_row in cells for column in of_row))


def _width(column: str, cells: Iterable[Mapping[str, str]]) -> int:
    return max(len(column), *(len(of_row.get(column, "")) for of_row in cells))


def _scores(results: Results) -> Iterator[Row]:
    for (model, data), result in results.items():
        for name, mode in result.modes.items():
            yield {"model": model, "data": data, "decoding": name}, _numbers(mode)


def _numbers(mode: Mode) -> dict[str, str]:
    """Numbers in the order of importance: a narrow terminal has the last in a second table."""
    numbers = {
        "accuracy": f"{mode.accuracy:.3f}",
        "95%": _interval(mode.interval),
        "truncated": f"{mode.truncated / mode.completions:.3f}",
        "invalid": f"{mode.invalid / mode.completions:.3f}",
        "length": f"{mode.length_mean:.1f}",
        "completions": str(mode.completions),
    }
    several = {int(k): value for k, value in mode.pass_at.items() if int(k) > 1}
    numbers |= {f"pass@{k}": f"{several[k]:.3f}" for k in sorted(several)}
    for name, value in (("majority", mode.majority), ("best of n", mode.best_of)):
        if value is not None:
            numbers[name] = f"{value:.3f}"
    numbers |= {f"nats {name}": f"{value:.3f}" for name, value in mode.vision.items()}
    return numbers | {name: f"{value:.3f}" for name, value in mode.components.items()}


def _unreached(results: Results) -> Iterator[str]:
    """Explain an accuracy of 0 of answers that are paid: no answer reached the threshold."""
    for (model, data), result in results.items():
        for name, mode in result.modes.items():
            if mode.at and not any(mode.at.values()) and mode.value_mean > 0:
                least = min(map(float, mode.at))
                names = ", ".join(filter(None, (model, data, name)))
                yield (
                    f"{names}: no answer reached {least:g} (eval.accuracy_thresholds); their mean "
                    f"value is {mode.value_mean:.3f}"
                )


def _kinds(results: Results) -> Iterator[Row]:
    for (model, data), result in results.items():
        for name, mode in result.modes.items():
            for kind, share in mode.by.items():
                names = {"model": model, "data": data, "decoding": name, "kind": kind}
                yield names, _share(share)


def _share(share: Share) -> dict[str, str]:
    return {
        "accuracy": f"{share.accuracy:.3f}",
        "95%": _interval(share.interval),
        "prompts": str(share.prompts),
    }


def _comparisons(comparisons: Sequence[Comparison]) -> Iterator[Row]:
    for c in comparisons:
        result = c.result
        names = {"data": c.data, "decoding": c.mode, "models": f"{c.first} → {c.second}"}
        yield (
            names,
            {
                "difference": f"{result.difference:+.3f}",
                "95%": _interval(result.interval),
                "p": f"{result.p_value:.2g}",
                "better": str(result.better),
                "worse": str(result.worse),
            },
        )


def _interval(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.3f} to {bounds[1]:.3f}"
