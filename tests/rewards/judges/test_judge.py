"""Judges against servers that really listen."""

from __future__ import annotations

import base64
import json
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import build_composite_reward
from mmr1.rewards.builtin.judge import JudgeConfig
from mmr1.rewards.item import RewardItem
from mmr1.rewards.judges.judge import JudgeReward
from mmr1.rewards.judges.replies import read_verdict
from mmr1.types import MediaRef, Message, Sample, Status, TextPart
from tests.faults import faults_told
from tests.rewards.judges.judges import item, judge
from tests.rewards.plugins.raw_server import OK, Behaviour, drips, raw_server, replies, silent

Answer = tuple[int, Any]


@contextmanager
def chat_server(
    answer: Callable[[dict[str, Any]], Answer], headers: dict[str, str] | None = None
) -> Iterator[str]:
    """An OpenAI-compatible server of one function; yields its address up to /v1."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body["authorization"] = self.headers.get("Authorization")
            status, content = answer(body)
            data = json.dumps(content).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Silence."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}/v1"
    finally:
        listening.shutdown()
        listening.server_close()


def said(text: str, finish: str = "stop") -> Answer:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return 200, {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def text_of(body: dict[str, Any]) -> str:
    return "".join(p["text"] for p in body["messages"][-1]["content"] if p["type"] == "text")


def between_lines(body: dict[str, Any]) -> list[str]:
    """The completions as the built-in templates show them."""
    return re.findall(r"-----\n(.*?)\n-----", text_of(body), re.DOTALL)


def test_a_judge_reads_question_answer_and_completion() -> None:
    seen: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> Answer:
        seen.append(body)
        return said(f'Hm. {{"score": {int("four" in between_lines(body)[0])}}}')

    with chat_server(answer) as url:
        rewards = judge(url, [item("It is four."), item("It is five.")], max_tokens=50)
    assert [r.value for r in rewards] == [1.0, 0.0]
    cost = {"liked/calls": 1.0, "liked/prompt_tokens": 7.0, "liked/completion_tokens": 3.0}
    assert rewards[0].components == {"liked": 1.0, **cost}
    body = seen[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.0, 50)
    assert body["messages"][0]["role"] == "system"
    assert "How many in 0?" in text_of(body)
    assert "Reference answer:\n4\n" in text_of(body)


def test_it_is_shown_the_questions_images(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (3, 2), "red").save(path)
    seen: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> Answer:
        seen.append(body)
        return said('{"score": 1}')

    with chat_server(answer) as url:
        judge(url, [item("a", MediaRef("image", path))])
        judge(url, [item("a", MediaRef("image", path))], images=False)
    shown, unseen = (body["messages"][-1]["content"] for body in seen)
    assert [part["type"] for part in shown] == ["image_url", "text"]
    head, _, data = shown[0]["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data) == path.read_bytes()
    assert [part["type"] for part in unseen] == ["text"]


def test_it_is_shown_no_file_of_another_format(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    with chat_server(lambda body: said('{"score": 1}')) as url:
        (reward,) = judge(url, [item("a", MediaRef("image", path))])
    assert reward.value is None
    assert "a.png: not an image (PNG, " in (reward.error or "")


def test_equal_requests_are_asked_once_and_kept_on_disk(tmp_path: Path) -> None:
    calls: list[str] = []

    def answer(body: dict[str, Any]) -> Answer:
        calls.append(text_of(body))
        return said('{"score": 0.5}')

    items = [item("a"), item("a"), item("b")]
    with chat_server(answer) as url:
        first = judge(url, items, cache=tmp_path / "x/replies.sqlite")
        assert len(calls) == 2
        again = judge(url, items, cache=tmp_path / "x/replies.sqlite")
        assert len(calls) == 2
        judge(url, items, cache=tmp_path / "x/replies.sqlite", temperature=0.5)
        assert len(calls) == 4
    assert [r.value for r in first] == [r.value for r in again] == [0.5] * 3
    assert [r.components["liked/calls"] for r in first] == [1, 0, 1]
    assert [r.components["liked/prompt_tokens"] for r in again] == [0, 0, 0]


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """No file of this process grows beyond the cache's present size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(file.stat().st_size for file in path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Its pages are overwritten while it is in use."""
    for file in path.parent.iterdir():
        file.write_bytes(b"\xff" * file.stat().st_size)
    yield


@pytest.mark.parametrize("broken", [full_disk, damaged])
def test_a_cache_that_breaks_is_left_alone(tmp_path: Path, broken: Any) -> None:
    path = tmp_path / "own" / "replies.sqlite"
    with chat_server(lambda body: said('{"score": 0.5}')) as url:
        reward = JudgeReward(JudgeConfig(url=url, model="m", cache=path, timeout_s=10.0))
        assert reward.score([item("a")], [{}])[0].value == 0.5
        with faults_told() as told, broken(path):
            texts = [f"{n} {'long ' * 2000}" for n in range(8)]
            rewards = reward.score([item(text) for text in texts], [{}] * 8)
            again = reward.score([item(text) for text in texts], [{}] * 8)
        reward.close()
    assert [r.value for r in rewards + again] == [0.5] * 16
    assert told.counts() == {"judge/cache": 1}
    assert str(path) in told.faults[0][2]


