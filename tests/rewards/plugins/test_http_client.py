"""Remote rewards against servers that really listen."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mmr1.config import RewardFunctionConfig, RewardsConfig
from mmr1.rewards import build_composite_reward
from mmr1.types import Reward, Status
from tests.rewards.helpers import item, think

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


def score(url: str, timeout_s: float = 2.0, **options: Any) -> list[Reward]:
    function = RewardFunctionConfig(use=url, options=options)
    config = RewardsConfig(functions={"remote": function}, timeout_s=timeout_s)
    with build_composite_reward(config) as scorer:
        return scorer.score(ITEMS)


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

    with server(answer) as one, server(answer) as two, server(answer) as three:
        assert [r.value for r in score(f"{one},{two}", urls=[three])] == EXPECTED
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
    with server(right) as good:
        assert [r.value for r in score(f"http://127.0.0.1:1/,{good}")] == EXPECTED


@pytest.mark.parametrize(
    ("answer", "status", "told"),
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
def test_bad_answers_are_no_rewards(answer: Answer, status: Status, told: str) -> None:
    with server(lambda body: answer) as url:
        rewards = score(url, retries=0)
    assert {(reward.value, reward.status) for reward in rewards} == {(None, status)}
    assert told in (rewards[0].error or "")


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
        rewards = score(url, timeout_s=0.2, retries=1)
    assert {reward.status for reward in rewards} == {Status.TIMEOUT}


@pytest.mark.parametrize(
    ("options", "told"), [({"retry": 1}, "no option 'retry'"), ({"urls": ["x"]}, "no http address")]
)
def test_bad_options(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        score("http://127.0.0.1:1/", **options)


# --- the server of mmr1 ------------------------------------------------------------------------


@contextmanager
def serving(functions: dict[str, RewardFunctionConfig]) -> Iterator[str]:
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    from mmr1.rewards.http_server import create_app

    with build_composite_reward(RewardsConfig(functions=functions, timeout_s=1.0)) as scorer:
        config = uvicorn.Config(create_app(scorer), host="127.0.0.1", port=0, log_level="error")
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.02)
        port = running.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            running.should_exit = True
            thread.join(5)


def test_any_reward_can_be_served_and_asked() -> None:
    functions = {"format": RewardFunctionConfig(weight=0.5), "math": RewardFunctionConfig()}
    items = [
        item(think(r"\frac{\sqrt{12}}{2}"), r"\sqrt{3}", prompt="p "),
        item("<answer>1</answer>", "2", prompt="p "),
        item(think("1"), r"\frac{", prompt="p "),
    ]
    config = RewardsConfig(functions=functions)
    with serving(functions) as url, build_composite_reward(config) as scorer:
        remote = RewardFunctionConfig(use=f"{url}/get_reward", timeout_s=20.0)
        with build_composite_reward(RewardsConfig(functions={"remote": remote})) as asking:
            found, direct = asking.score(items), scorer.score(items)
    assert [(r.value, r.status) for r in found] == [(r.value, r.status) for r in direct]
    assert found[0].components == {"remote": 1.5, "remote/format": 1.0, "remote/math": 1.0}


def test_whole_rows_can_be_sent() -> None:
    box = item(think("[0, 0, 50, 100]"), [0, 0, 5, 8], meta={"image_size": [100, 80]})
    with serving({"iou": RewardFunctionConfig(options={"space": "0-1000"})}) as url:
        function = RewardFunctionConfig(use=url, timeout_s=20.0, options={"rows": True})
        with build_composite_reward(RewardsConfig(functions={"remote": function})) as asking:
            (reward,) = asking.score([box])
    assert reward.value == pytest.approx(1.0)


def test_the_server_says_what_it_cannot_read() -> None:
    httpx = pytest.importorskip("httpx")
    with serving({"format": RewardFunctionConfig()}) as url:
        assert httpx.get(f"{url}/health").json() == {"status": "ok", "functions": ["format"]}
        bad = httpx.post(url, json={"query": ["a", "b"], "labels": ["c"]})
        assert (bad.status_code, "different lengths" in bad.text) == (422, True)
        assert httpx.post(url, json={"rows": [{"answer": 1}]}).status_code == 422
