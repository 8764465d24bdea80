"""Remote rewards against servers that really listen."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import build_composite_reward
from mmr1.rewards.http.post import read_json
from mmr1.rewards.plugins.http_client import REPLY_BYTES, REPLY_BYTES_PER_ITEM
from mmr1.types import Reward, Status
from tests.faults import faults_told
from tests.rewards.helpers import item, think
from tests.rewards.plugins.raw_server import (
    DRIP_S,
    OK,
    Behaviour,
    drips,
    raw_server,
    replies,
    silent,
)

Answer = tuple[int, Any]


@contextmanager
def server(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[str]:
    """A server of one function; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, content = answer(body)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Silence."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}/get_reward"
    finally:
        listening.shutdown()
        listening.server_close()


def right(body: dict[str, Any]) -> Answer:
    pairs = zip(body["query"], body["labels"], strict=True)
    return 200, {"rewards": [float(f"<answer>{label}<" in query) for query, label in pairs]}


ITEMS = [item(think(str(n % 3)), 1, prompt="How many? ") for n in range(7)]
EXPECTED = [float(n % 3 == 1) for n in range(7)]


def score(url: str | list[str], timeout_s: float = 2.0, **options: Any) -> list[Reward]:
    function = {"type": "remote", "url": url, **options}
    config = read_rewards({"remote": function}), ScoringConfig(timeout_s=timeout_s)
    with build_composite_reward(*config) as composite_reward:
        return composite_reward.score(ITEMS)


def test_openrlhf_protocol() -> None:
    seen: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> Answer:
        seen.append(body)
        return right(body)

    with server(answer) as url:
        assert [reward.value for reward in score(url)] == EXPECTED
    assert set(seen[0]) == {"query", "prompts", "labels"}
    assert seen[0]["query"][0] == "How many? " + think("0")


def test_several_servers_share_the_items() -> None:
    shares: list[int] = []

    def answer(body: dict[str, Any]) -> Answer:
        shares.append(len(body["query"]))
        return right(body)

    with server(answer) as first, server(answer) as second, server(answer) as third:
        assert [r.value for r in score([first, second, third])] == EXPECTED
    assert sorted(shares) == [1, 3, 3]


def test_a_server_that_stumbles_is_asked_again() -> None:
    calls: list[float] = []

    def answer(body: dict[str, Any]) -> Answer:
        calls.append(time.monotonic())
        return (503, "busy") if len(calls) < 3 else right(body)

    with server(answer) as url:
        assert [reward.value for reward in score(url)] == EXPECTED
    assert calls[2] - calls[1] > calls[1] - calls[0] > 0.15  # the pause doubles


def test_another_server_takes_over() -> None:
    with server(right) as good, faults_told() as told:
        assert [r.value for r in score(["http://127.0.0.1:1/", good])] == EXPECTED
    assert told.counts() == {"remote/error": 1}  # counted, although nothing is lost


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        ((422, "labels missing"), Status.ERROR, "HTTP 422"),
        ((500, "no"), Status.ERROR, "HTTP 500"),
        ((200, b"<html>"), Status.ERROR, ""),
        ((200, {"rewards": [1.0]}), Status.ERROR, "1 values for 7 completions"),
        ((200, {"rewards": [None] * 7}), Status.ERROR, "returned None"),
        ((200, {"rewards": ["1"] * 7}), Status.ERROR, "returned text"),
        ((200, {"score": 1}), Status.ERROR, "dict for 7 completions"),
    ],
)
def test_bad_answers_are_no_rewards(answer: Answer, status: Status, message: str) -> None:
    with server(lambda body: answer) as url:
        rewards = score(url, retries=0)
    assert {(reward.value, reward.status) for reward in rewards} == {(None, status)}
    assert message in (rewards[0].error or "")


def test_a_client_error_is_not_repeated() -> None:
    calls: list[int] = []
    with server(lambda body: (calls.append(1), (400, "no"))[1]) as url:
        score(url)
    assert len(calls) == 1


