"""The door for Python: the same runs as on the command line, with objects in the place of files."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mmr1
from mmr1 import StoppedError, Trainer, evaluate
from mmr1.config.file import load_layers, read_written
from mmr1.config.rewards import weights_of
from mmr1.data.record import read_records
from mmr1.data.sources import load_samples
from mmr1.python.trainer import given_data

SMALL: dict[str, Any] = {
    "rollout": {
        "engine": "hf",
        "n": 4,
        "max_prompt_length": 128,
        "max_response_length": 8,
    },
    "data.train_batch_size": 2,
    "trainer.max_steps": 3,
}
REWARD = "def reward(completion: str, answer) -> float:\n    return len(completion) % 7 / 7\n"
OFFLINE: dict[str, Any] = {"data.train_batch_size": 2, "trainer.max_steps": 2}


def small(folder: Path, **keys: Any) -> dict[str, Any]:
    return {**SMALL, "trainer.output_dir": str(folder), **keys}


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def rows_of(digits: Path, name: str, count: int) -> list[dict[str, Any]]:
    """Records as rows in memory, with PIL images."""
    return [
        {
            "id": sample.id,
            "problem": "<image>Which digit is this?",
            "images": [Image.open(io.BytesIO(sample.media[0].read()))],
            "answer": sample.answer,
        }
        for sample in read_records(digits / name)[:count]
    ]


def picture(shade: int) -> Image.Image:
    return Image.new("RGB", (56, 56), (shade, 0, 0))


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    picture(shade).save(buffer, "PNG")
    return buffer.getvalue()


def written(rows: list[dict[str, Any]], folder: Path) -> Path:
    """The same rows as a file, with image files."""
    folder.mkdir()
    path = folder / "train.jsonl"
    with path.open("w") as file:
        for row in rows:
            (picture,) = row["images"]
            picture.save(folder / f"{row['id']}.png")
            file.write(json.dumps({**row, "images": [f"{row['id']}.png"]}) + "\n")
    return path


def test_importing_it_loads_nothing_heavy():
    code = (
        "import sys, time; before = set(sys.modules); import mmr1; "
        "heavy = {'torch', 'transformers', 'pydantic', 'omegaconf'} & set(sys.modules); "
        "assert not heavy, heavy; assert dir(mmr1); "
        "mmr1.Trainer; mmr1.extract_answer; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in mmr1.__all__:
        assert getattr(mmr1, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Trianer'"):
        mmr1.Trianer  # noqa: B018


def test_the_same_run_as_on_the_command_line(tiny_model, digits, tmp_path, mmr1):
    """A function from a file and the same one in Python; rows of a file and the same in memory."""
    (tmp_path / "own.py").write_text(REWARD)
    rows = rows_of(digits, "rl.jsonl", 12)
    path = written(rows, tmp_path / "rows")
    cli, door, memory = (tmp_path / name for name in ("cli", "door", "memory"))
    yaml = tmp_path / "run.yaml"
    yaml.write_text(
        "rollout: {engine: hf, n: 4, max_prompt_length: 128, max_response_length: 8}\n"
        "data: {train_batch_size: 2}\ntrainer: {max_steps: 3}\n"
        f"model: {{path: {tiny_model}}}\n"
    )
    overrides = (
        f"rewards={{own: {{type: '{tmp_path}/own.py:reward'}}, format: 0.2}}",
        f"data.train={path}",
    )
    assert mmr1("train", yaml, f"trainer.output_dir={cli}", *overrides)[0] == 0

    seven = 7  # a closure: nothing of it could be pickled
    rewards = {"own": lambda completion, answer: len(completion) % seven / seven, "format": 0.2}
    config = small(door, **{"model.path": str(tiny_model)})
    trainer = Trainer(data=path, rewards=rewards, config=config)
    numbers = [(step.number, step.metrics["reward/mean"]) for step in trainer.steps()]

    assert metrics(door) == metrics(cli)
    assert numbers == [(row["step"], row["reward/mean"]) for row in metrics(cli)]
    assert trainer.checkpoint == door / "checkpoints/step_000003"

    config = small(memory, **{"model.path": str(tiny_model)})
    Trainer(data=rows, rewards=rewards, config=config).train()
    assert metrics(memory) == metrics(cli)


def test_pictures_in_messages_and_as_bytes(tmp_path):
    content = [{"type": "image", "image": picture(7)}, {"type": "text", "text": "Which?"}]
    rows = [
        {"messages": [{"role": "user", "content": content}], "answer": "7"},
        {"problem": "<image>Which?", "images": [{"bytes": png(7)}], "answer": np.int64(7)},
        {"problem": "<image>Which?", "images": png(7), "answer": "7"},
        {"problem": "<image>Which?", "images": [picture(7)], "answer": "7"},
    ]
    data = given_data(rows, tmp_path, "train")
    for write in data.files.values():
        write()
    samples = load_samples(data.path)
    assert [sample.answer for sample in samples] == ["7", 7, "7", "7"]
    assert {sample.media[0].read() for sample in samples} == {png(7)}
    assert given_data(iter(rows), tmp_path, "train").path == data.path
    assert given_data(rows[1:], tmp_path, "train").path != data.path


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        *((given, "list") for given in ("absolute", "elsewhere", "relative", "path")),
        *((given, "dataset") for given in ("absolute", "elsewhere", "relative")),
    ],
)
def test_paths_in_rows_are_those_of_the_script(given, kind, tmp_path, monkeypatch):
    """Absolute ones are used as they are, relative ones from the working folder."""
    from datasets import Dataset

    here, away = tmp_path / "here", tmp_path / "away"
    for number, folder in enumerate((here, away)):
        (folder / "pictures").mkdir(parents=True)
        picture(number).save(folder / "pictures/a.png")
    monkeypatch.chdir(here)
    name = {
        "absolute": str(here / "pictures/a.png"),
        "elsewhere": str(away / "pictures/a.png"),
        "relative": "pictures/a.png",
        "path": Path("pictures/a.png"),
    }[given]
    rows: Any = [{"problem": "<image>Which?", "images": [name], "answer": "7"}]
    data = given_data(Dataset.from_list(rows) if kind == "dataset" else rows, tmp_path, "train")
    for write in data.files.values():
        write()
    config = load_layers([{"model.path": "m", "data.train": "d.jsonl"}]).config
    (sample,) = load_samples(data.path, config.changed(data.base(config)).data)
    assert sample.media[0].read() == png(1 if given == "elsewhere" else 0)


@pytest.mark.parametrize("kind", ["list", "dataset", "model"])
def test_rows_in_memory_resume_in_a_new_trainer(kind, tiny_model, digits, tmp_path):
    from datasets import Dataset
    from transformers import AutoModelForImageTextToText, AutoProcessor

    rewards = {"long": lambda completion, **sample: len(completion) / 100}

    def trainer(seed: int = 0) -> Trainer:
        rows: Any = rows_of(digits, "rl.jsonl", 4)[seed:]
        model, objects = str(tiny_model), {}
        if kind == "model":
            model = AutoModelForImageTextToText.from_pretrained(tiny_model)
            objects = {"processor": AutoProcessor.from_pretrained(tiny_model)}
        data = Dataset.from_list(rows) if kind == "dataset" else rows
        return Trainer(model, data, rewards, small(tmp_path / "run"), **objects)

    next(iter(trainer().steps()))  # leaves the loop, which saves
    weights = {p: p.stat().st_mtime_ns for p in (tmp_path / "run/given").rglob("*.safetensors")}
    for resume in (False, True):  # another run in its place, or a resume with other rows
        with pytest.raises(ValueError, match=r"data\.train|already holds a run"):
            trainer(seed=1).train(resume=resume)
    assert weights == {path: path.stat().st_mtime_ns for path in weights}
    assert [step.number for step in trainer().steps(resume=True)] == [2, 3]


def test_functions_have_their_own_names():
    def short(completion: str) -> float:
        return 1 / (1 + len(completion))

    config = small(Path("run"), **{"model.path": "m", "data.train": "d.jsonl"})
    assert weights_of(Trainer(rewards=[short], config=config).config.rewards) == {"short": 1.0}
    assert weights_of(Trainer(rewards=short, config=config).config.rewards) == {"short": 1.0}
    for rewards, message in (
        ([lambda completion: 1.0], "<lambda> has no name of its own"),
        ([short, short], "a mapping by name"),
        (["format"], "a mapping by name"),
    ):
        with pytest.raises(ValueError, match=message):
            Trainer(rewards=rewards, config=config)


def test_what_completion_shows_is_the_door():
    assert {name for name in dir(mmr1) if not name.startswith("_")} == set(mmr1.__all__)


def test_a_break_saves_the_step_and_a_resumed_run_continues(tiny_model, digits, tmp_path):
    rewards = {"long": lambda completion, **sample: len(completion) / 100}

    def trainer(name: str) -> Trainer:
        return Trainer(str(tiny_model), digits / "rl.jsonl", rewards, small(tmp_path / name))

    for step in trainer("stopped").steps():
        if step.number == 2:
            break
    summary = json.loads((tmp_path / "stopped/summary.json").read_text())
    assert (summary["state"], summary["checkpoint"]) == ("stopped", "checkpoints/step_000002")
    with pytest.raises(ValueError, match="already holds a run"):
        trainer("stopped").train()
    assert [step.number for step in trainer("stopped").steps(resume=True)] == [3]
    trainer("whole").train()
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")


@pytest.mark.parametrize("where", ["in the first step", "in a later step", "between steps"])
def test_an_interrupted_trainer_goes_on(where, tiny_model, digits, tmp_path):
    """The interruption of a kernel is SIGINT, or an exception out of the user's own function."""
    at = {"in the first step": 1, "in a later step": 3}.get(where, 0)
    calls: list[int] = []

    def reward(completion: str, answer: Any) -> float:
        calls.append(1)
        if len(calls) == 8 * at - 4:
            raise KeyboardInterrupt
        return len(completion) % 7 / 7

    trainer = Trainer(
        str(tiny_model), str(digits / "rl.jsonl"), {"own": reward}, small(tmp_path / "run")
    )
    done: list[int] = []

    def take_steps() -> None:
        for step in trainer.steps():
            done.append(step.number)
            if not at:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises((KeyboardInterrupt, StoppedError)):
        take_steps()
    assert done == list(range(1, at or 2))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    trainer.train(resume=True)
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2, 3]


