"""``mmr1-data``: prepare datasets.

Each command imports what it needs when it runs, so ``--help`` is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mmr1.contributed import add_commands
from mmr1.logs import failing_output_muted, printable


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; columns of numbers are aligned on the right."""
    console = Console()
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row))
    console.width = max(console.width, 100) if console.is_terminal else 200
    console.print(table)


def print_outcome(manifest: Mapping[str, Any]) -> None:
    """Print how many rows a conversion kept, changed and dropped."""
    counts = manifest["counts"]
    rows = [("rows in", counts["rows"]), ("records out", counts["records"])]
    rows += [
        (f"records {kind}", count) for kind, count in manifest.get("records_by_media", {}).items()
    ]
    rows += [(f"changed: {change}", count) for change, count in manifest["changed"].items()]
    rows += [(f"dropped: {reason}", count) for reason, count in manifest["dropped"].items()]
    print_table(manifest["name"], ("", "count"), rows)
    if unread := manifest.get("columns_not_read"):
        print(f"columns that only rewards may name (no format reads them): {', '.join(unread)}")


app = typer.Typer(
    help="Prepare datasets as canonical records.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Records = Annotated[Path, typer.Argument(help="A record file, or a folder of them")]
Output = Annotated[Path, typer.Option(help="Folder to write, new or empty")]
ApiKeyEnv = Annotated[
    str | None, typer.Option(help="Environment variable that holds the server's key")
]
Seed = Annotated[int, typer.Option(help="Random seed")]


@app.command("list")
def list_() -> None:
    """List the datasets that can be converted or made."""
    from datasets_prep.converters import CONVERTERS
    from datasets_prep.converters.rows import converter_of
    from datasets_prep.generators import GENERATORS
    from mmr1.data.forms import FORMS

    converters = [converter_of(name) for name in sorted({**CONVERTERS.names(), **FORMS.names()})]
    made = [GENERATORS.load(name) for name in sorted(GENERATORS.names())]
    for verb, datasets in (("convert", converters), ("make", made)):
        rows = [(dataset.name, dataset.description) for dataset in datasets]
        print_table(f"mmr1-data {verb}", ("name", "description"), rows)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Dataset to convert or make, or a record file")],
    count: Annotated[int, typer.Option(help="Number of records to show")] = 1,
) -> None:
    """Show the description of a dataset, or the first records of a file."""
    from datasets_prep.show import describe

    for line in describe(name, count):
        typer.echo(line)


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="Dataset to make; 'mmr1-data list' shows them")],
    output: Output,
    seed: Seed = 0,
) -> None:
    """Generate a dataset."""
    from datasets_prep.generators import make

    manifest = make(name, output, seed)
    counts = ", ".join(f"{count:,} {split}" for split, count in manifest["counts"].items())
    typer.echo(f"{name}: {counts} in {output}")


@app.command()
def convert(
    name: Annotated[
        str,
        typer.Argument(help="Dataset, format of its rows, or 'rows'; see 'mmr1-data list'"),
    ],
    source: Annotated[Path, typer.Option("--input", help="The dataset's file or folder")],
    output: Annotated[Path, typer.Option(help="Folder to write; an unfinished one is resumed")],
    media_root: Annotated[
        Path | None,
        typer.Option(help="Folder that media paths are relative to; default: that of the rows"),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core")] = None,
    embed: Annotated[bool, typer.Option(help="Embed the media in the records")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Host that media may be downloaded from; repeatable")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of a folder that holds several, as train")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--map", help="question=COLUMN,answer=COLUMN,image=COLUMN; task=TYPE of all"),
    ] = None,
) -> None:
    """Convert a dataset to canonical records."""
    from datasets_prep.conversion import convert
    from datasets_prep.converters.rows import mapping

    hosts = tuple(allow_host or ())
    named = mapping(columns) if columns is not None else None
    print_outcome(convert(name, source, output, media_root, workers, embed, hosts, split, named))


@app.command()
def validate(
    path: Annotated[Path, typer.Argument(help="A file or folder that data.train reads")],
    deep: Annotated[bool, typer.Option(help="Decode every frame of the videos")] = False,
    needs_task: Annotated[
        bool, typer.Option(help="Each answer needs a task, as the reward auto does")
    ] = True,
) -> None:
    """Check records, media, gold answers and hashes; exit code 2 when anything is wrong."""
    from datasets_prep.validate import validate

    total, problems = validate(path, deep, needs_task)
    for place, problem in problems[:20]:
        typer.echo(f"{place}: {problem}", err=True)
    if problems:
        raise ValueError(f"{path}: {len(problems)} problem(s) in {total:,} records")
    valid = "1 record is valid" if total == 1 else f"{total:,} records are valid"
    typer.echo(f"{path}: {valid}")


