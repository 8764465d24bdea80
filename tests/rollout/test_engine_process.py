"""An engine in its own process: what becomes of the run when it dies, hangs or fails."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
import torch

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.build import check_gpus
from mmr1.rollout.engine_process import EngineError, EngineLostError, EngineProcess
from mmr1.rollout.forking import engine_context
from mmr1.rollout.protocol import Finished, Request, complete
from mmr1.types import Completion, MediaRef, Message, Prompt, RolloutGroup, Sample
from tests.faults import faults_told
from tests.rollout.process_engines import Engine, build, no_media

SAMPLING = SamplingConfig(max_tokens=4)


def refuse(media: object, folder: str) -> Engine:
    raise ValueError("no such model")


def tell(media: object, folder: str) -> Engine:
    imported = "vllm.entrypoints.llm" in sys.modules
    raise ValueError(f"{imported} {os.environ['MARK']} {torch.get_num_threads()} {Path.cwd()}")


def ask(engine: EngineProcess, text: str) -> Completion:
    return complete(engine, [ready(text)])[0].completions[0]


def ready(text: str, *media: MediaRef) -> Request:
    message = Message("user", media)
    return Request(Prompt(Sample("1", (message,)), text, ()), (0,), SAMPLING)


def texts(groups: Sequence[RolloutGroup]) -> list[str]:
    return [group.prompt.text for group in groups]


@pytest.fixture
def method() -> str | None:
    """How the engine's process begins; None for the default."""
    return None


@pytest.fixture
def engine(tmp_path, method):
    context = method and multiprocessing.get_context(method)
    engine = EngineProcess(
        build,
        (str(tmp_path),),
        no_media,
        tmp_path / "engine.log",
        1,
        timeout_s=5,
        restarts=1,
        context=context,
    )
    engine.load({"w": torch.tensor(1.0)}, 1)
    engine.load({"w": torch.tensor(2.5)}, 2)
    yield engine
    engine.close()


@pytest.mark.parametrize(("how", "method"), [("die", None), ("die", "spawn"), ("hang", None)])
def test_a_lost_engine_is_replaced_with_the_weights_it_had_and_asked_again(engine, how, tmp_path):
    before = engine._process.pid
    with faults_told() as told:
        actual = ask(engine, how)
    assert told.counts() == {{"die": "engine/died", "hang": "engine/hung"}[how]: 1}
    assert (actual.text, actual.policy_version) == ("2.5", 2)
    assert engine.restarted == 1
    assert not psutil.pid_exists(before)
    assert "replaced, 1 of 1 times" in (tmp_path / "engine.log").read_text()
    engine.load({"w": torch.tensor(3.0)}, 3)  # the shared memory still connects them
    assert ask(engine, "go on").text == "3.0"


def test_killed_from_outside_while_it_generates(engine):
    pid = engine._process.pid
    threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
    begin = time.monotonic()
    actual = ask(engine, "hang")
    assert actual.text == "2.5"
    assert time.monotonic() - begin < 30


def test_past_the_bound_the_run_ends_with_a_typed_error(engine):
    with pytest.raises(EngineLostError, match=r"died \(exit code 3\); its log is"):
        ask(engine, "always die")
    assert engine.restarted == 1


def test_a_bug_in_the_engine_is_not_asked_again(engine, tmp_path):
    with pytest.raises(EngineError, match="a bug of ours") as failed:
        ask(engine, "fail")
    assert not isinstance(failed.value, EngineLostError)
    assert engine.restarted == 0
    assert ask(engine, "go on").text == "2.5"


def test_what_a_lost_engine_had_is_asked_for_again_and_nothing_else(engine):
    requests = [ready("a"), ready("die"), ready("b")]
    assert texts(complete(engine, requests)) == ["a", "die", "b"]
    assert engine.restarted == 1
    assert engine.poll() == []


def test_an_engine_that_takes_nothing_in_is_lost_too(engine):
    """It hangs with much still to be sent, so the trainer waits inside a send."""
    begin = time.monotonic()
    first = engine.submit([ready("hang")])
    time.sleep(0.5)  # it samples on, and hangs
    long = replace(ready("b"), prompt=Prompt(Sample("1", ()), "b", tuple(range(1_000_000))))
    second = engine.submit([long])
    ended: list[int] = []
    while len(ended) < 2:
        ended += [finished.ticket for finished in engine.poll(1.0)]
    assert sorted(ended) == [*first, *second]
    assert engine.restarted == 1
    assert time.monotonic() - begin < 60