def test_a_model_and_a_dataset_that_are_objects(tiny_model, digits, tmp_path):
    import datasets
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(tiny_model)
    processor = AutoProcessor.from_pretrained(tiny_model)
    data = datasets.Dataset.from_list(
        [
            {"problem": f"<image>Which digit is {n}?", "answer": str(n), "images": [image]}
            for n, image in enumerate(r["images"][0] for r in rows_of(digits, "rl.jsonl", 4))
        ]
    )
    seen: list[tuple[Any, Any]] = []

    def mine(completion, answer, **sample):
        seen.append((answer, sample["question"]))
        return 1.0

    rewards = {"mine": {"type": mine, "weight": 0.5}, "format": 0.1}
    keys = {"trainer.max_steps": 1}
    trainer = Trainer(model, data, rewards, small(tmp_path / "run", **keys), processor=processor)
    trainer.train()
    assert len(seen) == 8
    assert {answer for answer, _ in seen} <= {"0", "1", "2", "3"}
    assert weights_of(trainer.config.rewards) == {"mine": 0.5, "format": 0.1}

    held_out = rows_of(digits, "eval.jsonl", 3)
    result = trainer.evaluate(held_out)
    assert (result.prompts, result.modes["greedy"].accuracy) == (3, 1.0)
    path = trainer.save(tmp_path / "out")
    again = evaluate(path, held_out, rewards, {k: v for k, v in SMALL.items() if k == "rollout"})
    assert [row["completion"] for row in again.rows] == [row["completion"] for row in result.rows]


