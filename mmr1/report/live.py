"""The report while a run goes on: a server for this machine only, which the page asks for more."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mmr1.report.content import media_of, rollout_groups, summarise
from mmr1.report.page import render, to_json
from mmr1.report.run_reader import Run
from mmr1.report.thumbnails import Medium, Picture, thumbnail

SIDE = 320
"""Longest side of a thumbnail in pixels."""
SETTLED_S = 2.0
"""Rollouts written to more recently than this may still grow, and are not shown yet."""
HOSTS = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?")


class Pictures:
    """Thumbnails of the media seen so far, made when first asked for."""

    def __init__(self) -> None:
        self._media: dict[str, Medium] = {}
        self._made: dict[str, Picture] = {}
        self._lock = threading.Lock()  # the video decoder serves one at a time anyway

    def add(self, media: Mapping[str, Medium]) -> None:
        self._media.update(media)

    def get(self, digest: str) -> Picture:
        """Raises KeyError for a medium of no rollout that was read."""
        with self._lock:
            if digest not in self._made:
                self._made[digest] = thumbnail(self._media[digest], SIDE)
            return self._made[digest]


class LiveReport:
    """Answers of the server, by path."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._pictures = Pictures()
        self._routes: dict[str, Callable[..., Any]] = {
            r"/summary": self.summary,
            r"/rollouts/(\d+)/(\d+)": self.rollouts,
            r"/media/(\w+)": self.picture,
        }

    def page(self) -> str:
        """The page, without rollouts and media: it asks for these."""
        return render(self.summary())

    def answer(self, path: str) -> Any:
        """The JSON value at a path. Raises KeyError where there is none."""
        for pattern, route in self._routes.items():
            if match := re.fullmatch(pattern, path):
                return route(*match.groups())
        raise KeyError(path)

    def summary(self) -> dict[str, Any]:
        summary = summarise(self._runs)
        for run, shown in zip(self._runs, summary["runs"], strict=True):
            shown["steps"] = [step for step in shown["steps"] if _settled(run, step)]
        return {**summary, "live": True}

    def rollouts(self, number: str, step: str) -> list[dict[str, Any]]:
        if int(number) >= len(self._runs):
            raise KeyError(number)
        run = self._runs[int(number)]
        rows = run.rollouts(int(step))
        self._pictures.add(media_of(run, rows))
        return rollout_groups(run, rows, self._pictures.get)

    def picture(self, digest: str) -> Picture:
        return self._pictures.get(digest)


def _settled(run: Run, step: int) -> bool:
    file = run.folder / "rollouts" / f"step_{step:06d}.jsonl"
    return time.time() - file.stat().st_mtime > SETTLED_S


def live_server(runs: Sequence[Run], port: int) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 that is not serving yet; ``port`` 0 takes any that is free.

    Raises:
        ValueError: The port is taken.
    """
    report = LiveReport(runs)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Another site's page may point a name of its own at 127.0.0.1; it is told nothing.
            if not HOSTS.fullmatch(self.headers.get("Host", "")):
                self._send(403, "text/plain", "only for this machine")
                return
            try:
                if self.path == "/":
                    self._send(200, "text/html", report.page())
                else:
                    self._send(200, "application/json", to_json(report.answer(self.path)))
            except KeyError:
                self._send(404, "text/plain", "there is no such page")
            except ValueError as error:
                self._send(500, "text/plain", str(error))

        def _send(self, code: int, kind: str, text: str) -> None:
            body = text.encode("utf-8", "replace")
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal is for the address."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ValueError(
            f"port {port} cannot be used ({error.strerror}); choose another with --port"
        ) from error