class Idling(Engine):
    """Answers, and finishes nothing, the first time."""

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        (self._folder / f"polled {os.getpid()}").touch()
        time.sleep(0.01)
        return super().poll() if len(list(self._folder.glob("polled *"))) > 1 else []


def test_an_engine_that_finishes_nothing_has_hung(tmp_path):
    process = EngineProcess(
        Idling, (str(tmp_path),), no_media, tmp_path / "log", timeout_s=1, restarts=1
    )
    try:
        with faults_told() as told:
            assert ask(process, "go on").text == "-1.0"
        assert told.counts() == {"engine/hung": 1}
    finally:
        process.close()


def test_a_medium_that_cannot_be_prepared_leaves_the_engine_in_step(engine):
    with pytest.raises(ValueError, match=r"no picture is prepared"):
        complete(engine, [ready("a"), ready("b", MediaRef("image", data=b"b"))])
    assert ask(engine, "go on").text == "2.5"


class Stepping(Engine):
    """Writes a byte for each step; completions end after 50."""

    left: ClassVar[dict[int, int]] = {}

    def submit(self, requests: Sequence[Request]) -> list[int]:
        tickets = super().submit(requests)
        self.left = self.left | dict.fromkeys(tickets, 50)
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        time.sleep(0.001)
        with (self._folder / "steps").open("ab") as file:
            file.write(b".")
        self.left = {ticket: left - 1 for ticket, left in self.left.items()}
        ended = [ticket for ticket, left in self.left.items() if left == 0]
        for ticket in ended:
            del self.left[ticket]
        return [Finished(ticket, 0, self._complete("")) for ticket in ended]

    def cancel(self) -> int:
        return sum(50 - left for left in self.left.values())


def test_completions_are_sampled_on_between_two_calls(tmp_path):
    def steps() -> int:
        file = tmp_path / "steps"
        return len(file.read_bytes()) if file.exists() else 0

    process = EngineProcess(
        Stepping, (str(tmp_path),), no_media, tmp_path / "engine.log", timeout_s=60
    )
    try:
        process.submit([ready("")])
        while steps() < 12:
            time.sleep(0.001)
        process.probe([])  # as any other call: what follows may be weights in several calls
        halted = steps()
        time.sleep(0.02)
        assert steps() == halted
        process.submit([ready("")])
        ended: list[int] = []
        while len(ended) < 2:
            ended += [finished.ticket for finished in process.poll(0.001)]
        assert ended == [0, 1]
        begun = steps()
        process.submit([ready("")])
        while steps() < begun + 10:
            time.sleep(0.001)
        assert process.cancel() >= 1
    finally:
        process.close()


def test_together_nothing_is_sampled_but_in_poll(tmp_path):
    process = EngineProcess(
        Stepping, (str(tmp_path),), no_media, tmp_path / "engine.log", timeout_s=60, together=True
    )
    try:
        process.submit([ready("")])
        process.poll()
        process.poll()
        time.sleep(0.02)
        assert (tmp_path / "steps").read_bytes() == b".."
    finally:
        process.close()


def test_a_refusal_is_the_users(tmp_path):
    with pytest.raises(ValueError, match="no such model"):
        EngineProcess(refuse, (str(tmp_path),), no_media, tmp_path / "engine.log")
    assert not multiprocessing.active_children()


def test_it_is_forked_with_vllm_imported_and_with_what_holds_now(tmp_path, monkeypatch):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    if not isinstance(engine_context(), ForkServerContext):
        pytest.skip("this vLLM is for GPUs")
    monkeypatch.setenv("MARK", "now")  # the fork server began before
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mmr1.py").write_text("raise SystemExit")  # not looked for in the working directory
    with pytest.raises(ValueError, match=f"True now 3 {tmp_path}"):
        EngineProcess(tell, (str(tmp_path),), no_media, tmp_path / "engine.log", threads=3)


