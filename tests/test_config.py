"""The configuration tree: what it accepts, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mmr1.config import Config
from mmr1.config.file import dump_yaml, load_config
from tests.paths import REPOSITORY


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return write


def test_overrides_come_after_the_file(file):
    config = load_config(
        file("model: {path: a}\nrollout: {n: 4}"),
        ["rollout.n=6", "rewards.functions.math.weight=2", "data.train=x.jsonl"],
    )
    assert config.rollout.n == 6
    assert config.rewards.functions["math"].weight == 2
    assert config.data.train == "x.jsonl"
    assert config.trainer.max_steps == Config(model={"path": "a"}).trainer.max_steps


def test_the_dump_reads_back_as_the_same_configuration(file):
    config = load_config(file("model: {path: a}\nseed: 3"), ["algorithm.kl_coef=0.1"])
    assert load_config(file(dump_yaml(config))) == config


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        ("model: {path: a}\nrollot: {n: 4}", "", ["unknown key 'rollot'", "'rollout'"]),
        (
            "model: {path: a}\nrollout: {m: 4}",
            "",
            ["unknown key 'rollout.m'", "valid keys here", "n"],
        ),
        ("model: {path: a}", "trainer.max_step=3", ["'trainer.max_step'", "'max_steps'"]),
        (
            "model: {path: a}",
            "rewards.functions.math.wieght=3",
            ["'rewards.functions.math.wieght'"],
        ),
        ("model: {path: a}", "rollout.n=many", ["'rollout.n'", "integer", "'many'"]),
        ("model: {path: a}", "rollout.engine=sglang", ["'rollout.engine'", "known: hf, vllm"]),
        ("model: {path: a}", "rollout.n=1", ["rollout.n=1", "set rollout.n to 2 or more"]),
        ("rollout: {n: 4}", "", ["'model' is missing"]),
        ("model: {path: a", "", ["not valid YAML"]),
        ("- a\n- b", "", ["must be a mapping"]),
        ("model: {path: a}", "rollout.n", ["'rollout.n' is not of the form key.path=value"]),
    ],
)
def test_mistakes_are_named_with_their_file(file, text, override, message):
    path = file(text)
    with pytest.raises(ValueError, match=r".") as error:
        load_config(path, [override] if override else [])
    for words in message:
        assert words in str(error.value)
    if not override:
        assert str(path) in str(error.value)


def test_a_part_of_the_reward_can_be_taken_out(file):
    path = file("model: {path: a}\nrewards: {functions: {format: {weight: 1}, math: {weight: 1}}}")
    assert list(load_config(path, ["rewards.functions.math=null"]).rewards.functions) == ["format"]
    with pytest.raises(ValueError, match=r"rewards\.functions"):
        load_config(path, ["rewards.functions.math=null", "rewards.functions.format=null"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.yaml: no such configuration file"):
        load_config(tmp_path / "nowhere.yaml")


def test_every_shipped_configuration_is_valid():
    shipped = sorted((REPOSITORY / "scripts/recipes").rglob("*.yaml"))
    assert shipped
    for path in shipped:
        assert yaml.safe_load(path.read_text()), path
        load_config(path)


def test_dry_run_prints_the_whole_and_writes_nothing(file, mmr1, tmp_path):
    path = file(f"model: {{path: a}}\ntrainer: {{output_dir: {tmp_path / 'out'}}}")
    code, out, _ = mmr1("train", path, "seed=7", "--dry-run")
    assert code == 0
    assert yaml.safe_load(out) == load_config(path, ["seed=7"]).model_dump(mode="json")
    assert not (tmp_path / "out").exists()


def test_an_override_of_a_default_reward_function_keeps_the_others(file):
    path = file("model: {path: a}")
    functions = load_config(path, ["rewards.functions.format.weight=0.2"]).rewards.functions
    assert {name: f.weight for name, f in functions.items()} == {"format": 0.2, "math": 1.0}
    own = load_config(path, ["rewards.functions={exact: {}}"]).rewards.functions
    assert list(own) == ["exact"]
    named = file("model: {path: a}\nrewards: {functions: {exact: {}}}")
    functions = load_config(named, ["rewards.functions.format.weight=0.2"]).rewards.functions
    assert list(functions) == ["exact", "format"]


def test_an_engine_with_gpus_of_its_own_takes_most_of_their_memory():
    alone, on_ray = (
        Config(model={"path": "m"}),
        Config(model={"path": "m"}, resources={"engines": 2}),
    )
    assert (alone.gpu_memory_utilization, on_ray.gpu_memory_utilization) == (0.5, 0.9)
    chosen = Config(model={"path": "m"}, rollout={"gpu_memory_utilization": 0.3})
    assert chosen.gpu_memory_utilization == 0.3
