"""Trackers: what they store is what metrics.jsonl holds, and none of them can stop a run."""

from __future__ import annotations

import importlib.util
import io
import json
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from mmr1.config import Config
from mmr1.registry import TRACKERS
from mmr1.trainer.runs import tracking
from mmr1.trainer.runs.tracking import Start, Trackers, check_trackers
from mmr1.trainer.train import run_training
from mmr1.types import Reward, ScoredGroup
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.faults import faults_told
from tests.jsonl import read_jsonl
from tests.trainer.conversations import conversations, picture

STEPS = [
    {"step": s, "reward/mean": 0.125 * s, "loss": -1e-9 / s, "time/step": 1.5} for s in (1, 2, 3)
]


def config(*trackers: str) -> Config:
    return Config(
        model={"path": "x"}, trainer={"tracking": {"report_to": trackers, "project_name": "tests"}}
    )


def plug(monkeypatch: pytest.MonkeyPatch, start) -> None:
    """Let the name 'tensorboard' start this tracker: the file behind a name is the boundary."""
    module = ModuleType("plugged")
    module.start = start
    monkeypatch.setitem(__import__("sys").modules, "plugged", module)
    monkeypatch.setitem(TRACKERS.builtin, "tensorboard", "plugged:start")


class Recorder:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def log(self, step, numbers):
        self.calls.append((step, numbers))

    def log_rollouts(self, step, rows):
        self.calls.append((step, list(rows)))

    def close(self):
        self.calls.append("closed")


def test_every_call_arrives_in_order_and_the_run_is_closed(monkeypatch, tmp_path):
    recorder = Recorder()
    plug(monkeypatch, lambda start: recorder)
    with Trackers(config("tensorboard"), tmp_path) as trackers:
        for stats in STEPS:
            trackers.log(stats)
    numbers = [(s["step"], {k: v for k, v in s.items() if k != "step"}) for s in STEPS]
    assert recorder.calls == [*numbers, "closed"]


@pytest.mark.parametrize("fails", ["start", "log", "close"])
def test_a_tracker_that_fails_is_left_out_with_one_warning(monkeypatch, tmp_path, fails):
    recorder = Recorder()

    def fail(*args):
        raise ConnectionError("no route\nto host")

    if fails != "start":
        setattr(recorder, fails, fail)
    plug(monkeypatch, fail if fails == "start" else lambda start: recorder)
    with faults_told() as told, Trackers(config("tensorboard"), tmp_path) as trackers:
        for stats in STEPS:
            trackers.log(stats)
    ((kind, count, warning),) = told.faults
    assert (kind, count) == ("tracker/tensorboard", 1)
    assert (
        "the tracker 'tensorboard' is left out from here on: ConnectionError: no route to"
        in warning
    )


def test_a_tracker_that_hangs_holds_nothing_up(monkeypatch, tmp_path):
    release = threading.Event()

    def hang(start):
        release.wait(60)
        return Recorder()

    plug(monkeypatch, hang)
    monkeypatch.setattr(tracking, "CLOSE_S", 0.2)
    begin = time.perf_counter()
    with faults_told() as told, Trackers(config("tensorboard"), tmp_path) as trackers:
        for stats in STEPS:
            trackers.log(stats)
    assert time.perf_counter() - begin < 5
    ((_, _, warning),) = told.faults
    assert "did not finish within 0.2 s" in warning
    release.set()


def test_a_tracker_that_is_not_installed_is_refused_before_anything(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    absent = lambda name, *rest: None if name == "wandb" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    run = config("wandb").changed({"trainer.output_dir": str(tmp_path / "o")})
    with pytest.raises(ValueError, match=r"pip install 'mmr1\[wandb\]'"):
        run_training(run)
    assert not (tmp_path / "o").exists()


# The real libraries, those that are installed.


def stored_by_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in tags}


