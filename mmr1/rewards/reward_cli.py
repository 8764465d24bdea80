"""``mmr1 reward``: list, show, score, bench, serve."""

from __future__ import annotations

import inspect
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mmr1.rewards.builtin import DERIVED, REWARDS
from mmr1.rewards.composite import CompositeReward, build_composite_reward
from mmr1.rewards.plugins.columns import ALIASES, COLUMNS
from mmr1.rewards.plugins.item_rows import batches, read_rows, scored_row, to_item
from mmr1.rewards.specs import read_spec
from mmr1.types import Reward

app = typer.Typer(
    no_args_is_help=True, help="Verifiable rewards: look at them, try them, serve them."
)

SPEC_HELP = "a name, name:option=value,..., file.py:function, http://..., or composite.yaml"
_BATCH = 1024
_MEASURED = ("accuracy", "group_accuracy", "shuffled_accuracy")


@contextmanager
def _errors() -> Iterator[None]:
    """A user's mistake is one line, not a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"mmr1 reward: {error}", err=True)
        raise typer.Exit(1) from error


@app.command("list")
def list_rewards() -> None:
    """The rewards that can be named."""
    table = Table(box=None, pad_edge=False)
    table.add_column("reward", no_wrap=True)
    table.add_column("what it pays")
    for name, target in sorted(REWARDS.names().items()):
        builtin = name in REWARDS.builtin
        table.add_row(name, _summary(REWARDS.load(name)) if builtin else f"entry point {target}")
    Console(width=None if Console().is_terminal else 120).print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A built-in reward, or file.py:function")],
) -> None:
    """Semantics, options and examples of a reward."""
    with _errors():
        function = REWARDS.load(name)
    typer.echo(f"{name}: {inspect.getdoc(function) or 'has no documentation'}\n")
    typer.echo("options:")
    for line in _option_lines(name, function):
        typer.echo(f"  {line}")
    typer.echo(f"\nread from the record: {', '.join(_columns_read(function)) or 'the completion'}")
    typer.echo("in a run:")
    typer.echo(
        f"  rewards:\n    functions:\n      {name.rpartition(':')[2]}: "
        f"{{use: '{name}', weight: 1.0}}"
    )


@app.command()
def score(
    reward: Annotated[str, typer.Option(help=SPEC_HELP)],
    input: Annotated[Path, typer.Option(help="JSONL rows {completion, answer, ...}")],
    output: Annotated[Path, typer.Option(help="JSONL rows with reward, parts, status and error")],
    workers: Annotated[int | None, typer.Option(min=1, help="Verifier processes")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for one verdict")] = None,
) -> None:
    """Score a file of completions, in order."""
    with _errors():
        rows = [(row, to_item(row, where)) for row, where in read_rows(input)]
        config = read_spec(reward, workers=workers, timeout_s=timeout)
        start = time.perf_counter()
        with build_composite_reward(config) as scorer, _written(output) as write:
            statuses = _score_all(scorer, rows, write)
        seconds = time.perf_counter() - start
    typer.echo(_told(statuses, seconds, output))


def _score_all(
    scorer: CompositeReward, rows: list[Any], write: Callable[[dict[str, Any]], None]
) -> list[Reward]:
    rewards: list[Reward] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("scoring", total=len(rows))
        for batch in batches(rows, _BATCH):
            found = scorer.score([item for _, item in batch])
            for (row, _), reward in zip(batch, found, strict=True):
                write(scored_row(row, reward))
            rewards += found
            progress.advance(task, len(batch))
    return rewards


@contextmanager
def _written(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A JSONL file that appears when it is whole."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield lambda row: print(json.dumps(row, ensure_ascii=False), file=file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _told(rewards: list[Reward], seconds: float, output: Path) -> str:
    values = [reward.value for reward in rewards if reward.value is not None]
    mean = f"mean {sum(values) / len(values):.4f}" if values else "no mean"
    counts = Counter(reward.status.value for reward in rewards)
    statuses = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"{len(rewards)} rows in {seconds:.2f} s: {mean}; {statuses or 'none'}; in {output}"


@app.command()
def bench(
    verdicts: Annotated[int, typer.Option(min=1, help="Uncached verdicts by algebra")] = 2000,
    workers: Annotated[str, typer.Option(help="Pool sizes, separated by commas")] = "1,2",
) -> None:
    """Verdicts per second on this machine."""
    from mmr1.rewards.bench import run_bench

    with _errors():
        found = run_bench(verdicts, [int(size) for size in workers.split(",")])
    table = Table(box=None, pad_edge=False)
    for column in ("path", "verdicts", "seconds", "verdicts/s"):
        table.add_column(column, justify="left" if column == "path" else "right")
    for line in found:
        table.add_row(
            line.what, f"{line.verdicts:,}", f"{line.seconds:.3f}", f"{line.per_second:,.0f}"
        )
    Console().print(table)


@app.command()
def serve(
    spec: Annotated[str, typer.Argument(help=SPEC_HELP)],
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on")] = 8000,
    workers: Annotated[int | None, typer.Option(min=1, help="Verifier processes")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for one verdict")] = None,
) -> None:
    """Serve a reward over HTTP, in OpenRLHF's protocol."""
    with _errors():
        try:
            import uvicorn

            from mmr1.rewards.http_server import create_app
        except ImportError as error:
            raise ValueError(f"{error}; install it with: pip install 'mmr1[serve]'") from error
        with build_composite_reward(read_spec(spec, workers=workers, timeout_s=timeout)) as scorer:
            typer.echo(f"serving {spec} on http://{host}:{port}/get_reward")
            uvicorn.run(create_app(scorer), host=host, port=port, log_level="warning")


def _summary(function: Any) -> str:
    return (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")


def _option_lines(name: str, function: Any) -> list[str]:
    if inspect.isclass(function):
        return ["those of a built-in, under its name"]
    parameters = inspect.signature(function).parameters.values()
    options = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in COLUMNS]
    lines = [
        f"{p.name}: {p.annotation} = {'required' if p.default is p.empty else repr(p.default)}"
        for p in options
    ]
    if name in DERIVED:
        lines.insert(0, "of: an earlier part, or a built-in accuracy = 'math'")
    return lines or ["none"]


def _columns_read(function: Any) -> list[str]:
    if inspect.isclass(function):
        return ["task"]
    known = {*COLUMNS, *ALIASES}
    parameters = inspect.signature(function).parameters.values()
    return [
        p.name
        for p in parameters
        if p.name in known or (p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in _MEASURED)
    ]


if __name__ == "__main__":
    app()
