"""``mmr1 report``: read the runs, write or serve the page, print its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from mmr1.report.live import live_app
from mmr1.report.page import write_report
from mmr1.report.run_reader import Run, open_run
from mmr1.serving import http_server, listen

MAX_RUNS = 2


def make_report(folders: Sequence[Path], output: Path | None, media_bytes: int) -> Path:
    """Write the report of one or two runs and return its file.

    Raises:
        ValueError: A directory holds no run, or a file of a run is damaged.
    """
    runs = _open(folders)
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


def serve_report(folders: Sequence[Path], port: int) -> None:
    """Serve the report on this machine only, until interrupted.

    Raises:
        ValueError: A directory holds no run, or the port is taken.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    runs = _open(folders)
    with listen("127.0.0.1", port) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        console.print(f"{address} shows the run as it continues; Ctrl-C ends this")
        try:
            http_server(live_app(runs)).run(sockets=[listener])
        except KeyboardInterrupt:
            console.print("ended")


def _open(folders: Sequence[Path]) -> list[Run]:
    if len(folders) > MAX_RUNS:
        raise ValueError(f"a report shows one run, or two side by side, not {len(folders)}")
    return [open_run(folder) for folder in folders]