def test_a_server_that_sleeps() -> None:
    def answer(body: dict[str, Any]) -> Answer:
        time.sleep(1.0)
        return right(body)

    with server(answer) as url:
        with faults_told() as told:
            rewards = score(url, timeout_s=0.2, retries=1)
        assert told.counts() == {"remote/timeout": 2}
    assert {reward.status for reward in rewards} == {Status.TIMEOUT}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": 1}, "did you mean 'rewards.remote.retries'"),
        ({"url": ["x"]}, "rewards.remote.url: 'x' is not an http address"),
        ({"url": "http://host:port/"}, "not readable"),
        ({"headers": {"Authorization": "two\nlines"}}, "'Authorization' is not one line"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(**{"url": "http://127.0.0.1:1/", **options})


def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    for reward in score("http://127.0.0.1:1/"):
        assert reward.status is Status.ERROR
        assert "the environment's proxy cannot be used" in str(reward.error)


# --- servers that misbehave --------------------------------------------------------------------

DEADLINE_S = 0.5
# A test's bound on a call: far above the deadline on a busy machine, far below a drip's minute.
BOUND_S = 20.0
LIMIT = REPLY_BYTES + len(ITEMS) * REPLY_BYTES_PER_ITEM


def gzipped(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(b" " * (1 << 20)) for _ in range(size >> 20)]
    return b"".join([*pieces, packer.flush()])


def floods(connection: socket.socket) -> None:
    connection.sendall(OK + b"\r\n")
    while True:
        connection.sendall(b" " * 65536)


@pytest.mark.parametrize(
    "behave",
    [
        drips(b"HTTP/1.1 200 "),
        drips(b"HTTP/1.1 200 OK\r\nX-Drip: "),
        drips(OK + b"Content-Length: 100000\r\n\r\n"),
        drips(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        drips(b"HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n"),
        silent,
    ],
    ids=["status line", "headers", "body", "chunks", "error", "silent"],
)
def test_the_deadline_is_that_of_the_whole_call(behave: Behaviour) -> None:
    with raw_server(behave) as url:
        start = time.monotonic()
        rewards = score(url, timeout_s=DEADLINE_S, retries=0)
        assert time.monotonic() - start < BOUND_S
    assert {(reward.value, reward.status) for reward in rewards} == {(None, Status.TIMEOUT)}
    assert "no answer within 0.5 s" in (rewards[0].error or "")


def test_the_deadline_holds_while_the_request_is_sent() -> None:
    long = [item(think("1"), 1, prompt="p" * (32 << 20))]
    with raw_server(silent, reads=False) as url:
        part = {"type": "remote", "url": url, "retries": 0}
        config = read_rewards({"remote": part}), ScoringConfig(timeout_s=DEADLINE_S)
        with build_composite_reward(*config) as scorer:
            start = time.monotonic()
            (reward,) = scorer.score(long)
            assert time.monotonic() - start < BOUND_S
    assert reward.status is Status.TIMEOUT


@pytest.mark.parametrize(
    ("behave", "told"),
    [
        (floods, f"longer than {LIMIT:,} bytes"),
        (replies(b" " * (LIMIT + 1)), f"longer than {LIMIT:,} bytes"),
        (replies(gzipped(100 << 20), b"Content-Encoding: gzip\r\n"), "longer than"),
        (replies(b"{}", b"Content-Encoding: gzip\r\n"), "compressed reply is broken"),
        (replies(gzipped(1 << 20)[:-9], b"Content-Encoding: gzip\r\n"), "ends early"),
        (replies(b"{}", b"Content-Encoding: br\r\n"), "compressed as 'br'"),
        (replies(b'{"rewards": ' + b"[" * 200_000), "nests deeper than 32"),
        (replies(b'{"a":' * 100_000), "nests deeper than 32"),
        (replies(b"\xff\xfe"), "not JSON"),
        (replies(b'{"rewards": [' + b"9" * 10_000 + b"]}"), "not JSON"),
        (lambda connection: connection.sendall(OK + b"Content-Length: 99\r\n\r\n{"), "closed"),
        (lambda connection: None, "disconnected"),
        (lambda connection: connection.sendall(b"SSH-2.0-x\r\n\r\n"), "http"),
    ],
    ids=[
        "flood",
        "one byte too long",
        "gzip bomb",
        "no gzip",
        "half a gzip",
        "brotli",
        "deep list",
        "deep object",
        "no text",
        "endless number",
        "closes early",
        "closes at once",
        "another protocol",
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_so(behave: Behaviour, told: str) -> None:
    with raw_server(behave) as url:
        tracemalloc.start()
        start = time.monotonic()
        rewards = score(url, timeout_s=20.0, retries=0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert time.monotonic() - start < DRIP_S
    assert {(reward.value, reward.status) for reward in rewards} == {(None, Status.ERROR)}
    assert told.lower() in (rewards[0].error or "").lower()
    assert peak < 40 << 20


def test_a_reply_as_long_as_the_limit_is_read() -> None:
    body = json.dumps({"rewards": [0.5] * 7}).encode()
    packed = zlib.compress(body.ljust(LIMIT))
    with (
        raw_server(replies(body.ljust(LIMIT))) as plain,
        raw_server(replies(packed, b"Content-Encoding: deflate\r\n")) as compressed,
    ):
        for url in (plain, compressed):
            assert [reward.value for reward in score(url, timeout_s=20.0)] == [0.5] * 7


def test_a_bad_number_leaves_the_other_completions_whole() -> None:
    body = b'{"rewards": [1, NaN, 1e999, -Infinity, "1", null, 0.25]}'
    with raw_server(replies(body)) as url:
        rewards = score(url)
    assert [reward.value for reward in rewards] == [1.0, None, None, None, None, None, 0.25]
    assert {reward.status for reward in rewards[1:6]} == {Status.ERROR}
    assert "not finite" in (rewards[1].error or "")


def test_a_bad_server_leaves_the_other_shares_whole() -> None:
    with raw_server(silent) as bad, server(right) as good:
        rewards = score([bad, good], timeout_s=2.0, retries=0)
    assert [reward.status for reward in rewards[:4]] == [Status.TIMEOUT] * 4
    assert [reward.value for reward in rewards[4:]] == EXPECTED[4:]


def test_an_error_that_claims_to_be_fine_is_an_error() -> None:
    statuses = ["ok", "killed", "timeout", "nonsense", [], None, "no_answer"]
    answer = {"rewards": [1.0] * 7, "status": statuses, "error": ["x"] * 6 + [None]}
    with server(lambda body: (200, answer)) as url:
        rewards = score(url)
    assert [reward.status for reward in rewards] == [
        Status.ERROR,
        Status.KILLED,
        Status.TIMEOUT,
        Status.ERROR,
        Status.ERROR,
        Status.ERROR,
        Status.OK,
    ]
    assert rewards[6].value == 1.0


def test_a_log_called_score_does_not_replace_the_reward() -> None:
    logs = {"score": [9.0] * 7, "overall": [8.0] * 7, "length": [7.0] * 7}
    with server(lambda body: (200, {"rewards": [0.5] * 7, "extra_logs": logs})) as url:
        rewards = score(url)
    assert [reward.value for reward in rewards] == [0.5] * 7
    assert rewards[0].components == {"remote": 0.5, "remote/length": 7.0}


def test_what_stands_beside_the_rewards_is_logged() -> None:
    """As LMM-R1's verifier and MM-Eureka's rule answer."""
    parts = {"format_rewards": [0.5] * 7, "acc_rewards": [1.0] * 7, "scores": [3.0] * 7}
    with server(lambda body: (200, {"rewards": [1.5] * 7, **parts})) as url:
        rewards = score(url)
    assert rewards[0].components == {
        "remote": 1.5, "remote/format_rewards": 0.5, "remote/acc_rewards": 1.0
    }  # fmt: skip


def test_a_redirect_is_not_followed() -> None:
    calls: list[int] = []
    with server(lambda body: (calls.append(1), right(body))[1]) as other:
        reply = b"HTTP/1.1 307 Go\r\nContent-Length: 0\r\nLocation: %s\r\n\r\n" % other.encode()
        with raw_server(lambda connection: connection.sendall(reply)) as url:
            rewards = score(url, retries=0)
    assert calls == []
    assert {(reward.value, reward.status) for reward in rewards} == {(None, Status.ERROR)}
    assert "a redirect to 127.0.0.1, which is not followed" in (rewards[0].error or "")


def test_a_server_that_is_busy_is_asked_again() -> None:
    calls: list[int] = []

    def answer(body: dict[str, Any]) -> Answer:
        calls.append(1)
        return (429, "slow down") if len(calls) < 2 else right(body)

    with server(answer) as url:
        assert [reward.value for reward in score(url)] == EXPECTED


def test_a_record_that_is_no_json_is_an_error() -> None:
    part = {"type": "remote", "url": "http://127.0.0.1:1/"}
    with build_composite_reward(read_rewards({"remote": part})) as scorer:
        (reward,) = scorer.score([item(think("1"), {1, 2})])
    assert reward.status is Status.ERROR
    assert "cannot be sent as JSON" in (reward.error or "")


def test_credentials_are_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Not by an error that repeats what was sent, nor by a log at its most talkative."""
    secrets = ["hunter22", "tok-4711-abc", base64.b64encode(b"alice:hunter22").decode()]
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            received.append(str(self.headers))
            self.send_response(500)
            self.end_headers()
            self.wfile.write(b"x" * 150 + str(self.headers).encode())

        def log_message(self, *args: object) -> None:
            """Silence."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    place = f"127.0.0.1:{listening.server_port}/score"
    with caplog.at_level(logging.DEBUG):
        rewards = score(
            f"http://alice:hunter22@{place}", headers={"X-Key": "Bearer tok-4711-abc"}, retries=0
        )
    listening.shutdown()
    listening.server_close()
    assert all(secret in received[0] for secret in secrets[1:])
    assert f"http://{place}: HTTP 500" in (rewards[0].error or "")
    shown = [caplog.text, *(reward.error or "" for reward in rewards)]
    assert not [secret for secret in secrets for text in shown if secret in text]
    assert caplog.text  # httpx did log the request
    with pytest.raises(ValueError, match="address") as error:
        score("http://alice:hunter22@/")
    assert "hunter22" not in str(error.value)


def test_it_can_be_asked_where_an_event_loop_runs() -> None:
    async def ask(url: str) -> list[Reward]:
        return score(url)

    with server(right) as url:
        assert [reward.value for reward in asyncio.run(ask(url))] == EXPECTED


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": "[[[[\\"[["}', {"a": '[[[["[['}),
        (b"[" * 32 + b"]" * 32, None),
        (b'["]", "]", [1]]', ["]", "]", [1]]),
    ],
)
def test_brackets_in_text_are_no_nesting(data: bytes, value: Any) -> None:
    assert value is None or read_json(data) == value
    read_json(data)


@pytest.mark.parametrize("data", [b"[" * 33 + b"]" * 33, b"[" + b"[]," * 1_000_001 + b"0]"])
def test_json_is_refused_before_it_is_built(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"its JSON (nests|holds)"):
        read_json(data)


# --- the server of mmr1 ------------------------------------------------------------------------


@contextmanager
def serving(spec_parts: dict[str, Any], **options: Any) -> Iterator[str]:
    pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    from mmr1.rewards.http_server import create_app
    from mmr1.serving import http_server, listen

    with build_composite_reward(read_rewards(spec_parts), ScoringConfig(timeout_s=1.0)) as scorer:
        running = http_server(create_app(scorer, **options))
        sockets = [listen("127.0.0.1", 0)]
        thread = threading.Thread(target=running.run, args=(sockets,), daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.02)
        port = sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            running.should_exit = True
            thread.join(5)


def test_any_reward_can_be_served_and_asked() -> None:
    functions = {"format": {"weight": 0.5}, "math": {}}
    items = [
        item(think(r"\frac{\sqrt{12}}{2}"), r"\sqrt{3}", prompt="p "),
        item("<answer>1</answer>", "2", prompt="p "),
        item(think("1"), r"\frac{", prompt="p "),
    ]
    with (
        serving(functions) as url,
        build_composite_reward(read_rewards(functions)) as composite_reward,
    ):
        remote = {"type": "remote", "url": f"{url}/get_reward", "timeout_s": 20.0}
        with build_composite_reward(read_rewards({"remote": remote})) as asking:
            remote_rewards, direct = asking.score(items), composite_reward.score(items)
    assert [(r.value, r.status) for r in remote_rewards] == [(r.value, r.status) for r in direct]
    assert remote_rewards[0].components == {"remote": 1.5, "remote/format": 1.0, "remote/math": 1.0}


def test_whole_rows_can_be_sent() -> None:
    box = item(think("[0, 0, 50, 100]"), [0, 0, 5, 8], meta={"image_size": [100, 80]})
    with serving({"iou": {"space": "0-1000"}}) as url:
        function = {"type": "remote", "url": url, "timeout_s": 20.0, "rows": True}
        with build_composite_reward(read_rewards({"remote": function})) as remote_reward:
            (reward,) = remote_reward.score([box])
    assert reward.value == pytest.approx(1.0)


def test_the_server_says_what_it_cannot_read() -> None:
    httpx = pytest.importorskip("httpx")
    with serving({"format": {}}) as url:
        assert httpx.get(f"{url}/health").json() == {"status": "ok", "functions": ["format"]}
        bad = httpx.post(url, json={"query": ["a", "b"], "labels": ["c"]})
        assert (bad.status_code, "different lengths" in bad.text) == (422, True)
        assert httpx.post(url, json={"rows": [{"answer": 1}]}).status_code == 422


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("original_sizes", {"0": [1, 2]}),
        ("media_sizes", {"0": 1}),
        ("image_grid_thw", "122"),
        ("images", {"0": "a.png"}),
        ("task", {"name": "math"}),
        ("task", ["math"]),
        ("source", 3),
        ("token_ids", 3),
        ("messages", 3),
    ],
)
def test_the_server_names_a_column_of_another_type(name: str, value: Any, tmp_path: Path) -> None:
    httpx = pytest.importorskip("httpx")
    with serving({"auto": {}}, media_root=tmp_path) as url:
        row = {"completion": "a", "answer": 1, "task": "math", name: value}
        refused = httpx.post(url, json={"rows": [row]})
        assert (refused.status_code, "row 0" in refused.text) == (422, True)


def test_the_server_bounds_a_request() -> None:
    httpx = pytest.importorskip("httpx")
    headers = {"Content-Type": "application/json"}
    with serving({"format": {}}, max_body=100_000) as url:
        long = json.dumps({"query": ["x" * 100_000]}).encode()
        pieces = (long[start : start + 1000] for start in range(0, len(long), 1000))
        for content in (long, pieces):  # with a declared length, and in chunks without one
            refused = httpx.post(url, content=content, headers=headers)
            assert (refused.status_code, "longer than 100,000 bytes" in refused.text) == (413, True)
        for body, told in (
            (b"[" * 50_000, "nests deeper"),
            (b'{"rows": [' + b'{"a":' * 10_000, "nests deeper"),
            (b"{", "not JSON"),
            (b'{"query": 3}', "query"),
            (b'{"query": ["a"], "labels": [1e400]}', "1e400 is not a finite number"),
            (b'{"query": ["a"], "labels": [NaN]}', "NaN is not a finite number"),
        ):
            refused = httpx.post(url, content=body, headers=headers)
            assert (refused.status_code, told in refused.text) == (422, True)
        good = httpx.post(url, json={"query": ["<think>a</think><answer>b</answer>"]})
        assert good.json()["rewards"] == [1.0]


def test_a_lone_surrogate_is_scored_and_told_escaped() -> None:
    httpx = pytest.importorskip("httpx")
    with serving({"count": {}}) as url:
        rows = [
            {"completion": "a", "answer": "\\ud800"},
            {"completion": "<answer>4</answer>", "answer": 4},
        ]
        body = json.dumps({"rows": rows}).replace("\\\\ud800", "\\ud800")
        answer = httpx.post(url, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["rewards"]) == (200, [None, 1.0])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic !"}, 401),
        ({"Authorization": "Bearer s3cret"}, 200),
        ({"Authorization": "Bearer s3cret", "Host": "rebound.example"}, 421),
        ({"Authorization": "Bearer s3cret", "Host": "localhost:1"}, 200),
        ({"Authorization": "Bearer s3cret", "Origin": "https://elsewhere.example"}, 403),
        ({"Authorization": "Bearer s3cret", "Origin": "null"}, 403),
        ({"Authorization": "Bearer s3cret", "Content-Type": "text/plain"}, 415),
    ],
)
def test_whom_the_server_answers(headers: dict[str, str], status: int) -> None:
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("fastapi")
    from mmr1.rewards.http.guard import guard_of

    with serving({"format": {}}, guard=guard_of("127.0.0.1", "s3cret")) as url:
        given = {"Content-Type": "application/json", **headers}
        answer = httpx.post(url, content=b'{"query": ["a"]}', headers=given)
        assert answer.status_code == status
        if "Host" in headers and status != 200:
            assert httpx.get(f"{url}/health", headers=given).status_code == status


def test_a_served_reward_is_asked_with_its_token_as_a_password() -> None:
    from mmr1.rewards.http.guard import guard_of

    with serving({"format": {}}, guard=guard_of("0.0.0.0", "s3cret")) as url:
        assert score(url)[0].value is None
        scored = score(url.replace("http://", "http://any:s3cret@"))
        assert None not in [reward.value for reward in scored]


def test_pictures_in_requests_stay_below_the_media_root(tmp_path: Path) -> None:
    httpx = pytest.importorskip("httpx")
    root, outside = tmp_path / "root", tmp_path / "passport.png"
    root.mkdir()
    (root / "a.png").write_bytes(b"picture")
    outside.write_bytes(b"a scan")
    (root / "link.png").symlink_to(outside)
    with (root / "large.png").open("wb") as file:
        file.truncate((32 << 20) + 1)
    (tmp_path / "opens.py").write_text(
        "def reward(completion, answer, image_path):\n"
        "    return float(len(open(image_path[0], 'rb').read()))\n"
    )
    function = {"type": f"{tmp_path}/opens.py:reward", "sandbox": None}

    def asked(url: str, row: dict[str, Any]) -> tuple[int, Any]:
        answer = httpx.post(url, json={"rows": [{"completion": "a", **row}]}, timeout=30)
        return answer.status_code, answer.json()

    with serving({"opens": function}, media_root=root) as url:
        for name in ("images", "image_path"):
            status, answer = asked(url, {name: ["a.png"]})
            assert (status, answer["rewards"]) == (200, [7.0])
            outer = (str(outside), "../passport.png", "link.png")
            for refused in (*outer, "none.png", "large.png", 3):
                status, answer = asked(url, {name: [refused]})
                assert status == 422
                assert name in answer["detail"]
        assert asked(url, {"image_path": "a.png"})[1]["rewards"] == [None]  # "/" is not a file
        assert asked(url, {"images": ["a.png"] * 65})[0] == 422
        assert asked(url, {"row": {"image_path": [str(outside)]}})[0] == 422
    with serving({"format": {}}) as url:
        status, answer = asked(url, {"images": [str(outside)]})
        assert (status, "--media-root" in answer["detail"]) == (422, True)
