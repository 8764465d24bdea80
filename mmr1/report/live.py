"""``mmr1 report --live``: a local server whose page loads rollouts and media on demand."""

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
        summary = summarise(self._runs)
        for run, run_summary in zip(self._runs, summary["runs"], strict=True):
            run_summary["steps"] = [step for step in run_summary["steps"] if _settled(run, step)]
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
    """A server on 127.0.0.1, not yet serving; ``port`` 0 picks a free port.

    Raises:
        ValueError: The port is taken.
    """
    report = LiveReport(runs)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # DNS rebinding: another site's host name may resolve to 127.0.0.1. It gets no data.
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
            """No request log; the terminal shows only the address."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ValueError(
            f"port {port} cannot be used ({error.strerror}); choose another with --port"
        ) from error