def stored_by_mlflow(folder: Path) -> dict[str, dict[int, float]]:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder.resolve() / 'mlflow/mlflow.db'}")
    (experiment,) = (e for e in client.search_experiments() if e.name == "tests")
    (run,) = client.search_runs([experiment.experiment_id])
    return {
        name: {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)}
        for name in run.data.metrics
    }


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of a W&B transaction log: LevelDB's log format after a header of 7 bytes."""
    data, position, whole = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:  # the rest of a block that holds no header
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # full, last
            yield whole
            whole = b""


def stored_by_wandb(folder: Path) -> dict[str, dict[int, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    logged: dict[str, dict[int, float]] = {}
    for data in wandb_records(file):
        record = Record()
        record.ParseFromString(data)
        items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
        for name, value in items.items():
            if not name.startswith(("_", "rollouts")):
                step = int(record.history.step.num)
                logged.setdefault(name, {})[step] = json.loads(value)
    return logged


def stored_by_trackio(folder: Path) -> dict[str, dict[int, float]]:
    from trackio.sqlite_storage import SQLiteStorage

    logged: dict[str, dict[int, float]] = {}
    for row in SQLiteStorage.get_logs("tests", folder.name):
        for name, value in row.items():
            if isinstance(value, float):
                logged.setdefault(name, {})[row["step"]] = value
    return logged


STORED = {
    "tensorboard": stored_by_tensorboard,
    "mlflow": stored_by_mlflow,
    "wandb": stored_by_wandb,
    "trackio": stored_by_trackio,
}


@pytest.fixture(scope="module")
def tracked(tiny_model, digits, tmp_path_factory) -> Path:
    """A CPU run with every tracker that is installed, all at once and without a network."""
    out = tmp_path_factory.mktemp("tracked") / "run"
    names = [name for name in TRACKERS.builtin if importlib.util.find_spec(name)]
    if not names:
        pytest.skip("no tracker is installed")
    patch = pytest.MonkeyPatch()
    patch.setenv("TRACKIO_DIR", str(out.parent / "trackio"))
    with faults_told() as told:
        run_training(
            Config(
                model={"path": str(tiny_model), "dtype": "float32"},
                data={"train": str(digits / "rl.jsonl"), "train_batch_size": 2},
                rollout={
                    "engine": "hf", "n": 2, "max_prompt_length": 120,
                    "max_response_length": 8,
                },
                trainer={
                    "max_steps": 3, "output_dir": str(out), "log_completions_steps": 2,
                    "threads": 1, "tracking": {"report_to": names, "project_name": "tests"},
                },
            )
        )  # fmt: skip
    assert not told.faults
    yield out
    patch.undo()


@pytest.mark.parametrize("name", STORED)
def test_stored_values_are_those_of_metrics_jsonl(name, tracked):
    pytest.importorskip(name)
    logged = read_jsonl(tracked / "metrics.jsonl")
    stored = STORED[name](tracked)
    for row in logged:
        for key, value in row.items():
            if key != "step":
                # TensorBoard stores float32.
                assert stored[key][row["step"]] == pytest.approx(value, rel=1e-6, abs=1e-30), key
    assert {step for steps in stored.values() for step in steps} == {1, 2, 3}


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("wandb", "wandb/offline-run-*/files/media/table/rollouts*"),
        ("mlflow", "mlflow/files/*/artifacts/rollouts/step_000003.json"),
        ("swanlab", "swanlab/*/*"),
    ],
)
def test_rollouts_are_shown(name, pattern, tracked):
    pytest.importorskip(name)
    assert list(tracked.glob(pattern))


def test_a_run_has_the_name_and_the_tags_that_are_set(monkeypatch, tmp_path):
    starts = []
    plug(monkeypatch, lambda start: starts.append(start) or Recorder())
    for keys in ({}, {"run_name": "dapo 3b", "tags": ["dapo", "geometry"]}):
        run = Config(
            model={"path": "x"}, trainer={"tracking": {"report_to": ["tensorboard"], **keys}}
        )
        with Trackers(run, tmp_path / "folder"):
            pass
    assert [(s.name, s.tags) for s in starts] == [
        ("folder", ()),
        ("dapo 3b", ("dapo", "geometry")),
    ]
    with pytest.raises(ValueError, match="tags"):
        Config(
            model={"path": "x"}, trainer={"tracking": {"report_to": ["tensorboard"], "tags": [""]}}
        )


