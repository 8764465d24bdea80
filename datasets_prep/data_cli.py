"""``mmr1-data``: prepare datasets.

Every command imports its modules when it runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Prepare datasets as canonical records.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Records = Annotated[Path, typer.Argument(help="A record file, or a folder of them")]
Output = Annotated[Path, typer.Option(help="Folder to write, new or empty")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is random")]


@app.command("list")
def list_() -> None:
    """List the datasets that can be converted or made."""
    from datasets_prep.converters import CONVERTERS
    from datasets_prep.generators import GENERATORS
    from datasets_prep.tables import print_table

    for verb, registry in (("convert", CONVERTERS), ("make", GENERATORS)):
        rows = [(name, registry.load(name).description) for name in sorted(registry.names())]
        print_table(f"mmr1-data {verb}", ("name", "what it is"), rows)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Dataset to convert or make, or a record file")],
    count: Annotated[int, typer.Option(help="Records of a file to show")] = 1,
) -> None:
    """Show the facts of a dataset, or the first records of a file."""
    from datasets_prep.show import describe

    for line in describe(name, count):
        typer.echo(line)


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="Dataset to make; 'mmr1-data list' shows them")],
    output: Output,
    seed: Seed = 0,
) -> None:
    """Make a generated or bundled dataset."""
    from datasets_prep.make import make

    manifest = make(name, output, seed)
    counts = ", ".join(f"{count:,} {split}" for split, count in manifest["counts"].items())
    typer.echo(f"{name}: {counts} in {output}")


@app.command()
def convert(
    name: Annotated[str, typer.Argument(help="Converter; 'mmr1-data list' shows them")],
    source: Annotated[Path, typer.Option("--input", help="The dataset's file or folder")],
    output: Annotated[Path, typer.Option(help="Folder to write; an unfinished one is resumed")],
    media_root: Annotated[
        Path | None, typer.Option(help="Folder of the media paths, if not that of the rows")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; one per core by default")] = None,
    embed: Annotated[bool, typer.Option(help="Put the media into the records")] = False,
    parquet: Annotated[
        bool, typer.Option(help="Write records.parquet too, media embedded")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Host that media may be downloaded from; repeatable")
    ] = None,
) -> None:
    """Convert a dataset to canonical records."""
    from datasets_prep.conversion import convert
    from datasets_prep.tables import print_outcome

    hosts = tuple(allow_host or ())
    print_outcome(convert(name, source, output, media_root, workers, embed, hosts, parquet))


@app.command()
def validate(path: Records) -> None:
    """Check records, media, gold answers and hashes; exit code 2 when anything is wrong."""
    from datasets_prep.validate import validate

    total, problems = validate(path)
    for where, what in problems[:20]:
        typer.echo(f"{where}: {what}", err=True)
    if problems:
        raise ValueError(f"{path}: {len(problems)} problem(s) in {total:,} records")
    typer.echo(f"{path}: {total:,} records are valid")


@app.command()
def stats(
    path: Records,
    png: Annotated[Path | None, typer.Option(help="Draw the distributions here")] = None,
    min_tokens: Annotated[int, typer.Option(help="Least vision tokens of an image")] = 4,
    max_tokens: Annotated[int, typer.Option(help="Most vision tokens of an image")] = 1280,
) -> None:
    """Count tasks, sizes, vision tokens and answers."""
    from datasets_prep import stats as figures
    from datasets_prep.record_files import load_all
    from datasets_prep.tables import print_table
    from mmr1.vision.budget import PixelBudget, VideoBudget

    samples = load_all(path)
    budget = PixelBudget(min_tokens * 28 * 28, max_tokens * 28 * 28)
    dataset_stats = figures.collect(samples, budget, VideoBudget())
    print_table(str(path), ("", ""), figures.rows(dataset_stats, len(samples)))
    if png is not None:
        figures.draw(dataset_stats, png)
        typer.echo(f"drawn: {png}")


@app.command()
def split(
    path: Records,
    splits: Annotated[list[str], typer.Argument(help="Name and share, as in train=0.9 eval=0.1")],
    output: Output,
    seed: Seed = 0,
) -> None:
    """Split by share; samples with the same image stay together."""
    from datasets_prep.record_files import load_all
    from datasets_prep.select import save, shares, split

    for name, samples in split(load_all(path), shares(splits), seed).items():
        save(output / f"{name}.jsonl", samples)
        typer.echo(f"{output / name}.jsonl: {len(samples):,} records")


@app.command()
def mix(
    sources: Annotated[list[str], typer.Argument(help="Record file and share, as in a.jsonl=0.7")],
    output: Annotated[Path, typer.Option(help="Record file to write")],
    count: Annotated[int, typer.Option(help="Records in all")],
    seed: Seed = 0,
) -> None:
    """Sample a mixture of datasets, without repeats."""
    from datasets_prep.record_files import load_all
    from datasets_prep.select import mix, save, shares

    shares_by_source = shares(sources)
    samples = mix(
        {name: load_all(Path(name)) for name in shares_by_source}, shares_by_source, count, seed
    )
    save(output, samples)
    typer.echo(f"{output}: {len(samples):,} records")


@app.command()
def leakage(
    first: Annotated[Path, typer.Argument(help="Training records")],
    second: Annotated[Path, typer.Argument(help="Test records")],
) -> None:
    """Find test samples whose image or question is in the training data."""
    from datasets_prep.leakage import find_leaks
    from datasets_prep.record_files import load_all
    from datasets_prep.tables import print_table

    tests = load_all(second)
    matches = find_leaks(load_all(first), tests)
    if matches:
        rows = [(m.second, m.first, m.by) for m in matches]
        print_table("leaks", (str(second), str(first), "by"), rows)
    typer.echo(f"{len(matches):,} of {len(tests):,} samples of {second} are in {first}")


@app.command("filter")
def filter_(
    path: Records,
    output: Annotated[Path, typer.Option(help="Record file to write")],
    rule: Annotated[
        str | None, typer.Option(help="As in: task == 'math' and width > 28 and images == 1")
    ] = None,
    server: Annotated[str | None, typer.Option(help="OpenAI interface of a model, …/v1")] = None,
    model: Annotated[str, typer.Option(help="Name that the server knows")] = "",
    samples: Annotated[int, typer.Option(help="Answers per record")] = 8,
    low: Annotated[float, typer.Option(help="Least share of right answers")] = 0.1,
    high: Annotated[float, typer.Option(help="Greatest share of right answers")] = 0.9,
) -> None:
    """Keep the records that fit a rule, or that a model answers right at some rate."""
    from datasets_prep import select
    from datasets_prep.pass_rate import Server, keep_band
    from datasets_prep.record_files import load_all

    if rule is None and server is None:
        raise ValueError("nothing to filter by: give --rule, --server or both")
    selected = all_samples = load_all(path)
    if rule is not None:
        selected = [sample for sample in selected if select.rule(rule)(sample)]
    if server is not None:
        selected = keep_band(selected, Server(server, model), samples, low, high)
    select.save(output, selected)
    typer.echo(f"{output}: {len(selected):,} of {len(all_samples):,} records")


@app.command()
def frames(
    folder: Annotated[Path, typer.Argument(help="Folder of images, one a frame, in name order")],
    fps: Annotated[float, typer.Option(help="Frames per second of the folder")],
    every: Annotated[int, typer.Option(help="Keep every n-th frame")] = 1,
) -> None:
    """Write FOLDER.frames.json, which makes a folder of frames usable as a video."""
    from datasets_prep.frames import list_frames

    typer.echo(f"{list_frames(folder, fps, every)} written")


def main() -> None:
    """Run the CLI: exit code 0, or 2 with one line on stderr for errors that the user can fix."""
    try:
        app()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