def test_a_kept_reply_that_other_options_cannot_read(tmp_path: Path) -> None:
    with chat_server(lambda body: said('{"score": 0.5}')) as url:
        cache = tmp_path / "replies.sqlite"
        judge(url, [item("a")], cache=cache)
        (reward,) = judge(url, [item("a")], cache=cache, score_key="mark")
    assert reward.status is Status.ERROR


def test_a_cache_that_is_none_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x" * 5000)
    with pytest.raises(ValueError, match=r"notes\.txt cannot be used.*delete the file, or name"):
        judge("http://127.0.0.1:9/v1", [], cache=tmp_path / "notes.txt")


def longer_wins(body: dict[str, Any]) -> Answer:
    a, b = between_lines(body)
    return said(json.dumps({"winner": "A" if len(a) > len(b) else "B"}))


def first_wins(body: dict[str, Any]) -> Answer:
    return said('{"winner": "A"}')


def test_completions_of_a_prompt_compete() -> None:
    items = [item("a"), item("aaa"), item("aa"), item("bb", group=1), item("b", group=1)]
    with chat_server(longer_wins) as url:
        all_pairs = judge(url, items, against="group", opponents=2)
        ring = judge(url, [item("a" * n) for n in (1, 2, 3, 4)], against="group")
    assert [r.value for r in all_pairs] == [0.0, 1.0, 0.5, 1.0, 0.0]
    assert sum(r.components["liked/calls"] for r in all_pairs) == 2 * (3 + 1)
    assert [r.value for r in ring] == [0.0, 0.5, 0.5, 1.0]  # 1-2, 2-3, 3-4, 1-4


def test_a_preference_for_a_place_cancels() -> None:
    with chat_server(first_wins) as url:
        assert [r.value for r in judge(url, [item("a"), item("b")], against="group")] == [0.5, 0.5]
        assert [r.value for r in judge(url, [item("a")], against="answer")] == [0.5]


def test_against_the_gold_answer() -> None:
    with chat_server(longer_wins) as url:
        rewards = judge(url, [item("a", answer="xx"), item("aaa", answer="xx")], against="answer")
    assert [r.value for r in rewards] == [0.0, 1.0]


def test_what_has_no_opponent() -> None:
    with chat_server(longer_wins) as url:
        equal = judge(url, [item("a"), item("a")], against="group")
        (alone,) = judge(url, [item("a")], against="group")
    assert [r.value for r in equal] == [0.5, 0.5]
    assert alone.value is None
    assert "no other completion of its prompt" in str(alone.error)


def test_a_busy_judge_is_asked_again_when_it_says() -> None:
    calls: list[float] = []

    def answer(body: dict[str, Any]) -> Answer:
        calls.append(time.monotonic())
        return (429, {"error": "slow down"}) if len(calls) == 1 else said('{"score": 1}')

    with chat_server(answer, {"Retry-After": "1"}) as url:
        assert judge(url, [item("a")])[0].value == 1.0
    assert calls[1] - calls[0] >= 1.0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((500, {"error": "broken"}), "HTTP 500"),
        ((401, {"error": "who are you?"}), "HTTP 401"),
        ((200, {"choices": []}), "not a chat completion"),
        ((200, ["no"]), "not a chat completion"),
        (said("I like it."), "the judge's reply has no 'score' in JSON: 'I like it.'"),
        (said('{"score": 11}'), "11 is outside of scale=[0, 1]"),
        (said('{"score": NaN}'), "outside of scale"),
        (said('{"score": "good"}'), "'good', not a number"),
        (said("I think", "length"), "it was cut off, raise max_tokens"),
    ],
)
def test_what_is_no_verdict_is_no_reward(answer: Answer, error: str) -> None:
    with chat_server(lambda body: answer) as url:
        (reward,) = judge(url, [item("a")])
    assert (reward.value, reward.status) == (None, Status.ERROR)
    assert error in str(reward.error)


@pytest.mark.parametrize(
    ("behave", "status", "error"),
    [
        (silent, Status.TIMEOUT, "no answer within 0.3 s"),
        (drips(OK + b"Content-Length: 900\r\n\r\n{"), Status.TIMEOUT, "no answer within 0.3 s"),
        (lambda connection: connection.close(), Status.ERROR, "127.0.0.1"),
        (replies(b'{"choices": [{"mess'), Status.ERROR, "not JSON"),
        (replies(b" " * (2 << 20)), Status.ERROR, "longer than 1,048,576 bytes"),
    ],
)
def test_servers_that_misbehave(behave: Behaviour, status: Status, error: str) -> None:
    with raw_server(behave) as address:
        # Only a server that says nothing is given little time: this machine may be busy.
        timeout_s = 0.3 if status is Status.TIMEOUT else 30.0
        (reward,) = judge(address.removesuffix("/get_reward"), [item("a")], timeout_s=timeout_s)
    assert (reward.value, reward.status) == (None, status)
    assert error in str(reward.error)


