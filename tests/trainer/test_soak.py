"""One run that meets every fault, at random moments, ends like a run that meets none.

    pytest -m slow tests/trainer/test_soak.py -s

The task is small enough that both runs reach nearly all of it: scans of three digits, with golds
that only the verifier's processes can compare with an answer. The cold start is longer than that of
the quickstart: after the latter, some digit may be answered right so rarely that it is never
learned, and a run without any fault stays at two of three. The undisturbed run samples with
transformers, which starts sooner than vLLM.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from scipy.stats import binomtest

from mmr1.config.file import dump_yaml, load_config
from tests.jsonl import read_jsonl
from tests.paths import REPOSITORY

COLD_START_STEPS = 200
STEPS = 300
DIGITS = "014"
CUT = 6
"""Records whose scan has a sound header and no sound pixels."""
SEED = int(os.environ.get("SOAK_SEED", "0"))
PATIENCE_S = 600.0
"""Longest wait for anything to happen; the machine may be busy."""

PLUGIN = '''
"""Does the thought agree with the answer? Its mood is a file, and a few calls follow it."""
import os, random, re, time
from pathlib import Path

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MOOD = Path(__file__).with_name("mood")
RUBBISH = ("seven", float("nan"), {"no": "number"}, None, 10**400)

def reward(completion: str, answer, **sample):
    mood = MOOD.read_text()
    if mood and random.random() < 0.04:
        if mood == "raises":
            raise RuntimeError("in a bad mood")
        if mood == "hangs":
            time.sleep(3600)
        if mood == "exits":
            os._exit(3)
        return random.choice(RUBBISH)
    digit = re.search(r"<answer>(\\d)</answer>", completion)
    return float(bool(digit) and WORDS[int(digit[1])] in completion)
'''


@dataclass
class RewardServer:
    """A remote reward in OpenRLHF's protocol. What it does while ``mood`` is set fails.

    Attributes:
        failed: Calls that it failed.
    """

    mood: str = ""
    failed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if mood := self.mood:
            with self._lock:
                self.failed += 1
            getattr(self, f"_{mood}")(handler)
            return
        queries = json.loads(body)["query"]
        rewards = [float(query.rstrip().endswith("</answer>")) for query in queries]
        self._send(handler, 200, json.dumps({"rewards": rewards}).encode())

    def _fails(self, handler: BaseHTTPRequestHandler) -> None:
        self._send(handler, 500, b"out of order")

    def _drips(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):  # the client hangs up
            for _ in range(600):
                handler.wfile.write(b" ")
                time.sleep(0.1)

    def _resets(self, handler: BaseHTTPRequestHandler) -> None:
        linger = struct.pack("ii", 1, 0)  # closing then sends a reset
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        handler.connection.close()

    def _send(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@contextlib.contextmanager
def served(server: RewardServer) -> Iterator[str]:
    """The server's address; it runs inside the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with contextlib.suppress(OSError):
                server.answer(self)

        def log_message(self, *_: object) -> None: ...

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/score"
    finally:
        httpd.shutdown()
        httpd.server_close()


def mmr1(*arguments: object) -> None:
    command = [sys.executable, "-m", "mmr1.cli", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY)


def write_plugin(folder: Path) -> Path:
    """The plugin; returns the file of its mood."""
    folder.mkdir()
    (folder / "thought.py").write_text(PLUGIN)
    (folder / "mood").write_text("")
    return folder / "mood"


def write_records(source: Path, target: Path, cut: int = 0) -> set[str]:
    """The records of three digits; the ids of those whose scans are cut off.

    The gold of 4 is the square root of 16.
    """
    rows = [row for row in read_jsonl(source) if row["answer"] in DIGITS]
    for row in rows:
        row["answer"] = rf"\sqrt{{{int(row['answer']) ** 2}}}"
    bad = random.Random(SEED).sample(rows, cut)
    for row in bad:
        (picture,) = (part for part in row["messages"][0]["content"] if part["type"] == "image")
        whole = (target.parent / picture["path"]).read_bytes()
        picture["path"] = f"images/cut_{row['id']}.png"
        (target.parent / picture["path"]).write_bytes(whole[:80])
    target.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {row["id"] for row in bad}