def test_a_run_read_back_says_that_its_function_is_in_python(tiny_model, digits, tmp_path, mmr1):
    rewards = {"mine": lambda completion, answer: 1.0}
    config = small(tmp_path / "run", **{"trainer.max_steps": 1})
    Trainer(str(tiny_model), digits / "rl.jsonl", rewards, config).train()
    assert read_written(tmp_path / "run/config.yaml").rewards["mine"].type == "python"
    code, _, err = mmr1("train", tmp_path / "run/config.yaml", f"trainer.output_dir={tmp_path}/x")
    assert code == 2
    assert "mine is a function that mmr1.Trainer was given in Python" in err


def test_demonstrations(tiny_model, digits, tmp_path):
    sft = Trainer(
        str(tiny_model),
        digits / "sft.jsonl",
        config={**OFFLINE, "trainer.output_dir": str(tmp_path / "sft")},
        command="sft",
    )
    assert [set(step.metrics) >= {"loss", "lr"} for step in sft.steps()] == [True, True]
    with pytest.raises(ValueError, match=r"call mmr1\.evaluate"):
        sft.evaluate(digits / "eval.jsonl")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"command": "eval"}, r"the Trainer runs .*train, sft"),
    ({"model": object()}, "comes with its processor"),
    ({"rewards": {"mine": lambda x: 1.0}}, "reward function 'mine': its parameters"),
    ({"rewards": {"maths": 1.0}}, "maths"),
    ({"rewards": {"format": 1.0}, "command": "sft"}, "rewards"),
    ({"config": {"trainer.max_step": 1}}, "max_steps"),
    ({"config": "no.yaml"}, "no.yaml: no such configuration file"),
    ({"data": 7}, "data is a int"),
    ({"data": ["row"]}, r"data\[0\] is a str"),
    ({"data": [{"images": [object()]}]}, r"data\[0\]: a object cannot be written"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED, ids=[why[:30] for _, why in REFUSED])