def test_one_failed_comparison_leaves_the_others() -> None:
    def answer(body: dict[str, Any]) -> Answer:
        a, b = between_lines(body)
        return (400, {}) if {a, b} == {"a", "aa"} else longer_wins(body)

    with chat_server(answer) as url:
        items = [item("a"), item("aa"), item("aaa")]
        rewards = judge(url, items, against="group", opponents=2)
    assert [r.value for r in rewards] == [0.0, 0.0, 1.0]


def test_no_more_calls_at_a_time_than_allowed() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def answer(body: dict[str, Any]) -> Answer:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return said('{"score": 1}')

    with chat_server(answer) as url:
        judge(url, [item(str(n)) for n in range(12)], concurrency=3)
    assert most == 3


def test_the_key_comes_from_the_environment_and_is_never_shown(monkeypatch) -> None:
    seen: list[str] = []

    def answer(body: dict[str, Any]) -> Answer:
        seen.append(body["authorization"])
        return 400, {"error": f"bad key {body['authorization']}"}

    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    with chat_server(answer) as url:
        (reward,) = judge(url, [item("a")], api_key_env="JUDGE_KEY")
    assert seen == ["Bearer sk-very-secret"]
    assert "HTTP 400" in str(reward.error)
    assert "secret" not in str(reward.error)
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(ValueError, match="environment variable JUDGE_KEY is not set"):
        judge("http://127.0.0.1:1/v1", [], api_key_env="JUDGE_KEY")
    with pytest.raises(ValueError, match=r"did you mean 'rewards\.liked\.api_key_env'"):
        read_rewards(judge_of({"url": "http://a/v1", "model": "m", "api_key": "sk"}))


def judge_of(keys: dict[str, Any]) -> dict[str, Any]:
    return {"liked": {"type": "judge", **keys}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "m"}, "'rewards.liked.url' is missing"),
        ({"url": "http://a/v1", "model": "m", "modle": 1}, "did you mean 'rewards.liked.model'"),
        ({"url": "judge:8000", "model": "m"}, r"rewards.liked.url': .* '\^https\?"),
        ({"url": "http://a/v1", "model": "m", "scale": [1, 1]}, "worst and the best score are eq"),
        ({"url": "http://a/v1", "model": "m", "opponents": 2}, "set against=group"),
        ({"url": "http://a/v1", "model": "m", "score_regex": "x"}, "needs a group"),
    ],
)
def test_settings_that_are_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_rewards(judge_of(options))


@pytest.mark.parametrize(
    ("reply", "options", "score"),
    [
        ('{"score": 1} no: {"score": 0}', {}, 0.0),
        ('```json\n{"why": {"a": 1}, "score": "7"}\n```', {"scale": (1, 10)}, 2 / 3),
        ("Score: 3/5", {"score_regex": r"Score: (\d)", "scale": (1, 5)}, 0.5),
        ("1 is worst: 2", {"score_regex": r"(\d)", "scale": (5, 1)}, 0.75),
        ('{"better": "tie"}', {"score_key": "better", "against": "group"}, 0.5),
        ("[[B]]", {"score_regex": r"\[\[(A|B|C)\]\]", "against": "group"}, 0.0),
        ("[[C]]", {"score_regex": r"\[\[(A|B|C)\]\]", "against": "group"}, 0.5),
    ],
)
def test_verdicts(reply: str, options: dict[str, Any], score: float) -> None:
    read = JudgeConfig(url="http://a/v1", model="m", **options)
    assert read_verdict(reply, read) == pytest.approx(score)


def test_templates_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ question }} {{ meta.level }}: {{ completion }}")
    seen: list[str] = []

    def answer(body: dict[str, Any]) -> Answer:
        seen.append(text_of(body))
        assert [m["role"] for m in body["messages"]] == ["user"]
        return said('{"score": 1}')

    message = Message("user", (TextPart("Why?"),))
    known = RewardItem("so", Sample("s", (message,), meta={"level": 3}))
    with chat_server(answer) as url:
        assert judge(url, [known], template=str(file))[0].value == 1.0
        (unknown,) = judge(url, [item("so")], template=str(file))
    assert seen == ["Why? 3: so"]
    assert "has no attribute 'level'" in str(unknown.error)
    with pytest.raises(ValueError, match=r"unknown judge template 'qualty' \(did you mean"):
        judge("http://127.0.0.1:1/v1", [], template="qualty")


def test_samples_that_cannot_be_judged_are_told_at_load() -> None:
    video = MediaRef("video", Path("a.mp4"))
    options = {"url": "http://127.0.0.1:1/v1", "model": "m", "against": "answer"}
    config = read_rewards({"liked": {"type": "judge", **options}}), ScoringConfig()
    with build_composite_reward(*config) as reward:
        problems = reward.check_gold([item("", answer=None).sample, item("", video).sample])
    assert [message.partition(";")[0] for _, message in problems] == [
        "liked: it has no answer to compare with",
        "liked: a judge is shown images only",
    ]