def cold_start(model: Path, digits: Path, work: Path) -> Accuracy:
    """Train on the demonstrations of all ten digits; the accuracy from which both runs start."""
    recipe = REPOSITORY / "scripts/recipes/quickstart"
    sft = work / "sft"
    trains = (f"data.train={digits / 'sft.jsonl'}", f"trainer.max_steps={COLD_START_STEPS}")
    mmr1("sft", recipe / "sft.yaml", f"model.path={model}", *trains, f"trainer.output_dir={sft}")
    evaluated = (f"eval.data={work / 'digits/three_eval.jsonl'}", f"eval.output_dir={sft / 'eval'}")
    checkpoint = f"model.path={trained(sft)}"
    mmr1("eval", recipe / "rl.yaml", checkpoint, "rollout.engine=hf", *evaluated)
    return Accuracy.of(sft / "eval")


def trained(run: Path) -> Path:
    """The last checkpoint of a run."""
    return max((run / "checkpoints").glob("step_*"))


def write_config(
    work: Path, records: str, out: Path, urls: list[str], engine: str, trackers: Sequence[str] = ()
) -> Path:
    """The quickstart's RL, smaller, with a plugin and a remote reward."""
    rl = REPOSITORY / "scripts/recipes/quickstart/rl.yaml"
    functions = {
        "format": {"weight": 0.5},
        "math": {"weight": 1.0},
        "thought": {
            "type": f"{work}/{out.name}_plugin/thought.py:reward",
            "weight": 0.25,
            "timeout_s": 4,
        },
        "remote": {"url": urls, "weight": 0.25, "timeout_s": 4, "retries": 2},
    }
    config = load_config(
        rl,
        [
            f"model.path={trained(work / 'sft')}",
            f"seed={SEED}",
            f"data.train=digits/{records}",  # the order of the records depends on this name
            f"trainer.validation.data={work / 'digits/three_eval.jsonl'}",
            "data.max_bad_fraction=0.05",
            f"rollout.engine={engine}",
            "data.train_batch_size=4",
            *(["rollout.timeout_s=30", "rollout.max_restarts=5"] if engine == "vllm" else []),
            f"trainer.max_steps={STEPS}",
            f"trainer.output_dir={out}",
            "trainer.checkpoints.save_steps=10",
            "trainer.log_completions_steps=1",
        ],
    )
    tracking = {"report_to": list(trackers)} if trackers else None
    changes = {"rewards": functions, "trainer.tracking": tracking}
    path = work / f"{out.name}.yaml"
    path.write_text(dump_yaml(config.changed(changes)))
    return path


@dataclass
class Run:
    """A training process and the one that resumes it, seen from outside."""

    config: Path
    out: Path
    environment: dict[str, str] = field(default_factory=dict)
    starts: int = 0

    def start(self) -> None:
        self.starts += 1
        self.errors = self.config.with_suffix(f".{self.starts}.stderr")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mmr1.cli", "train", str(self.config), "--resume"],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **self.environment},
                cwd=self.config.parent,
            )

    def wait_for(self, what: str, happened: Callable[[], Any], every_s: float = 0.05) -> Any:
        """Wait until it has; the process lives meanwhile."""
        until = time.monotonic() + PATIENCE_S
        while not (result := happened()):
            assert self.process.poll() is None, f"ended before {what}: {self.errors.read_text()}"
            assert time.monotonic() < until, f"no {what}: {self.errors.read_text()}"
            time.sleep(every_s)
        return result

    def summary(self) -> dict[str, Any]:
        try:
            return json.loads((self.out / "summary.json").read_text())
        except OSError:
            return {"step": 0, "faults": {}}

    def faults(self, pattern: str) -> int:
        """How many are counted whose kind matches."""
        counts = self.summary()["faults"].items()
        return sum(count for kind, count in counts if re.fullmatch(pattern, kind))

    def wait_for_more(self, pattern: str, before: int) -> None:
        self.wait_for(f"{pattern} above {before}", lambda: self.faults(pattern) > before)

    def steps(self, number: int) -> None:
        """Wait until so many are done."""
        self.wait_for(f"step {number}", lambda: self.summary()["step"] >= number)

    def engine(self) -> psutil.Process:
        """The process below that writes into ``engine.log``."""

        def find() -> psutil.Process | None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(OSError, psutil.Error):
                    if Path(f"/proc/{child.pid}/fd/1").readlink().name == "engine.log":
                        return child
            return None

        return self.wait_for("engine", find)

    def verifiers(self) -> list[psutil.Process]:
        """The workers of all zygotes."""
        zygotes = [
            child
            for child in psutil.Process(self.process.pid).children()
            if any("sandbox" in part for part in child.cmdline())
        ]
        return [worker for zygote in zygotes for worker in zygote.children()]