@app.command()
def stats(
    path: Annotated[Path, typer.Argument(help="A file or folder that data.train reads")],
    png: Annotated[Path | None, typer.Option(help="Plot the distributions to this file")] = None,
    min_tokens: Annotated[int, typer.Option(help="Minimum vision tokens per image")] = 4,
    max_tokens: Annotated[int, typer.Option(help="Maximum vision tokens per image")] = 1280,
) -> None:
    """Count tasks, sizes, vision tokens and answers."""
    from datasets_prep import stats as figures
    from mmr1.vision.budget import PixelBudget

    budget = PixelBudget(min_tokens * 28 * 28, max_tokens * 28 * 28)
    distributions = figures.collect(path, budget)
    for where, reason in distributions.unusable[:20]:
        typer.echo(f"{where}: {reason}", err=True)
    if distributions.unusable:
        count = len(distributions.unusable)
        typer.echo(
            f"{count:,} of {distributions.samples + count:,} record(s) would be left out: they "
            "cannot be read, or their media cannot be shown to a model",
            err=True,
        )
    if (boxes := distributions.boxes.most_outside()) is not None:
        typer.echo(f"{path}: {boxes}", err=True)
    print_table(str(path), ("", ""), figures.rows(distributions))
    if png is not None:
        figures.draw(distributions, png)
        typer.echo(f"written: {png}")


@app.command()
def split(
    path: Records,
    splits: Annotated[
        list[str], typer.Argument(help="Shares, train=0.9 eval=0.1, or counts, eval=500")
    ],
    output: Output,
    seed: Seed = 0,
) -> None:
    """Split a dataset; samples with the same image stay together."""
    from datasets_prep.outputs import shares
    from datasets_prep.split import split

    counts = split(path, shares(splits), output, seed)
    for file, count in counts.items():
        typer.echo(f"{file}: {count:,} records")
    total = sum(counts.values())
    for file in (file for file, count in counts.items() if not count):
        typer.echo(
            f"warning: {file} is empty: its share of {total:,} records is less than one record, or "
            "than those about one image or video, which stay together",
            err=True,
        )


@app.command()
def mix(
    sources: Annotated[list[str], typer.Argument(help="Record files and shares, e.g. a.jsonl=0.7")],
    output: Annotated[Path, typer.Option(help="Record file to write; - is the standard output")],
    count: Annotated[int, typer.Option(help="Total number of records")],
    seed: Seed = 0,
) -> None:
    """Mix datasets, without repeats."""
    from datasets_prep.mix import mix
    from datasets_prep.outputs import say, shares

    mix(shares(sources), output, count, seed)
    say(output, f"{count:,} records")


@app.command()
def leakage(
    first: Annotated[Path, typer.Argument(help="Training records")],
    second: Annotated[Path, typer.Argument(help="Test records")],
) -> None:
    """List test samples that are in the training data (exit code 2), or look like some of it."""
    from datasets_prep.leakage import find_leaks

    found = find_leaks(first, second)
    for title, matches in (("leaks", found.leaks), ("alike, to be looked at", found.alike)):
        if matches:
            rows = [(m.second, m.first, m.by) for m in matches]
            print_table(title, (str(second), str(first), "by"), rows)
    if found.alike:
        typer.echo(
            f"{len(found.alike):,} of {found.total:,} samples of {second} look like samples of "
            f"{first}; they may be others"
        )
    if found.leaks:
        raise ValueError(
            f"{len(found.leaks):,} of {found.total:,} samples of {second} are in {first}; remove "
            "them from one of the two"
        )
    typer.echo(f"none of {found.total:,} samples of {second} is known to be in {first}")


