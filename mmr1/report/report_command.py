"""``mmr1 report``: read the runs, write the page, print its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from mmr1.report.page import write_report
from mmr1.report.run_reader import Run, open_run

MAX_RUNS = 2


def make_report(folders: Sequence[Path], output: Path | None, media_bytes: int) -> Path:
    """Write the report of one or two runs and return its file.

    Raises:
        ValueError: A directory holds no run, or a file of a run is damaged.
    """
    runs = open_runs(folders)
    target = output or folders[0] / "report.html"
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("thumbnails", total=None)
        write_report(
            runs,
            target,
            media_bytes,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    console.print(f"{target}: {target.stat().st_size / 1e6:.1f} MB")
    return target


def open_runs(folders: Sequence[Path]) -> list[Run]:
    """Open one run, or two to compare.

    Raises:
        ValueError: If there are more, or a folder holds no run.
    """
    if len(folders) > MAX_RUNS:
        raise ValueError(f"a report shows one run, or two side by side, not {len(folders)}")
    return [open_run(folder) for folder in folders]