def test_what_is_wrong_is_refused(keys, message, tiny_model, digits, tmp_path):
    given = {"model": str(tiny_model), "data": digits / "rl.jsonl", **keys}
    config = given.pop("config", {})
    if isinstance(config, dict):
        base = OFFLINE if "command" in given else SMALL
        config = {**base, "trainer.output_dir": str(tmp_path / "run"), **config}
    with pytest.raises(ValueError, match=message):
        Trainer(**given, config=config).train()


def test_rollouts_ahead_are_refused_with_a_function(tiny_model, digits, tmp_path):
    ahead = small(tmp_path, **{"rollout.engine": "vllm", "rollout.max_off_policy_steps": 1})
    del ahead["rollout"]
    rewards = {"mine": lambda completion, answer: 1.0}
    with pytest.raises(ValueError, match="mine would be called by another thread"):
        Trainer(str(tiny_model), digits / "rl.jsonl", rewards, ahead)


def test_what_is_given_goes_before_the_configuration(tmp_path):
    """Nested and dotted keys; the rewards are those that are given, and no others."""
    yaml = tmp_path / "run.yaml"
    yaml.write_text(
        "model: {path: other}\nrollout: {n: 4, engine: hf}\nseed: 3\n"
        "rewards: {math: 1.0, format: 0.5}\nscoring: {timeout_s: 7}\n"
    )
    config = Trainer("m", "d.jsonl", {"exact": 1.0, "format": 0.2}, yaml).config
    assert (config.model.path, config.data.train, config.seed) == ("m", "d.jsonl", 3)
    assert weights_of(config.rewards) == {"exact": 1.0, "format": 0.2}
    assert config.scoring.timeout_s == 7
    assert weights_of(Trainer(config=yaml).config.rewards) == {"math": 1.0, "format": 0.5}
    values = {"algorithm.name": "dapo", "rollout": {"n": 4}, "rollout.engine.type": "hf"}
    config = Trainer("m", config=values).config
    assert (config.algorithm.name, config.rollout.n, config.rollout.uses_vllm) == ("dapo", 4, False)
    with pytest.raises(ValueError, match=r"algorithm and algorithm\.loss contradict each other"):
        Trainer("m", config={"algorithm.loss": "gspo", "algorithm": "dapo"})
