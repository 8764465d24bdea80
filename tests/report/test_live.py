"""The live report under many clients, rude clients, and with files that a run moves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.report.run_files import completion, prompt, write_run
from tests.report.serving import serving

CLIENTS, REQUESTS, HALF_OPEN = 300, 1000, 130


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", {1: [prompt("a", [completion("7")])]})


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def test_every_one_of_many_clients_is_answered_beside_silent_ones(run: Path) -> None:
    with serving(run) as address, ExitStack() as silent, ThreadPoolExecutor(CLIENTS) as clients:
        for number in range(HALF_OPEN):
            client = silent.enter_context(connect(address))
            if number % 2:  # one half says nothing at all
                client.sendall(b"GET /summary HTTP/1.1\r\nHost: 127.0")

        def status(_: int) -> int:
            with urllib.request.urlopen(f"{address}/rollouts/0/1", timeout=60) as answer:
                answer.read()
                return answer.status

        statuses = list(clients.map(status, range(REQUESTS)))
    assert statuses == [200] * REQUESTS


@pytest.fixture
def command(run: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "mmr1", "report", str(run), "--live", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    yield process
    process.kill()
    process.communicate()


def test_clients_that_leave_and_ctrl_c_leave_no_traceback(command: subprocess.Popen[str]) -> None:
    assert command.stdout is not None
    address = command.stdout.readline().split()[0]
    for _ in range(50):
        with connect(address) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset
            client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    with connect(address) as half_open:
        half_open.sendall(b"GET /")
        with urllib.request.urlopen(f"{address}summary") as answer:
            assert answer.status == 200
        command.send_signal(signal.SIGINT)
        output, errors = command.communicate(timeout=30)
    assert (command.returncode, output, errors) == (0, "ended\n", "")


def test_a_port_that_is_taken(run: Path, mmr1) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, message = mmr1("report", run, "--live", "--port", port)
    assert code == 2
    assert f"127.0.0.1 port {port} cannot be used" in message
    assert len(message.splitlines()) == 1


def test_a_step_from_the_future_is_shown_and_a_fresh_one_not_yet(run: Path) -> None:
    now = time.time()
    file = run / "rollouts/step_000001.jsonl"
    with serving(run) as address:
        for seconds, steps in ((0, []), (-100, [1]), (100_000, [1])):
            os.utime(file, (now + seconds, now + seconds))
            with urllib.request.urlopen(f"{address}/summary") as answer:
                assert json.loads(answer.read())["runs"][0]["steps"] == steps
