"""A run that was stopped or killed continues to the numbers of the run that was not."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from mmr1.config import Config
from mmr1.config.file import dump_yaml
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.runs.output import RecordError
from mmr1.trainer.runs.step import StoppedError
from mmr1.trainer.sampler import Sampler
from mmr1.trainer.sft import run_sft
from mmr1.trainer.train import run_training
from tests.jsonl import read_jsonl
from tests.trainer.resumption import (
    ALGORITHM,
    assert_resumes_to_the_same_bits,
    plan_accident,
    rl,
)
from tests.trainer.same_runs import assert_same, outcome

# What replay excludes.
NORMALIZED = {
    "name": "reinforce",
    "kl": {"coef": 0.02},
    "advantage": {"normalize_rewards": True},
}

# Three lengths are rarely equal modulo 7, so a draw of four leaves a surplus.
SURPLUS = {
    "filter_groups": {"type": "resample", "gen_batch_size": 4, "keep_surplus": True},
    "kl": {"coef": 0.02},
}

POLICY_VERSION = re.compile(r',?\s*"policy_version": \d+')


@pytest.fixture
def undisturbed(tiny_model, digits, reward, tmp_path) -> Path:
    run_training(rl(tiny_model, digits, reward, tmp_path / "undisturbed"))
    return tmp_path / "undisturbed"


@pytest.mark.parametrize(
    ("algorithm", "background"), [(ALGORITHM, False), (NORMALIZED, True), (SURPLUS, False)]
)
def test_sigterm_saves_the_step_and_resuming_gives_the_same_run(
    algorithm, background, tiny_model, digits, reward, tmp_path
):
    run_training(rl(tiny_model, digits, reward, tmp_path / "undisturbed", algorithm))
    plan_accident(tmp_path, 15, "os.kill(trainer, signal.SIGTERM)")
    out = tmp_path / "stopped"
    checkpoints = {"save_steps": 2, "async_save": background}
    config = rl(tiny_model, digits, reward, out, algorithm, checkpoints=checkpoints)
    with pytest.raises(StoppedError, match=r"SIGTERM: saved as .*step_00000[23]") as stopped:
        run_training(config)
    assert stopped.value.signum == signal.SIGTERM
    run_training(config, resume=True)
    assert_same(tmp_path / "undisturbed", out)


def test_a_stop_with_rollouts_ahead_skips_no_prompt(
    tiny_model, digits, reward, monkeypatch, tmp_path
):
    """The weights stay as they are, so that what is sampled ahead is what is sampled later.

    The engine samples from a model of its own, as on Ray.
    """

    def engine_of_its_own(config, family, media, log, model, features):
        return HfEngine(deepcopy(model), family, media)

    def two_ahead(config, components):
        return Sampler(config.changed({"rollout.max_off_policy_steps": 2}), components)

    def config(out: str) -> Config:
        made = rl(tiny_model, digits, reward, tmp_path / out, checkpoints=None)
        return made.changed({"optimizer.lr": 1e-30})

    def sampled(out: str) -> dict[str, object]:
        run = tmp_path / out
        written = (run / "checkpoints/step_000005/training/state.json").read_text()
        state = json.loads(POLICY_VERSION.sub("", written))
        lines = read_jsonl(run / "metrics.jsonl")
        return {
            "rollouts": [
                POLICY_VERSION.sub("", path.read_text()) for path in sorted(run.glob("rollouts/*"))
            ],
            "sampler": state["sampler"],
            "kept": state["kept"],
            "replayed": [line["replay/num_groups"] for line in lines],
            "skipped": [line["curriculum/skipped"] for line in lines],
        }

    monkeypatch.setattr("mmr1.trainer.train.build_engine", engine_of_its_own)
    monkeypatch.setattr("mmr1.trainer.loop.Sampler", two_ahead)
    run_training(config("whole"))
    plan_accident(tmp_path, 15, "os.kill(trainer, signal.SIGTERM)")  # in the third rollout
    with pytest.raises(StoppedError, match=r"SIGTERM: saved as .*step_00000[12]") as stopped:
        run_training(config("parts"))
    assert stopped.value.signum == signal.SIGTERM
    run_training(config("parts"), resume=True)
    assert sampled("whole") == sampled("parts")
    assert len(sampled("whole")["rollouts"]) == 5


def test_a_run_that_died_inside_a_step_goes_on_from_the_last_checkpoint(
    tiny_model, digits, reward, undisturbed, tmp_path
):
    # Nothing asked for an end, so nothing is saved: the step is lost wherever it is.
    plan_accident(tmp_path, 27, "os.kill(trainer, signal.SIGALRM); time.sleep(1)")
    config = rl(tiny_model, digits, reward, tmp_path / "died")
    with pytest.raises(StoppedError):
        run_training(config)
    logged = (tmp_path / "died/metrics.jsonl").read_text().splitlines()
    assert len(logged) == 4  # step 5 died; the checkpoint is of step 4
    (tmp_path / "died/metrics.jsonl").write_text("\n".join([*logged, '{"step": 5, "cut']))
    run_training(config, resume=True)
    assert_same(undisturbed, tmp_path / "died")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        # Rounded at random: the random numbers have to continue as well.
        {"optimizer.state_dtype": "bfloat16", "optimizer.offload": True},
        # Its features are kept; the resumed run makes them anew, in other company.
        {"model.freeze_vision_tower": True},
    ],
    ids=["moments in bfloat16", "frozen tower"],
)
def test_other_runs_resume_as_well(changes, tiny_model, digits, reward, tmp_path):
    def config(out: str) -> Config:
        return rl(tiny_model, digits, reward, tmp_path / out).changed(changes)

    assert_resumes_to_the_same_bits(config, tmp_path)


def test_what_is_offloaded_changes_no_number(tiny_model, digits, reward, undisturbed, tmp_path):
    config = rl(tiny_model, digits, reward, tmp_path / "offloaded")
    run_training(
        config.changed({"optimizer.offload": True, "algorithm.kl.reference.offload": True})
    )
    here, there = outcome(undisturbed), outcome(tmp_path / "offloaded")
    assert here["metrics"] == there["metrics"]
    weights = [name for name in here if name.endswith("model.safetensors")]
    assert weights
    assert all(here[name] == there[name] for name in weights)


def test_a_second_signal_does_not_wait_for_the_step(tiny_model, digits, reward, tmp_path):
    again = "os.kill(trainer, signal.SIGINT); time.sleep(1)"  # apart: they do not become one
    plan_accident(tmp_path, 15, f"{again}; {again}")
    with pytest.raises(StoppedError, match="before the step was finished"):
        run_training(rl(tiny_model, digits, reward, tmp_path / "run"))
    saved = sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir())
    assert saved == ["step_000002"]


def test_the_end_of_the_grace_time_is_such_a_signal(tiny_model, digits, reward, tmp_path):
    plan_accident(tmp_path, 9, "os.kill(trainer, signal.SIGTERM); time.sleep(60)")
    begin = time.monotonic()
    with pytest.raises(StoppedError, match="before the step was finished"):
        run_training(rl(tiny_model, digits, reward, tmp_path / "run", grace_period_s=0.5))
    assert time.monotonic() - begin < 50


def test_a_signal_in_the_last_step_leaves_the_evaluation_to_the_resumed_run(
    tiny_model, digits, reward, tmp_path
):
    plan_accident(tmp_path, 9, "os.kill(trainer, signal.SIGINT)")
    config = rl(tiny_model, digits, reward, tmp_path / "run", max_steps=2)
    validation = {"data": str(digits / "rl.jsonl")}
    config = config.changed({"trainer.validation": validation, "eval.limit": 2})
    with pytest.raises(StoppedError, match=r"SIGINT: saved as .*step_000002") as stopped:
        run_training(config)
    assert stopped.value.signum == signal.SIGINT
    assert not (tmp_path / "run/eval").exists()
    run_training(config, resume=True)
    assert (tmp_path / "run/eval/result.json").exists()


def test_metrics_that_cannot_be_written_end_the_run_with_one_line(
    tiny_model, digits, reward, tmp_path
):
    """A file comes to lie in the place of a folder during the run."""
    config = rl(tiny_model, digits, reward, tmp_path / "run")
    plan_accident(tmp_path, 1, f"open({str(tmp_path / 'run/rollouts')!r}, 'w').close()")
    with pytest.raises(RecordError, match=r"rollouts of step 1 could not .* exists: .*--resume"):
        run_training(config)


def faults_of(message: str) -> list[str]:
    """The lines of stderr, without that which says what the data hold."""
    return [line for line in message.splitlines() if " record(s)" not in line]


@pytest.mark.parametrize("size_kib", [4, 12, 16, 25_000])
def test_a_full_disk_is_one_line(
    size_kib, tiny_model, digits, reward, small_disk, tmp_path, mmr1, monkeypatch
):
    """It fills up in train.log, the metrics or the rollouts, and in the first checkpoints."""
    monkeypatch.setattr("mmr1.trainer.run.LAST_SAVE_S", 0.0)
    run = small_disk(size_kib) / "run"
    config = rl(tiny_model, digits, reward, run, checkpoints={"save_steps": 1})
    (tmp_path / "run.yaml").write_text(dump_yaml(config))
    code, _, message = mmr1("train", tmp_path / "run.yaml")
    assert code in (1, 2), message
    *warnings, error = faults_of(message)
    assert "No space left on device" in error
    told = ("could not be saved, because the disk is full", "tried again until it is saved")
    assert all(any(words in line for words in told) for line in warnings), message
    assert not list((tmp_path / "disk").rglob("*.tmp"))


def test_a_folder_in_the_place_of_a_file_is_one_line(tiny_model, digits, reward, tmp_path, mmr1):
    config = rl(tiny_model, digits, reward, tmp_path / "run")
    (tmp_path / "run.yaml").write_text(dump_yaml(config))
    (tmp_path / "run/train.log").mkdir(parents=True)
    code, _, message = mmr1("train", tmp_path / "run.yaml")
    assert (code, len(faults_of(message))) == (1, 1), message
    assert "run/train.log" in message


def test_supervised_runs_resume_too(tiny_model, digits, tmp_path):
    def config(out: str, steps: int) -> Config:
        return Config(
            model={"path": str(tiny_model), "dtype": "float32"},
            data={"train": str(digits / "sft.jsonl"), "train_batch_size": 4},
            optimizer={"lr": 1e-3, "scheduler": {"type": "constant", "warmup_steps": 2}},
            trainer={"max_steps": steps, "output_dir": str(tmp_path / out), "logging_steps": 100},
        )

    run_sft(config("whole", 6))
    run_sft(config("parts", 4))
    run_sft(config("parts", 6), resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_resuming_nothing_begins_and_resuming_the_end_changes_nothing(
    tiny_model, digits, reward, undisturbed, tmp_path
):
    config = rl(tiny_model, digits, reward, tmp_path / "new")
    run_training(config, resume=True)
    assert_same(undisturbed, tmp_path / "new")
    run_training(config, resume=True)
    assert_same(undisturbed, tmp_path / "new")


def test_a_finished_run_starts_no_engine(undisturbed, tiny_model, digits, reward, monkeypatch):
    monkeypatch.setattr("mmr1.trainer.train.build_engine", lambda *_: pytest.fail("it was started"))
    last = run_training(rl(tiny_model, digits, reward, undisturbed), resume=True)
    assert last.name == "step_000005"
    written = undisturbed / "checkpoints/step_000006.tmp"  # by a process that has the lock
    written.mkdir()
    run_training(rl(tiny_model, digits, reward, undisturbed), resume=True)
    assert written.exists()
    with pytest.raises(pytest.fail.Exception, match="it was started"):
        run_training(rl(tiny_model, digits, reward, undisturbed, max_steps=7), resume=True)


def test_another_configuration_is_not_resumed(tiny_model, digits, reward, undisturbed):
    config = rl(tiny_model, digits, reward, undisturbed)
    other = config.changed(seed=1)
    with pytest.raises(ValueError, match=r"started with another seed; resume it as it was"):
        run_training(other, resume=True)
    with pytest.raises(ValueError, match=r"already holds a run .*; continue it with --resume"):
        run_training(config)


def test_two_processes_do_not_write_into_one_directory(tiny_model, digits, reward, tmp_path):
    config = rl(tiny_model, digits, reward, tmp_path / "run")
    (tmp_path / "run").mkdir()
    holder = subprocess.Popen(["flock", tmp_path / "run/run.lock", "sleep", "60"])
    try:
        while not (tmp_path / "run/run.lock").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        with pytest.raises(ValueError, match="another process is writing into"):
            run_training(config)
    finally:
        holder.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "ranks"), [("hf", 1), ("vllm", 1), ("hf", 2), ("vllm", 2)])
def test_sigkill_at_random_moments(engine, ranks, tiny_model, digits, reward, tmp_path):
    """Killed again and again wherever it is; the end is bitwise that of the undisturbed run."""
    if ranks > 1:
        pytest.importorskip("ray", reason="Ray is not installed")
    if engine == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")

    def config(name: str) -> Path:
        steps = {"max_steps": 60, "checkpoints": {"save_steps": 1}}
        run = rl(tiny_model, digits, reward, tmp_path / name, **steps)
        run = run.changed(
            {"rollout.engine": engine, "full_determinism": True, "resources.ranks": ranks}
        )
        path = tmp_path / f"{name}.yaml"
        path.write_text(dump_yaml(run))
        return path

    def start(name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mmr1.cli", "train", str(config(name)), "--resume"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    assert start("whole").wait(1800) == 0
    times = [path.stat().st_mtime for path in (tmp_path / "whole/rollouts").iterdir()]
    step_s = (max(times) - min(times)) / (len(times) - 1)  # with its checkpoint
    rng = random.Random(0)
    killed, kills = 0, 20 if ranks == 1 else 8
    while killed < kills:
        process = start("killed")
        metrics = tmp_path / "killed/metrics.jsonl"
        before = metrics.stat().st_size if metrics.exists() else 0
        while process.poll() is None and (not metrics.exists() or metrics.stat().st_size == before):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 2 * step_s))
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        killed += 1
    assert killed >= kills // 2
    assert start("killed").wait(1800) == 0
    assert_same(tmp_path / "whole", tmp_path / "killed")
    resolved = yaml.safe_load((tmp_path / "killed/config.yaml").read_text())
    assert resolved["rollout"]["engine"]["type"] == engine
