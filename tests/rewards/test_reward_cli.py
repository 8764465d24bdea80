from __future__ import annotations

import json
import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mmr1.config.reward_spec import read_spec
from mmr1.reward_cli import app
from mmr1.rewards.plugins.item_rows import scored_row
from mmr1.types import Reward
from tests.rewards.helpers import think
from tests.rewards.plugins.user_functions import DIALECTS, PLUGINS, TEXTS, direct

RUN = CliRunner()


def call(*arguments: object) -> Result:
    return RUN.invoke(app, [str(argument) for argument in arguments])


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def score(tmp_path: Path, spec: str, rows: list[dict[str, Any]], *more: object) -> list[dict]:
    source, target = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    result = call("score", "--reward", spec, "--input", source, "--output", target, *more)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in target.read_text().splitlines()]


def test_a_lone_surrogate_costs_no_verdict(tmp_path: Path) -> None:
    rows = [{"completion": "a \ud800 b", "answer": "4"}, {"completion": think("4"), "answer": "4"}]
    scored = score(tmp_path, "math", rows)
    assert [row["completion"] for row in scored] == [row["completion"] for row in rows]
    assert scored[1]["reward"] == 1


def test_verdicts_of_a_command_that_is_ended_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(row: dict[str, Any], reward: Reward) -> dict[str, Any]:
        if row["n"] == 2:
            raise KeyboardInterrupt
        return scored_row(row, reward)

    monkeypatch.setattr("mmr1.reward_cli.scored_row", interrupted)
    rows = [{"completion": think("4"), "answer": "4", "n": n} for n in range(3)]
    source, target = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    call("score", "--reward", "math", "--input", source, "--output", target)
    assert not target.exists()
    kept = (tmp_path / "out.jsonl.part").read_text().splitlines()
    assert [json.loads(line)["reward"] for line in kept] == [1, 1]


def test_without_a_file_the_rows_are_printed(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"completion": think("4"), "answer": "4"}])
    result = call("score", "--reward", "math", "--input", source)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["reward"] == 1.0
    assert result.stderr.startswith("1 row: ")


def test_score_keeps_rows_and_order(tmp_path: Path) -> None:
    rows = [
        {"completion": think("4"), "answer": "4", "colour": "red"},
        {"completion": think("9^{9^{9^9}}"), "answer": r"\sqrt{2}"},
        {"completion": "4", "answer": "4"},
        {"completion": think("4"), "answer": r"\frac{"},
        {"completion": think(r"\frac{8}{2}"), "answer": 4},
    ]
    scored = score(tmp_path, "math", rows, "--workers", 1, "--timeout", 1)
    assert [row["reward"] for row in scored] == [1.0, None, 0.0, None, 1.0]
    assert [row["status"] for row in scored] == ["ok", "timeout", "no_answer", "bad_gold", "ok"]
    assert scored[0] == {
        **rows[0],
        "reward": 1.0,
        "components": {"math": 1.0},
        "status": "ok",
        "error": None,
    }
    assert "no verdict in 1 s" in scored[1]["error"]


def test_boxes_are_lists(tmp_path: Path) -> None:
    rows = [
        {"completion": think("[5, 5, 10, 10]"), "answer": [10, 10, 20, 20],
         "original_sizes": [[200, 100]], "media_sizes": [[100, 50]]},
        {"completion": think("[5, 5, 10, 10]"), "answer": [[10, 10, 20, 20]],
         "image_size": [200, 100], "resized_size": [100, 50]},
    ]  # fmt: skip
    assert [r["reward"] for r in score(tmp_path, "iou:space=resized", rows)] == [1.0, 1.0]


def test_a_composite_file(tmp_path: Path) -> None:
    composite = tmp_path / "composite.yaml"
    composite.write_text(
        "rewards:\n"
        "  format: {weight: 0.5, gate: 1.0}\n"
        f"  own: {{type: '{PLUGINS}/own.py:reward', weight: 2.0}}\n"
        "scoring: {timeout_s: 5}\n"
    )
    rows = [
        {"completion": think("4"), "answer": 4, "task": "count"},
        {"completion": "<answer>4</answer>", "answer": 4, "task": "count"},
    ]
    scored = score(tmp_path, str(composite), rows)
    assert [row["reward"] for row in scored] == [3.0, 0.0]
    assert scored[0]["components"] == {"format": 1.0, "own": 1.25}


@pytest.mark.parametrize(("file", "function"), DIALECTS)
def test_every_dialect_gives_the_numbers_of_a_direct_call(
    tmp_path: Path, file: str, function: str
) -> None:
    common = {
        "answer": 4,
        "task": "count",
        "source": "unit",
        "colour": "red",
        "question": "How many?",
    }
    chats = function == "accuracy_reward"
    rows = [
        {
            "completion": [{"role": "assistant", "content": text}] if chats else text,
            "prompt": "How many? ",
            "token_ids": [1, 2],
            **common,
        }
        for text in TEXTS
    ]
    scored = score(tmp_path, f"{PLUGINS / file}.py:{function}", rows)
    assert [row["error"] for row in scored] == [None] * 3
    assert [row["reward"] for row in scored] == pytest.approx(direct(file, function))