@app.command("filter")
def filter_(
    path: Records,
    output: Annotated[Path, typer.Option(help="Record file to write; - is the standard output")],
    rule: Annotated[
        str | None, typer.Option(help="E.g. task == 'math' and width > 28 and images == 1")
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="URL of an OpenAI-compatible server, …/v1")
    ] = None,
    model: Annotated[str, typer.Option(help="Model name on the server")] = "",
    samples: Annotated[int, typer.Option(help="Completions per record")] = 8,
    reward: Annotated[
        str,
        typer.Option(help="What decides; a SPEC of mmr1 reward score"),
    ] = "auto",
    prompt_template: Annotated[
        str | None, typer.Option(help="Goes around each question, as data.prompt_template does")
    ] = None,
    low: Annotated[float, typer.Option(help="Minimum pass rate")] = 0.1,
    high: Annotated[float, typer.Option(help="Maximum pass rate")] = 0.9,
    needs_picture: Annotated[
        bool, typer.Option(help="Drop what passes as often without its pictures and videos")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Length limit of a completion")] = 1024,
    api_key_env: ApiKeyEnv = None,
) -> None:
    """Keep the records that satisfy a rule, or whose pass rate is within bounds."""
    from datasets_prep.outputs import say
    from datasets_prep.pass_rate import PassRates
    from datasets_prep.select import keep, keep_band
    from datasets_prep.server import Server
    from mmr1.config.reward_spec import read_spec
    from mmr1.data.templates import load_template

    if needs_picture and server is None:
        raise ValueError("--needs-picture compares pass rates: give --server and --model too")
    if server is not None:
        template = load_template(prompt_template) if prompt_template else None
        with Server(server, model, max_tokens=max_tokens, api_key_env=api_key_env) as at:
            rates = PassRates(at, samples, read_spec(reward), template)
            kept, total = keep_band(path, output, rule, rates, (low, high), needs_picture)
        if rates.without_answer:
            typer.echo(
                f"{rates.without_answer:,} of {rates.replies:,} completions have no answer that "
                "the reward finds, and count 0; --prompt-template asks for its form, --reward "
                "reads another",
                err=True,
            )
    elif rule is not None:
        kept, total = keep(path, output, rule)
    else:
        raise ValueError("nothing to filter by: give --rule, --server or both")
    say(output, f"{kept:,} of {total:,} records")


@app.command()
def ask(
    path: Records,
    output: Annotated[Path, typer.Option(help="Record file to write; - is the standard output")],
    server: Annotated[str, typer.Option(help="URL of an OpenAI-compatible server, …/v1")],
    model: Annotated[str, typer.Option(help="Model name on the server")],
    prompt: Annotated[Path, typer.Option(help="Jinja file with {{ question }}, {{ meta.NAME }} …")],
    into: Annotated[
        str | None,
        typer.Option(help="Column of meta for the reply; default: it is the assistant's answer"),
    ] = None,
    text_only: Annotated[bool, typer.Option(help="Do not show the media")] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature")] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="Length limit of a reply")] = 1024,
    api_key_env: ApiKeyEnv = None,
) -> None:
    """Ask a served model about each record, and keep its reply; resumed when repeated."""
    from datasets_prep.ask import Question
    from datasets_prep.ask import ask as ask_each
    from datasets_prep.outputs import say
    from datasets_prep.server import Server
    from mmr1.templates import text_of

    question = Question(text_of(str(prompt), "--prompt"), into, not text_only)
    with Server(server, model, temperature, max_tokens, api_key_env) as at:
        written, total = ask_each(path, output, at, question)
    say(output, f"{written:,} of {total:,} records; the other replies are not whole")


@app.command()
def demonstrations(
    path: Records,
    completions: Annotated[
        Path, typer.Argument(help="completions.jsonl of mmr1 eval, or the rollouts folder of a run")
    ],
    output: Annotated[Path, typer.Option(help="Record file to write; - is the standard output")],
    function: Annotated[
        str | None,
        typer.Option(help="Reward function that decides; default: what mmr1 eval calls right"),
    ] = None,
    at_least: Annotated[float, typer.Option(help="Its lowest value")] = 1.0,
    per_record: Annotated[int, typer.Option(min=1, help="Most answers to one record")] = 1,
) -> None:
    """Write a model's right completions as demonstrations, for mmr1 sft."""
    from datasets_prep.demonstrations import Standard, write_demonstrations
    from datasets_prep.outputs import say

    standard = Standard(function, at_least, per_record)
    written, answered, total = write_demonstrations(path, completions, output, standard)
    say(output, f"{written:,} records, answers to {answered:,} of {total:,}")


@app.command()
def frames(
    folder: Annotated[Path, typer.Argument(help="Folder with one image per frame, named in order")],
    fps: Annotated[float, typer.Option(help="Frame rate of the images")],
    every: Annotated[int, typer.Option(help="Keep every N-th frame")] = 1,
) -> None:
    """Write FOLDER.frames.json, which makes a folder of frames a video."""
    from datasets_prep.frames import list_frames

    typer.echo(f"{list_frames(folder, fps, every)} written")


add_commands("mmr1.data_cli", {"": app})


def main() -> None:
    """Run the CLI: exit code 0, or 2 with one line on stderr for an error the user can fix.

    The exit code is 1 where the machine is at fault, as with a full disk.
    """
    with failing_output_muted("stderr"):
        try:
            app()
        except (ValueError, OSError) as error:
            print(printable(f"error: {error}"), file=sys.stderr)
            sys.exit(2 if isinstance(error, ValueError) else 1)