def test_a_fork_server_that_was_killed_begins_again_as_it_began(tmp_path, monkeypatch):
    """It ends with its engine, and the next one must not look in the working directory either."""
    if not isinstance(engine_context(), ForkServerContext):
        pytest.skip("this vLLM is for GPUs")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mmr1.py").write_text("raise SystemExit")
    engine = EngineProcess(build, (str(tmp_path),), no_media, tmp_path / "engine.log", restarts=1)
    try:
        server = psutil.Process(psutil.Process(engine._process.pid).ppid())
        server.kill()
        while server.status() != psutil.STATUS_ZOMBIE:  # waiting for it would reap it
            time.sleep(0.01)
        assert ask(engine, "go on").text == "-1.0"
        begun = psutil.Process(psutil.Process(engine._process.pid).ppid())
        assert (engine.restarted, begun.environ()["PYTHONSAFEPATH"]) == (1, "1")
    finally:
        engine.close()


UNGUARDED = """
import sys
from pathlib import Path
from typing import ClassVar
from mmr1.rollout.engine_process import EngineProcess
from tests.rollout.process_engines import build, no_media

EngineProcess(build, (sys.argv[1],), no_media, Path(sys.argv[1], "engine.log"))
"""


@pytest.mark.slow
def test_a_script_that_runs_as_it_is_imported_is_told_what_it_lacks(tmp_path):
    (tmp_path / "main.py").write_text(UNGUARDED)
    command = [sys.executable, str(tmp_path / "main.py"), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert 'if __name__ == "__main__":' in ended.stderr.splitlines()[-1]


def test_a_replaced_engine_outlives_the_thread_that_replaced_it(engine):
    """Asynchronous rollouts replace it from the rollout thread, which ends before the engine."""
    thread = threading.Thread(target=ask, args=(engine, "die"))
    thread.start()
    thread.join()
    replacement = engine._process.pid
    time.sleep(0.2)
    assert ask(engine, "go on").text == "2.5"
    assert (engine.restarted, engine._process.pid) == (1, replacement)


PARENT = """
import sys, threading, time
from pathlib import Path
from typing import ClassVar
from mmr1.rollout.engine_process import EngineProcess
from tests.rollout.process_engines import build, no_media

folder = sys.argv[1]
engines = []
def start():
    engines.append(EngineProcess(build, (folder,), no_media, Path(folder, "engine.log")))
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(engines[0]._process.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_trainer_leaves_no_engine(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    engine = psutil.Process(int(parent.stdout.readline()))
    engine.suspend()  # so that it cannot see the closed pipe
    parent.kill()
    parent.wait()
    engine.wait(timeout=10)


INTERRUPTED = """
import sys
from pathlib import Path
from typing import ClassVar
from mmr1.rollout.engine_process import EngineProcess
from slow_engine import build
no_media = {}.__getitem__

if __name__ == "__main__":
    try:
        EngineProcess(build, (), no_media, Path(sys.argv[1], "engine.log"))
    except KeyboardInterrupt:
        sys.exit(130)
"""
SLOW_ENGINE = """
import multiprocessing, pathlib, time
if multiprocessing.current_process().name == "mmr1-engine":
    pathlib.Path(__file__).with_name("importing").touch()
    time.sleep(600)
def build(): ...
"""


@pytest.mark.slow
def test_ctrl_c_while_the_engine_imports_is_the_trainers_alone(tmp_path):
    (tmp_path / "main.py").write_text(INTERRUPTED)
    (tmp_path / "slow_engine.py").write_text(SLOW_ENGINE)
    trainer = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py"), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "importing").exists():
        assert trainer.poll() is None
        time.sleep(0.05)
    children = psutil.Process(trainer.pid).children(recursive=True)
    begin = time.monotonic()
    os.killpg(trainer.pid, signal.SIGINT)  # as a terminal does
    _, errors = trainer.communicate(timeout=60)
    assert (trainer.returncode, errors) == (130, "")
    assert time.monotonic() - begin < 5
    assert not psutil.wait_procs(children, timeout=5)[1]


TENSOR, PIPELINE = "tensor_parallel_size", "engine_kwargs.pipeline_parallel_size"


@pytest.mark.parametrize("sizes", [{TENSOR: 2}, {PIPELINE: 2}, {TENSOR: 2, PIPELINE: 3}])
def test_more_gpus_than_there_are_is_refused_before_anything_is_loaded(monkeypatch, sizes):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    keys = {f"rollout.engine.{key}": size for key, size in sizes.items()}
    wide = Config(model={"path": "any"}).changed(keys)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    said = re.escape(" times ".join(f"{key}={size}" for key, size in keys.items()))
    with pytest.raises(ValueError, match=f"^{said}: .*this machine has 0; lower it to 1"):
        check_gpus(wide)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: math.prod(sizes.values()))
    check_gpus(wide)
