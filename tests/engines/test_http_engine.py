"""An engine of a user, in one file and by one name: alone, ahead, with an environment, on Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest

from mmr1.engines import engine
from mmr1.rollout.engines import check_engine
from mmr1.trainer.train import run_training
from tests.engines import http_engine
from tests.engines.http_runs import config, metrics
from tests.jsonl import read_jsonl
from tests.trainer.conversations import brief_model

PLUGINS = Path(__file__).parents[1] / "environments" / "plugins.py"


@pytest.fixture(scope="module")
def brief(tiny_model, tmp_path_factory) -> Path:
    return brief_model(tiny_model, tmp_path_factory.mktemp("models") / "brief")


def servers() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if _is_server(p)]


def _is_server(process: psutil.Process) -> bool:
    return any(part.endswith("http_server.py") for part in process.info["cmdline"] or [])


def assert_samples_with_the_policys_weights(rows: list[dict[str, float]]) -> None:
    """Also after updates, which move log-probs by far more."""
    assert len(rows) == 3
    assert all(row["grad_norm"] > 0.1 for row in rows)
    assert all(row["rollout/logprob_diff_max"] < 1e-5 for row in rows)


@pytest.fixture(autouse=True)
def _no_server_is_left():
    before = {p.pid for p in servers()}
    yield
    _, alive = psutil.wait_procs([p for p in servers() if p.pid not in before], timeout=30)
    assert not alive


def test_it_trains_alone(tiny_model, files, tmp_path):
    run_training(config(tiny_model, files, tmp_path / "run"))
    assert_samples_with_the_policys_weights(metrics(tmp_path / "run"))


@pytest.mark.slow
def test_it_trains_with_an_environment(brief, files, tmp_path):
    """Turns are sampled in batches, because it only generates."""
    zooming = {
        "tools": ["zoom"],
        "parser": f"{PLUGINS}:always_zoom",
        "max_turns": 3,
        "max_tokens_per_turn": 30,
        "workers": 1,
    }
    rollout = {"max_prompt_length": 864, "max_response_length": 160}
    out = tmp_path / "run"
    run_training(config(brief, files, out, environment=zooming, rollout=rollout))
    rows = metrics(out)
    assert_samples_with_the_policys_weights(rows)
    turns = [
        [turn["role"] for turn in completion["turns"]]
        for path in sorted((out / "rollouts").iterdir())
        for row in read_jsonl(path)
        for completion in row["completions"]
    ]
    assert max(roles.count("assistant") for roles in turns) == 3


@pytest.mark.slow
def test_it_trains_ahead(tiny_model, files, tmp_path):
    sections = {"rollout": {"max_off_policy_steps": 1}, "optimizer": {"lr": 1e-4}}
    run_training(config(tiny_model, files, tmp_path / "run", **sections))
    rows = metrics(tmp_path / "run")
    assert [row["rollout/staleness"] for row in rows] == [0, 1, 1]
    assert rows[0]["rollout/logprob_diff_max"] < 1e-5
    gaps = [row["rollout/logprob_diff_max"] for row in rows[1:]]
    assert np.all(np.array(gaps) > 1e-5)  # sampled before the last update
    assert np.all(np.array(gaps) < 0.5)


@pytest.mark.slow
def test_it_trains_on_ray(tiny_model, files, tmp_path):
    """Each engine collects the weights that the rank sends."""
    pytest.importorskip("ray", reason="Ray is not installed")
    out = tmp_path / "run"
    run_training(config(tiny_model, files, out, resources={"ranks": 1, "engines": 2}))
    assert_samples_with_the_policys_weights(metrics(out))


@pytest.mark.slow
def test_one_that_rests_shares_the_gpus_of_the_ranks(tiny_model, files, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    engine = {"type": f"{http_engine.__file__}:resting", "colocate": True}
    shared = config(
        tiny_model,
        files,
        tmp_path / "run",
        rollout={"engine": engine},
        resources={"ranks": 2},
        data={"train_batch_size": 4},
    )
    assert (shared.distributed, shared.engines) == (True, 2)
    run_training(shared)
    assert_samples_with_the_policys_weights(metrics(tmp_path / "run"))


def test_one_that_cannot_sleep_has_gpus_of_its_own(tiny_model, files, tmp_path):
    own = config(tiny_model, files, tmp_path).changed({"rollout.engine.colocate": True})
    with pytest.raises(ValueError, match=r"colocate=true: .* Abilities\(rests=True\); leave"):
        check_engine(own)


def test_an_entry_point_registers_it(tiny_model, files, tmp_path, monkeypatch):
    package = tmp_path / "site" / "mine-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[mmr1.engines]\nmine = tests.engines.http_engine:HttpEngine\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    own = config(tiny_model, files, tmp_path / "run", rollout={"engine": "mine"})
    check_engine(own)
    assert own.rollout.engine.settings == {}


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("no_such_file.py:Engine", "no_such_file.py: no such Python file"),
        (
            f"{Path(__file__).with_name('http_runs.py')}:ENGINE",
            "is a str; it must be a function or a class",
        ),
    ],
)
def test_a_name_that_is_not_an_engines_is_refused(engine, message, tiny_model, files, tmp_path):
    rollout = {"engine": engine}
    with pytest.raises(ValueError, match=message):
        check_engine(config(tiny_model, files, tmp_path, rollout=rollout))


def test_a_class_alone_is_an_engine_and_gets_the_settings(tiny_model, files, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "class Engine:\n    def __init__(self, setting, url='a'): self.url = setting, url\n"
    )
    named = {"type": f"{file}:Engine"}
    own = config(tiny_model, files, tmp_path, rollout={"engine": {**named, "url": "b"}})
    assert engine.build(own.rollout.engine, 3).url == (3, "b")
    wrong = config(tiny_model, files, tmp_path, rollout={"engine": {**named, "adress": "b"}})
    with pytest.raises(ValueError, match=r"own.py:Engine: .*'adress'; its settings: url"):
        check_engine(wrong)


def test_adapters_alone_are_refused(tiny_model, files, tmp_path):
    model = {"freeze_vision_tower": True, "lora": {"merge": False}}
    with pytest.raises(ValueError, match="takes whole weights"):
        check_engine(config(tiny_model, files, tmp_path, model=model))