def test_rows_of_a_prompt_are_a_group(tmp_path: Path) -> None:
    (tmp_path / "size.py").write_text(
        "def reward(completions, **columns):\n    return [len(completions)] * len(completions)\n"
    )
    rows = [
        {"completion": "a", "id": 1}, {"completion": "b", "id": 2}, {"completion": "c", "id": 1},
        {"completion": "d", "prompt": "p"}, {"completion": "e", "prompt": "p"},
        {"completion": "f"}, {"completion": "g"}, {"completion": "h", "group": "p"},
        {"completion": "i", "group": 0}, {"completion": "j", "group": "p"},
    ]  # fmt: skip
    scored = score(tmp_path, f"{tmp_path}/size.py:reward", rows)
    assert [row["reward"] for row in scored] == [2, 1, 2, 2, 2, 1, 1, 2, 1, 2]
    assert "group" not in scored[0]


def test_groups_of_distant_rows_are_scored_whole(tmp_path: Path) -> None:
    (tmp_path / "size.py").write_text(
        "def reward(completions, **columns):\n    return [len(completions)] * len(completions)\n"
    )
    rows = [{"completion": f"{n}", "group": f"p{n % 700}"} for n in range(1500)]
    scored = score(tmp_path, f"{tmp_path}/size.py:reward", rows)
    assert [row["completion"] for row in scored] == [row["completion"] for row in rows]
    assert [row["reward"] for row in scored] == [3 if n % 700 < 100 else 2 for n in range(1500)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"completion": "a"}\nnot json\n', "in.jsonl:2: not valid JSON"),
        ('{"answer": "a"}\n', "in.jsonl:1: a row needs 'completion'"),
        ("[1]\n", "in.jsonl:1: a row is a JSON object"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, content: str, message: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(content)
    result = call("score", "--reward", "format", "--input", source, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.output.replace("\n", "")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("maths", "did you mean 'math'"),
        ("iou:sapce=resized", "did you mean 'rewards.iou.space'"),
        ("missing.yaml", "no such configuration file"),
        ("nothing.py:reward", "no such Python file"),
        ("math:extract=[", "cannot be read"),
    ],
)
def test_a_bad_spec_is_one_line(tmp_path: Path, spec: str, message: str) -> None:
    source = write(tmp_path / "in.jsonl", [{"completion": "a", "answer": "b"}])
    result = call("score", "--reward", spec, "--input", source, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rewards: {format: {weight: .inf}}", "rewards.format.weight"),
        ("rewards: {format: {wieght: 1}}", "rewards.format.wieght"),
        ("rewards: {}", "rewards"),
        ("weights: {format: 1}", "there is no section 'rewards'"),
        ("rewards: {functions: {format: 1}}", "rewards.functions is now"),
        ("rewards: {format: {}, format: {}}", "duplicate"),
        ("rewards: [", ""),
    ],
)
def test_a_bad_composite(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"bad\.yaml") as caught:
        read_spec(str(file))
    assert message in str(caught.value)


def test_a_run_configuration_is_a_composite(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 1\nscoring: {workers: 3}\nrewards: {math: {weight: 2}}\n")
    config = read_spec(str(file), timeout_s=9.0)
    scoring = config.scoring
    assert (scoring.workers, scoring.timeout_s, config.rewards["math"].weight) == (3, 9.0, 2.0)


def test_settings_of_a_spec_are_yaml() -> None:
    spec = "a/b.py:f:x=1,names=[u,v],deep={k: 2},sandbox=null,timeout_s=3"
    function = read_spec(spec).rewards["f"]
    assert function.settings == {"x": 1, "names": ["u", "v"], "deep": {"k": 2}}
    assert (function.type, function.sandbox, function.timeout_s) == ("a/b.py:f", None, 3)


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"completion": "\xff"}', b"{"])
def test_a_line_that_is_no_json_is_named(line: bytes, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(line)
    result = call("score", "--reward", "math", "--input", file)
    assert result.exit_code == 2
    assert "rows.jsonl:1: not valid JSON" in result.output


def test_score_says_time_and_rate(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import time\ndef reward(completion: str) -> float:\n    time.sleep(0.2)\n    return 1.0\n"
    )
    rows = write(tmp_path / "in.jsonl", [{"completion": "a"}] * 3)
    result = call("score", "--reward", f"{slow}:reward", "--input", rows)
    seconds, rate = re.search(r"^([\d.]+) s, (\d+) rows/s$", result.output, re.M).groups()
    assert float(seconds) >= 0.2
    assert float(rate) == pytest.approx(3 / float(seconds), abs=1)


def test_serving_on_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = call("serve", "format", "--port", port)
    assert result.exit_code == 2
    assert f"127.0.0.1 port {port} cannot be used" in result.output
    assert "choose another with --port" in result.output.replace("\n", " ")
    assert "serving" not in result.output


def test_a_server_closes_no_log_of_its_process(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    from mmr1.serving import http_server

    handler = logging.FileHandler(tmp_path / "run.log")
    stream = handler.stream
    http_server(None)
    assert not stream.closed
    handler.close()


@pytest.mark.parametrize(
    ("host", "token", "told"),
    [("127.0.0.1", "", False), ("0.0.0.0", "", True), ("0.0.0.0", "t", False)],
)
def test_a_token_is_made_where_other_machines_reach_the_server(
    monkeypatch: pytest.MonkeyPatch, host: str, token: str, told: bool
) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    testclient = pytest.importorskip("fastapi.testclient")
    served: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: served.append(server))
    monkeypatch.setenv("MMR1_REWARD_TOKEN", token)
    result = call("serve", "format", "--host", host, "--port", 0)
    assert result.exit_code == 0
    assert ("token of this server" in result.output) == told
    app = served[0].config.app
    headers = {"Host": "127.0.0.1", "Content-Type": "application/json"}
    answer = testclient.TestClient(app).post("/", content=b'{"query": ["a"]}', headers=headers)
    assert answer.status_code == (200 if host == "127.0.0.1" else 401)