def test_tensorboard_has_name_and_tags_as_a_text(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    keys = {"report_to": ["tensorboard"], "run_name": "dapo 3b", "tags": ["geometry"]}
    with Trackers(Config(model={"path": "x"}, trainer={"tracking": keys}), tmp_path):
        pass
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (event,) = events.Tensors("run/text_summary")
    assert event.tensor_proto.string_val == [b"`dapo 3b` `geometry`"]


def test_the_pictures_of_tools_stand_beside_the_prompts(tiny_model, tmp_path):
    """One strip for each distinct conversation: read back from what TensorBoard stored."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    family = load_family(str(tiny_model))
    media = MediaCache(family.prepare_media)
    asked = picture(1)
    shown = [(), (), (picture(2),), (picture(3), picture(4, width=28))]
    group = conversations(family, media, [[3, [2, *refs], 3] for refs in shown], [asked], 1)
    keys = {"report_to": ["tensorboard"]}
    with Trackers(Config(model={"path": "x"}, trainer={"tracking": keys}), tmp_path) as trackers:
        trackers.log_rollouts(1, [ScoredGroup(group, (Reward(1.0),) * 4)])
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    sizes = {}
    for tag in events.Tags()["images"]:
        (event,) = events.Images(tag)
        stored = Image.open(io.BytesIO(event.encoded_image_string))
        sizes[tag] = stored.size
    assert sizes == {
        "rollouts/1": (56, 84),
        "rollouts/1-2": (56 + 4 + 56, 84),
        "rollouts/1-3": (56 + 4 + 56 + 4 + 28, 84),
    }
    last = np.asarray(stored)
    for left, ref in ((0, asked), (60, picture(3)), (120, picture(4, width=28))):
        pixels = np.asarray(Image.open(io.BytesIO(ref.read())))
        assert np.array_equal(last[:, left : left + pixels.shape[1]], pixels)


def test_a_tracker_is_given_no_credentials(monkeypatch, tmp_path):
    starts = []
    plug(monkeypatch, lambda start: starts.append(start) or Recorder())
    judge = {
        "type": "remote",
        "url": "http://me:hunter2@judge.example",
        "headers": {"X-Key": "hunter2"},
    }
    run = Config(
        model={"path": "x"},
        rewards={"judge": judge},
        trainer={"tracking": {"report_to": ["tensorboard"]}},
    )
    with Trackers(run, tmp_path):
        pass
    assert "hunter2" not in json.dumps(starts[0].config)
    assert starts[0].config["rewards"]["judge"]["url"] == "http://***@judge.example"


@pytest.mark.parametrize("shown", [{"api_key": "***"}, {"lr": 1.0}], ids=["masked", "none"])
def test_wandb_is_sent_no_command_line_that_has_a_credential(shown, tmp_path, monkeypatch):
    """Such a value is masked in the configuration, and stands in the arguments."""
    pytest.importorskip("wandb")
    monkeypatch.setattr("sys.argv", ["mmr1", "api_key=hunter2"])
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = TRACKERS.load("wandb")(Start(tmp_path, "project", "run", (), shown))
    tracker.log(1, {"loss": 1.0})
    tracker.close()
    sent = any(b"hunter2" in file.read_bytes() for file in tmp_path.rglob("*.wandb"))
    assert sent == ("lr" in shown)


def test_a_tracker_whose_package_is_missing_says_what_to_install(tmp_path):
    file = tmp_path / "own.py"
    file.write_text('PACKAGE = "no_such_package"\ndef start(run):\n    raise AssertionError\n')
    with pytest.raises(ValueError, match="no_such_package is not installed; pip install no_such"):
        check_trackers([f"{file}:start"])
    free = tmp_path / "free.py"
    free.write_text("def start(run):\n    raise AssertionError\n")
    check_trackers([f"{free}:start"])