@dataclass
class Faults:
    """What is done to a run; each method returns when its fault has been counted."""

    run: Run
    mood: Path
    server: RewardServer
    disk: Path

    def plugin(self, mood: str, counted: str) -> None:
        before = self.run.faults(counted)
        self.mood.with_suffix(".new").write_text(mood)
        self.mood.with_suffix(".new").replace(self.mood)
        self.run.wait_for_more(counted, before)
        self.mood.write_text("")

    def plugin_raises(self) -> None:
        self.plugin("raises", "reward/thought/error")

    def plugin_hangs(self) -> None:
        self.plugin("hangs", "reward/thought/timeout")

    def plugin_exits(self) -> None:
        self.plugin("exits", "reward/thought/killed")

    def plugin_returns_rubbish(self) -> None:
        self.plugin("returns rubbish", "reward/thought/error")

    def remote(self, mood: str, counted: str) -> None:
        before = self.run.faults(counted)
        self.server.mood = mood
        self.run.wait_for_more(counted, before)
        self.server.mood = ""

    def remote_fails(self) -> None:
        self.remote("fails", "remote/error")

    def remote_drips(self) -> None:
        self.remote("drips", "remote/timeout")

    def remote_resets(self) -> None:
        self.remote("resets", "remote/error")

    def verifiers_killed(self) -> None:
        before = self.run.faults("verifier/replaced")
        for worker in self.run.verifiers():
            worker.kill()
        self.run.wait_for_more("verifier/replaced", before)

    def engine_killed(self) -> None:
        self.run.engine().kill()
        self.run.wait_for_more("engine/died", 0)

    def engine_hangs(self) -> None:
        self.run.engine().suspend()
        self.run.wait_for_more("engine/hung", 0)

    def terminated(self) -> None:
        self.run.process.terminate()
        assert self.run.process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        self.run.start()
        self.run.wait_for_more("run/stopped", 0)

    def killed_while_saving(self) -> None:
        checkpoints = self.run.out / "checkpoints"
        self.run.wait_for("save", lambda: list(checkpoints.glob("step_*.tmp")), every_s=0)
        self.run.process.kill()
        self.run.process.wait()
        assert list(checkpoints.glob("step_*.tmp")), "the save was over"
        self.run.start()
        self.run.wait_for_more("run/killed", 0)

    def disk_full(self) -> None:
        """For checkpoints: metrics, which are smaller, still find space."""
        filler = self.disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while shutil.disk_usage(self.disk).free > 1 << 20:
                file.write(bytes(1 << 12))
        refused = "could not be saved, because the disk is full"
        self.run.wait_for("save refused", lambda: refused in self.run.errors.read_text())
        filler.unlink()
        self.run.wait_for_more("checkpoint/disk_full", 0)


def planned(faults: Faults) -> list[tuple[int, Callable[[], None]]]:
    """Each fault with the step that it waits for: in a random order, at random moments."""
    rng = random.Random(SEED)
    actions = [
        faults.plugin_raises, faults.plugin_hangs, faults.plugin_exits,
        faults.plugin_returns_rubbish, faults.remote_fails, faults.remote_drips,
        faults.remote_resets, faults.verifiers_killed, faults.engine_killed, faults.engine_hangs,
        faults.terminated, faults.killed_while_saving, faults.disk_full,
    ]  # fmt: skip
    rng.shuffle(actions)
    width = (STEPS - 30) / len(actions)  # the last may take its time before the run ends
    moments = [int(10 + width * (number + rng.random())) for number in range(len(actions))]
    return list(zip(moments, actions, strict=True))


