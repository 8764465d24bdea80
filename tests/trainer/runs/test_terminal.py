"""Output that fails ends no run, names and messages are printed as they are, SIGHUP saves."""

from __future__ import annotations

import logging
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.config.file import dump_yaml
from mmr1.logs import failing_output_muted, log_to_file
from mmr1.trainer.runs.display import Display
from mmr1.trainer.runs.output import RunDirectory
from tests.jsonl import read_jsonl

MUTED = "the run continues without it"


@pytest.fixture
def config(tiny_model: Path, digits: Path, tmp_path: Path) -> Config:
    return Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        data={"train": str(digits / "sft.jsonl")},
        trainer={
            "max_steps": 8,
            "output_dir": str(tmp_path / "run"),
            "checkpoints": {"save_steps": 100},
            "threads": 1,
            "logging_steps": 1,
        },
    ).for_command("sft")


def sft(config: Config, tmp_path: Path, redirection: str = "") -> subprocess.CompletedProcess[str]:
    file = tmp_path / "sft.yaml"
    file.write_text(dump_yaml(config))
    command = f"set -o pipefail; {sys.executable} -m mmr1 sft {file} {redirection}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("redirection", "stream"),
    [
        ("| head -2", "stdout"),
        ("> /dev/full", "stdout"),
        pytest.param("2>&1 --log-level info | head -2", "stdout", marks=pytest.mark.slow),
        pytest.param("--log-level info 2> /dev/full", "stderr", marks=pytest.mark.slow),
        (">&- 2>&-", None),
    ],
)
def test_output_that_fails_ends_no_run(config, tmp_path, redirection, stream):
    ended = sft(config, tmp_path, redirection)
    assert ended.returncode == 0, ended.stderr
    run = tmp_path / "run"
    assert [line["step"] for line in read_jsonl(run / "metrics.jsonl")] == [*range(1, 9)]
    assert (run / "checkpoints/step_000008/manifest.json").exists()
    told = [line for line in (run / "train.log").read_text().splitlines() if MUTED in line]
    assert sum(f": {stream} cannot be written to" in line for line in told) == (stream is not None)


@pytest.mark.slow
def test_a_log_on_a_full_disk_ends_no_run(config, tmp_path, small_disk):
    log = small_disk(4) / "run.log"
    log.write_bytes(b"x" * 4090)
    ended = sft(config, tmp_path, f">> {log}")
    assert ended.returncode == 0, ended.stderr
    assert len(read_jsonl(tmp_path / "run/metrics.jsonl")) == 8
    assert MUTED in (tmp_path / "run/train.log").read_text()


def test_what_is_muted_before_the_log_is_open_is_in_the_log(tmp_path, monkeypatch):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with failing_output_muted("stdout"):
            print("lost", flush=True)
            with log_to_file(tmp_path / "train.log"), failing_output_muted():
                print("lost too", flush=True)
    assert (tmp_path / "train.log").read_text().count(MUTED) == 1


def test_a_closed_terminal_saves_and_ends_as_sigterm_does(config, tmp_path):
    """The terminal's end closes, and the kernel sends SIGHUP to the session."""
    config = config.changed({"trainer.max_steps": 10_000})
    file = tmp_path / "sft.yaml"
    file.write_text(dump_yaml(config))
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.execv(sys.executable, [sys.executable, "-m", "mmr1", "sft", str(file)])
    while not (tmp_path / "run/metrics.jsonl").exists():
        os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    steps = [line["step"] for line in read_jsonl(tmp_path / "run/metrics.jsonl")]
    assert (tmp_path / f"run/checkpoints/step_{steps[-1]:06d}").exists()


@pytest.mark.slow
def test_under_nohup_a_closed_terminal_ends_nothing(config, tmp_path):
    file = tmp_path / "sft.yaml"
    file.write_text(dump_yaml(config))
    command = [sys.executable, "-m", "mmr1", "sft", str(file)]
    log = tmp_path / "nohup.out"
    with log.open("w") as output:
        run = subprocess.Popen(["nohup", *command], stdout=output, stderr=output)
    while "step 1/" not in log.read_text():
        assert run.poll() is None
    run.send_signal(signal.SIGHUP)
    assert run.wait() == 0
    assert len(read_jsonl(tmp_path / "run/metrics.jsonl")) == 8


@pytest.mark.parametrize("name", ["m[/b]x", "[red]", "a\x1b[2J", ":smile:"])
def test_names_are_printed_as_they_are(name, tmp_path, capsys):
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path / name)})
    with RunDirectory(config) as directory, Display(config.trainer, directory) as display:
        display.say(f"checkpoint: {name}")
    shown = name.replace("\x1b", "\\x1b")
    assert capsys.readouterr().out.splitlines()[-1] == f"checkpoint: {shown}"


def test_a_message_cannot_control_the_terminal(tmp_path):
    with log_to_file(tmp_path / "train.log"):
        logging.getLogger("mmr1.test").warning("a plugin says \x1b]0;title\x07 and\x9b2J")
    written = (tmp_path / "train.log").read_bytes()
    assert rb"a plugin says \x1b]0;title\x07 and\x9b2J" in written


def test_a_lone_surrogate_is_printed_escaped(monkeypatch, tmp_path):
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with failing_output_muted("stdout"):
            print("a \udc80 b")
    assert (tmp_path / "out").read_text() == "a \\udc80 b\n"
