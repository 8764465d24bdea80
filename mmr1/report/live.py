"""``mmr1 report --live``: serve the report of a run that is still training."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mmr1.extras import needs_extra
from mmr1.report.content import media_of, rollout_groups, summarise
from mmr1.report.findings import StepFacts, step_facts
from mmr1.report.page import render, to_json
from mmr1.report.report_command import open_runs
from mmr1.report.run_reader import Run
from mmr1.report.thumbnails import Medium, Picture, thumbnail
from mmr1.serving import http_server, listen

with needs_extra("serve", "mmr1 report --live"):
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

SIDE = 320
"""Longest side of a thumbnail in pixels."""
SETTLED_S = 2.0
"""Seconds since its last write after which a rollout file counts as complete."""
HOSTS = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?")


class Pictures:
    """Thumbnails of the media of the rollouts read so far, made on first request."""

    def __init__(self) -> None:
        self._media: dict[str, Medium] = {}
        self._thumbnails: dict[str, Picture] = {}
        self._lock = threading.Lock()  # the video decoder is not parallel anyway

    def add(self, media: Mapping[str, Medium]) -> None:
        self._media.update(media)

    def get(self, digest: str) -> Picture:
        """Raises KeyError for a medium of a rollout that was not read."""
        with self._lock:
            if digest not in self._thumbnails:
                self._thumbnails[digest] = thumbnail(self._media[digest], SIDE)
            return self._thumbnails[digest]


class LiveReport:
    """The server's answers by path."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._pictures = Pictures()
        self._facts: list[dict[int, StepFacts]] = [{} for _ in runs]
        self._routes: dict[str, Callable[..., Any]] = {
            r"/summary": self.summary,
            r"/rollouts/(\d+)/(\d+)": self.rollouts,
            r"/media/(\w+)": self.picture,
        }

    def page(self) -> str:
        """The page without rollouts and media, which it requests later."""
        return render(self.summary())

    def answer(self, path: str) -> Any:
        """The JSON value at a path. Raises KeyError where there is none."""
        for pattern, route in self._routes.items():
            if match := re.fullmatch(pattern, path):
                return route(*match.groups())
        raise KeyError(path)

    def summary(self) -> dict[str, Any]:
        summary = summarise(self._runs, [dict(sorted(facts.items())) for facts in self._facts])
        for run, run_summary in zip(self._runs, summary["runs"], strict=True):
            run_summary["steps"] = [step for step in run_summary["steps"] if _settled(run, step)]
        return {**summary, "live": True}

    def rollouts(self, number: str, step: str) -> list[dict[str, Any]]:
        if int(number) >= len(self._runs):
            raise KeyError(number)
        run = self._runs[int(number)]
        rows = run.rollouts(int(step))
        self._pictures.add(media_of(run, rows))
        self._facts[int(number)][int(step)] = step_facts(rows)
        return rollout_groups(run, rows, self._pictures.get)

    def picture(self, digest: str) -> Picture:
        return self._pictures.get(digest)


def _settled(run: Run, step: int) -> bool:
    """True for a complete file, or one from the future, if the clock was set back."""
    try:
        written = (run.folder / "rollouts" / f"step_{step:06d}.jsonl").stat().st_mtime
    except FileNotFoundError:  # a resumed run has set it aside
        return False
    return abs(time.time() - written) > SETTLED_S


def live_app(runs: Sequence[Run]) -> Starlette:
    """The ASGI application; it answers requests that name this machine as their host."""
    report = LiveReport(runs)

    def answer(request: Request) -> Response:
        # DNS rebinding: another site's host name may resolve to 127.0.0.1. It gets no data.
        if not HOSTS.fullmatch(request.headers.get("host", "")):
            return _response(403, "text/plain", "only for this machine")
        path = request.scope["path"]
        try:
            if path == "/":
                return _response(200, "text/html", report.page())
            return _response(200, "application/json", to_json(report.answer(path)))
        except KeyError:
            return _response(404, "text/plain", "there is no such page")
        except (ValueError, OSError) as error:
            return _response(500, "text/plain", str(error))

    return Starlette(routes=[Route("/{path:path}", answer)])


def _response(code: int, kind: str, text: str) -> Response:
    headers = {"Content-Type": f"{kind}; charset=utf-8", "Cache-Control": "no-store"}
    return Response(text.encode("utf-8", "replace"), code, headers)


def serve_report(folders: Sequence[Path], port: int) -> None:
    """Serve the report on this machine only, until interrupted.

    Raises:
        ValueError: A directory holds no run, or the port is taken.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    runs = open_runs(folders)
    with listen("127.0.0.1", port) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        console.print(f"{address} shows the run as it continues; Ctrl-C ends this")
        try:
            http_server(live_app(runs)).run(sockets=[listener])
        except KeyboardInterrupt:
            console.print("ended")