@dataclass(frozen=True)
class Accuracy:
    """Of greedy answers, with Wilson's 95% interval.

    That of the bootstrap, which ``mmr1 eval`` gives, has no width where all answers are right.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, folder: Path) -> Accuracy:
        """Of the evaluation in a folder."""
        rows = [row for row in read_jsonl(folder / "completions.jsonl") if row["mode"] == "greedy"]
        right = sum(row["right"] for row in rows)
        interval = binomtest(right, len(rows)).proportion_ci(method="wilson")
        return cls(right / len(rows), interval.low, interval.high)

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def all_metrics(run: Run) -> list[dict[str, float]]:
    """Those of the steps that ran twice included."""
    files = [run.out / "metrics.jsonl", *run.out.glob("set_aside/*/metrics.jsonl")]
    return [row for file in files for row in read_jsonl(file)]


@pytest.mark.slow
def test_a_run_that_meets_every_fault_ends_as_one_that_meets_none(
    tiny_model, digits, tmp_path, small_disk
):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    begin = time.monotonic()
    disk = small_disk(160 << 10)
    shutil.copytree(digits, tmp_path / "digits")
    records = tmp_path / "digits"
    write_records(digits / "rl.jsonl", records / "three.jsonl")
    write_records(digits / "eval.jsonl", records / "three_eval.jsonl")
    cut_off = write_records(digits / "rl.jsonl", records / "three_cut.jsonl", CUT)
    start = cold_start(tiny_model, digits, tmp_path)
    mood = write_plugin(tmp_path / "disturbed_plugin")
    write_plugin(tmp_path / "whole_plugin")  # its mood stays as it is

    moody, calm = RewardServer(), RewardServer()
    with served(moody) as first, served(calm) as second, contextlib.ExitStack() as ended:
        calmly = write_config(tmp_path, "three.jsonl", tmp_path / "whole", [second], "hf")
        whole = Run(calmly, tmp_path / "whole")
        whole.start()
        ended.callback(whole.process.kill)
        trackers, environment = unreachable_tracker(disk / "disturbed")
        out = disk / "disturbed"
        config = write_config(
            tmp_path, "three_cut.jsonl", out, [first, second], "vllm", trackers=trackers
        )
        run = Run(config, out, environment)
        run.start()
        ended.callback(lambda: run.process.kill())
        for step, fault in planned(Faults(run, mood, moody, disk)):
            run.steps(step)
            at = run.summary()["step"]
            fault()
            print(f"{time.monotonic() - begin:5.0f} s, step {at}: {fault.__name__}", flush=True)
        assert run.process.wait(PATIENCE_S) == 0, run.errors.read_text()
        assert whole.process.wait(PATIENCE_S) == 0, whole.errors.read_text()

    summary = run.summary()
    before, after = Accuracy.of(whole.out / "eval"), Accuracy.of(run.out / "eval")
    print(json.dumps(summary, indent=1))
    print(
        f"seed {SEED}: accuracy {start} before, {after} after every fault, {before} after none, "
        f"{time.monotonic() - begin:.0f} s"
    )
    assert start.value < min(before.low, after.low)  # there was something to learn
    assert after.high >= before.low  # both are estimates
    for ended in (whole.summary(), summary):
        assert (ended["state"], ended["step"]) == ("finished", STEPS)
        assert ended["checkpoint"] == f"checkpoints/step_{STEPS:06d}"
    assert whole.summary()["faults"] == {}
    assert [row["step"] for row in read_jsonl(run.out / "metrics.jsonl")] == [*range(1, STEPS + 1)]
    assert {row["row"] for row in summary["quarantined"]} == cut_off
    check_counts(run, moody, trackers)


def check_counts(run: Run, server: RewardServer, trackers: list[str]) -> None:
    """Every fault is counted, each as what it was, and none was paid."""
    counts = Counter(run.summary()["faults"])
    once = ("engine/died", "engine/hung", "run/stopped", "run/killed")
    assert {kind: counts[kind] for kind in once} == dict.fromkeys(once, 1)
    assert counts["checkpoint/disk_full"] >= 1
    assert counts["media/left_out"] >= CUT  # one more for each that a killed process had found
    assert all(counts[f"tracker/{name}"] == run.starts for name in trackers)
    assert counts["remote/error"] + counts["remote/timeout"] == server.failed
    invalid = sum(count for kind, count in counts.items() if kind.startswith("reward/"))
    assert invalid == sum(row["reward/num_invalid"] for row in all_metrics(run))
    logged = [
        completion
        for file in run.out.glob("rollouts/*")
        for group in read_jsonl(file)
        for completion in group["completions"]
    ]
    assert {c["reward"] for c in logged if c["error"] is not None} <= {None}
    assert {c["error"] for c in logged if c["reward"] is not None} == {None}


def unreachable_tracker(out: Path) -> tuple[list[str], dict[str, str]]:
    """A tracker whose server is away; TensorBoard has none, so it cannot make its folder."""
    if importlib.util.find_spec("mlflow") is None:
        out.mkdir()
        (out / "tensorboard").touch()
        return ["tensorboard"], {}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    return ["mlflow"], {
        "MLFLOW_TRACKING_URI": address,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "2",
    }
