"""Layers of a configuration: preset, file, command line; what is said of mistakes in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmr1.config import AlgorithmConfig, Config
from mmr1.config.commands import PACKAGE_SECTIONS
from mmr1.config.file import (
    config_from,
    dump_yaml,
    load,
    load_config,
    read_written,
    redacted,
    write_yaml,
)
from tests.config.recipes import shipped
from tests.paths import REPOSITORY


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return write


def tree(values: dict[str, Any], *overrides: str, command="train") -> dict[str, Any]:
    """What is written of a model's configuration with these values."""
    return redacted(config_from({"model": {"path": "m"}, **values}, overrides, command))


def refusal(*overrides: str, command="train") -> str:
    with pytest.raises(ValueError, match=r".") as error:
        config_from({"model": {"path": "m"}}, overrides, command)
    return str(error.value)


def test_overrides_come_after_the_file(file):
    config = load_config(
        file("model: {path: a}\nrollout: {n: 4}"),
        ["rollout.n=6", "rewards.math.weight=2", "data.train=x.jsonl"],
    )
    assert config.rollout.n == 6
    assert config.rewards["math"].weight == 2
    assert config.data.train == "x.jsonl"
    assert config.trainer.max_steps == 100


KL = {
    "type": "loss",
    "coef": 0.01,
    "target": None,
    "estimator": "k3",
    "use_bias_correction_kl": False,
    "reference": {"type": "initial", "offload": False},
}


@pytest.mark.parametrize(
    ("values", "overrides", "key", "expected"),
    [
        # A key opens its section, over a file's null too; null closes it.
        ({}, ["algorithm.kl.coef=0.01"], "kl", KL),
        ({"kl": None}, ["algorithm.kl.coef=0.01"], "kl", KL),
        ({"kl": {"coef": 0.1}}, ["algorithm.kl=null"], "kl", None),
        # A preset says how a section begins that is opened under it.
        ({"name": "ppo"}, ["algorithm.kl.coef=0.01"], "kl", ("reward", "k1")),
        ({"name": "reinforce_pp"}, ["algorithm.kl.coef=0.01"], "kl", ("reward", "k1")),
        ({"name": "reinforce_pp_baseline"}, ["algorithm.kl.coef=0.01"], "kl", ("loss", "k2")),
        # ... and in the loss the estimator is one whose gradient is not 0.
        (
            {"name": "ppo"},
            ["algorithm.kl.coef=0.01", "algorithm.kl.type=loss"],
            "kl",
            ("loss", "k3"),
        ),
        # Another type starts afresh.
        ({"name": "dapo"}, ["algorithm.loss.type=gspo"], "loss", ("gspo", 3e-4, 4e-4)),
        ({"name": "dapo"}, ["algorithm.loss=gspo"], "loss", ("gspo", 3e-4, 4e-4)),
        ({"loss": {"clip_ratio_high": 0.3}}, ["algorithm.loss=gspo"], "loss", ("gspo", 3e-4, 4e-4)),
        # The order of overrides does not matter.
        (
            {},
            ["algorithm.loss.clip_ratio_high=5e-4", "algorithm.loss.type=gspo"],
            "loss",
            ("gspo", 3e-4, 5e-4),
        ),
        ({}, ["algorithm=dapo", "algorithm.loss=gspo"], "loss", ("gspo", 3e-4, 4e-4)),
        # The same type keeps what is set.
        (
            {"loss": {"clip_ratio_high": 0.3}},
            ["algorithm.loss.type=ppo"],
            "loss",
            ("ppo", 0.2, 0.3),
        ),
        # A preset lies below the keys of its own layer, and over the layers below.
        ({"name": "dapo", "loss": {"clip_ratio_high": 0.3}}, [], "loss", ("ppo", 0.2, 0.3)),
        ({"name": "dapo", "filter_groups": None}, [], "filter_groups", None),
        (
            {"name": "grpo", "loss": {"clip_ratio_high": 0.3}},
            ["algorithm.name=dapo"],
            "loss",
            ("ppo", 0.2, 0.28),
        ),
        ({"name": "${oc.env:NO_SUCH,dapo}"}, [], "loss", ("ppo", 0.2, 0.28)),
    ],
)
def test_layers(values, overrides, key, expected):
    section = tree({"algorithm": values}, *overrides)["algorithm"][key]
    if isinstance(expected, tuple):
        keys = {"kl": ("type", "estimator")}.get(key, ("type", "clip_ratio_low", "clip_ratio_high"))
        section = tuple(section[k] for k in keys)
    assert section == expected


def test_a_preset_on_the_command_line_keeps_what_it_does_not_fill():
    algorithm = tree({"algorithm": {"kl": {"coef": 0.01}}}, "algorithm.name=dapo")["algorithm"]
    assert algorithm["kl"] == KL
    assert algorithm["filter_groups"]["type"] == "resample"
    assert (algorithm["name"], algorithm["loss"]["agg_mode"]) == ("dapo", "token-mean")


def test_engines_are_chosen_by_a_word_and_start_afresh():
    hf = tree({}, "rollout.engine=hf")["rollout"]["engine"]
    assert hf == {"type": "hf", "colocate": False}
    given = {"rollout": {"engine": {"gpu_memory_utilization": 0.4}}}
    assert tree(given, "rollout.engine=hf")["rollout"]["engine"] == hf
    handed_on = tree({}, "rollout.engine.engine_kwargs.max_num_seqs=64")["rollout"]["engine"]
    assert handed_on["engine_kwargs"] == {"max_num_seqs": 64}
    with pytest.raises(ValueError, match="type 'hf' has no 'engine_kwargs'; type vllm has it"):
        tree({"rollout": {"engine": "hf"}}, "rollout.engine.engine_kwargs.x=1")


def test_a_file_with_a_name_is_short_for_something_of_your_own():
    algorithm = tree({"algorithm": {"loss": "mine.py:thing"}}, "algorithm.advantage=mine.py:thing")
    for key in ("loss", "advantage"):
        assert algorithm["algorithm"][key]["type"] == "mine.py:thing"
    rollout = tree({}, "rollout.engine=mine.py:thing", "rollout.engine.url=http://a")["rollout"]
    assert rollout["engine"] == {"type": "mine.py:thing", "colocate": False, "url": "http://a"}
    assert AlgorithmConfig(loss="mine.py:thing").loss.type == "mine.py:thing"


def test_auto_and_numbers_of_processes_take_each_others_place():
    assert tree({"resources": "auto"})["resources"]["auto"] is True
    numbers = tree({"resources": "auto"}, "resources.ranks=2")["resources"]
    assert (numbers["auto"], numbers["ranks"]) == (False, 2)
    auto = tree({"resources": {"ranks": 2}}, "resources=auto")["resources"]
    assert (auto["auto"], auto["ranks"]) == (True, 1)
    assert "leave them out" in refusal("resources=auto", "resources.ranks=2")


def test_another_key_of_the_file_can_be_taken():
    values = {
        "data": {"train_batch_size": 32},
        "algorithm": {"ppo_mini_batch_size": "${data.train_batch_size}"},
    }
    assert tree(values, "data.train_batch_size=8")["algorithm"]["ppo_mini_batch_size"] == 8


def test_a_number_is_a_reward_functions_weight():
    functions = {"math": {"weight": 1.0, "gate": 0.5}, "mine": {"type": "r.py:f", "sandbox": None}}
    written = tree({"rewards": functions}, "rewards.math=0.25")
    assert written["rewards"]["math"]["weight"] == 0.25
    assert written["rewards"]["math"]["gate"] == 0.5
    assert written["rewards"]["mine"]["sandbox"] is None
    by_path = tree({"rewards": {"r.py:f": 1.0}})["rewards"]
    assert by_path["r.py:f"]["type"] == "r.py:f"


def test_an_override_of_a_default_reward_function_keeps_the_others(file):
    path = file("model: {path: a}")
    for override in ("rewards.format.weight=0.2", "rewards.format=0.2"):
        functions = load_config(path, [override]).rewards
        assert {name: f.weight for name, f in functions.items()} == {"format": 0.2, "math": 1.0}
    assert list(load_config(path, ["rewards.format=null"]).rewards) == ["math"]
    own = load_config(path, ["rewards={exact: {}}"]).rewards
    assert list(own) == ["exact"]
    named = file("model: {path: a}\nrewards: {exact: {}}")
    functions = load_config(named, ["rewards.format.weight=0.2"]).rewards
    assert list(functions) == ["exact", "format"]


def test_a_part_of_the_reward_can_be_taken_out(file):
    path = file("model: {path: a}\nrewards: {format: 1, math: 1}")
    assert list(load_config(path, ["rewards.math=null"]).rewards) == ["format"]
    with pytest.raises(ValueError, match=r"rewards"):
        load_config(path, ["rewards.math=null", "rewards.format=null"])


@pytest.mark.parametrize(
    ("text", "overrides", "note"),
    [
        (
            "algorithm: {name: dapo}",
            ["algorithm.loss.type=gspo"],
            "algorithm.loss: gspo in place of ppo; clip_ratio_high dropped",
        ),
        (
            "algorithm: {loss: {clip_ratio_high: 0.3}}",
            ["algorithm.name=dapo"],
            "algorithm.loss: that of dapo; clip_ratio_high dropped",
        ),
        ("algorithm: {name: dapo}", ["algorithm.name=gspo"], None),
        (
            "rollout: {engine: {gpu_memory_utilization: 0.4}}",
            ["rollout.engine=hf"],
            "rollout.engine: hf in place of vllm; gpu_memory_utilization dropped",
        ),
    ],
)
def test_what_a_changed_type_drops_is_told(file, text, overrides, note):
    loaded = load(file(f"model: {{path: a}}\n{text}"), overrides)
    assert loaded.notes == (() if note is None else (note,))


def test_a_resolved_run_under_another_preset_tells_nothing_of_defaults(file):
    path = file(dump_yaml(config_from({"model": {"path": "m"}, "algorithm": {"name": "dapo"}})))
    loaded = load(path, ["algorithm.name=gspo"])
    assert loaded.config.algorithm.loss.type == "gspo"
    assert loaded.config.algorithm.filter_groups is None
    assert loaded.notes == ()


def test_a_command_has_its_sections():
    sft = tree({}, command="sft")
    assert not {"rollout", "rewards", "algorithm", "eval"} & sft.keys()
    assert {"rollout", "rewards", "algorithm", "eval"} <= tree({}).keys()
    run = tree({"algorithm": {"name": "dapo"}})
    assert config_from(run, command="eval").rollout.n == 8
    both = refusal("rollout.n=3", "algorithm.name=dapo", command="sft").splitlines()
    assert both == [
        f"configuration: section '{key}': mmr1 sft does not read it; leave it out"
        for key in ("rollout", "algorithm")
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.kl.coeff=0.01", "unknown key 'algorithm.kl.coeff': type 'loss' has no 'coeff'"),
        ("algorithm.kl.coeff=0.01", "did you mean 'algorithm.kl.coef'?"),
        ("algorithm.n=4", "unknown key 'algorithm.n'; did you mean 'rollout.n'?"),
        ("algorithm.kl_coef=0.1", "did you mean 'algorithm.kl.coef'?"),
        ("algorithm.klx.coef=0.01", "unknown key 'algorithm.klx'; did you mean 'algorithm.kl'?"),
        ("algorithm.loss.type=gsop", "'algorithm.loss.type': there is no 'gsop'; did you mean 'gs"),
        ("algorithm.loss=gsop", "did you mean 'gspo'?"),
        (
            "algorithm.advantage=own.py",
            "'algorithm.advantage.type': name the function of the file too: own.py:FUNCTION",
        ),
        (
            "algorithm.advantage.temperature=1",
            "'grpo' has no 'temperature'; valid keys here: ",
        ),
        ("algorithm.name=dappo", "there is no such preset (did you mean 'dapo'?)"),
        ("algorithm.advantage.gamma=0.9", "type gae, gigpo, reinforce, reinforce_pp have it"),
        ("algorithm.kl.coef=0", "'algorithm.kl.coef': Input should be greater than 0 (it is 0)"),
        ("algorithm.kl.estimator=k2", "'algorithm.kl.coef' is missing; set it in the file or as"),
        ("rollot.n=4", "unknown key 'rollot'; did you mean 'rollout'?"),
        ("trainer.max_step=3", "did you mean 'trainer.max_steps'?"),
        ("trainer.save_steps=3", "did you mean 'trainer.checkpoints.save_steps'?"),
        ("rollout.nn=4", "did you mean 'rollout.n'?"),
        ("lr=1e-6", "did you mean 'optimizer.lr'?"),
        ("rewards.math.wieght=3", "'rewards.math.wieght': type 'math' has"),
        ("rewards.math.wieght=3", "did you mean 'rewards.math.weight'?"),
        ("rewards.math.sandbox=null", "type 'math' has no 'sandbox'"),
        ("rollout.n=many", "'rollout.n': Input should be a valid integer"),
        ("rollout.engine=sglang", "'rollout.engine.type': there is no 'sglang'; it may be vllm, "),
        (
            "data.format.promt_key=q",
            "did you mean 'data.format.prompt_key'?",
        ),
        ("data.train={a: x}", "'data.train.a': Input should be a valid number"),
        ("optimizer.scheduler.warmup_steps=-1", "'optimizer.scheduler.warmup_steps': Input should"),
        ("rollout.n", "override 'rollout.n' is not of the form key.path=value"),
        ("rollout.m=4", "valid keys here: n, max_prompt_length"),
    ],
)
def test_mistakes_are_named_with_a_remedy(override, message):
    assert message in refusal(override)
    assert len(refusal(override).splitlines()) == 1


def test_all_mistakes_are_named_at_once():
    lines = refusal("rollout.n=many", "trainer.max_step=3", "algorithm.kl.coef=0").splitlines()
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rollout: {n: 4}", "'model' is missing"),
        ("model: {path: a", "not valid YAML"),
        ("- a\n- b", "must be a mapping"),
        ("model:\n  path: a\n  lora:\n", "model.lora: no value is given; write null, or {}"),
        ("model: {path: a}\nalgorithm:\n  kl:\ndata:\n", "algorithm.kl, data: no value is given"),
        ("model: {path: a}\nrollout: {n: 1}", "set rollout.n to 2 or more"),
    ],
)
def test_mistakes_are_named_with_their_file(file, text, message):
    path = file(text)
    with pytest.raises(ValueError, match=r".") as error:
        load_config(path)
    assert message in str(error.value)
    assert all(line.startswith(str(path)) for line in str(error.value).splitlines())


NESTED = "seed: " + "[" * 2000
BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{now}: &{now} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, now in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        NESTED,
        "seed: " + "[" * 100 + "]" * 100,
        BOMB,
        "a: &a [*a]",
        "a: {x: &a {y: *a}}",
        "? [1, 2]\n: 3",
        "a: !!timestamp x",
        "seed: !!int x",
        f"seed: 1{'0' * 5000}",
        "a: [{'${': '${'}]",
        "a: [!!set {x}]",
        "# long\n" * 50_000,
        "a: !!python/object:os.system x",
    ],
)
def test_yaml_that_is_no_configuration_is_one_line(text, file):
    path = file(text)
    for read in (load_config, read_written):
        if read is read_written and "${" in text:
            continue  # a text for it
        with pytest.raises(ValueError, match=str(path)) as refused:
            read(path)
        assert "object_type" not in str(refused.value)


@pytest.mark.parametrize("value", ["[" * 3000, "!!int x", "!!timestamp x", f"1{'0' * 5000}"])
def test_an_override_that_is_no_yaml_is_named(value):
    with pytest.raises(ValueError, match="override 'seed': its value is not valid YAML"):
        load_config(None, ["model.path=m", f"seed={value}"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.yaml: no such configuration file"):
        load_config(tmp_path / "nowhere.yaml")


def test_an_override_in_the_place_of_the_file_is_named():
    with pytest.raises(ValueError, match="a YAML file comes first, then KEY=VALUE"):
        load_config(Path("model.path=models/tiny"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.kl=null", "algorithm.kl.coef=0.1"],
        ["algorithm.kl.coef=0.1", "algorithm.kl=null"],
        ["data.format=verl", "data.format.prompt_key=q"],
    ],
)
def test_a_whole_and_a_part_on_one_command_line_contradict_each_other(overrides):
    assert "contradict each other" in refusal(*overrides)


def test_the_last_of_equal_overrides_counts():
    """Scripts put a user's overrides behind their own."""
    engine = tree({}, "rollout.engine=hf", "rollout.engine.type=vllm")["rollout"]["engine"]
    assert engine["type"] == "vllm"


def test_steps_are_100_unless_epochs_are_given():
    assert tree({})["trainer"]["max_steps"] == 100
    assert tree({}, "trainer.total_epochs=3")["trainer"]["max_steps"] is None
    both = tree({}, "trainer.total_epochs=3", "trainer.max_steps=7")["trainer"]
    assert (both["max_steps"], both["total_epochs"]) == (7, 3)


def test_every_shipped_configuration_is_valid_and_reads_back_equal(tmp_path):
    files = shipped()
    assert len(files) > 60
    for path, command in files:
        config = load_config(path, command=command)
        write_yaml(tmp_path / "config.yaml", config)
        assert load_config(tmp_path / "config.yaml", command=command) == config, path
        if not config.references:  # which stay as they are written
            assert read_written(tmp_path / "config.yaml") == config, path


def test_reading_configurations_loads_neither_the_trainer_nor_torch():
    code = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from mmr1.config.file import load_config
from tests.config.recipes import shipped
for path, command in shipped():
    load_config(path, command=command)
loaded = [m for m in sys.modules if m.startswith("mmr1.trainer") or m.split(".")[0] == "torch"]
print(len(shipped()), loaded)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{len(shipped())} []"


def test_nothing_but_the_values_of_a_configuration_counts():
    """What was written and what is a default by chance are alike: a resumed run reads its file."""
    values = {"model": {"path": "m"}, "resources": {"ranks": 1}, "trainer": {"max_steps": 100}}
    assert config_from(values) == config_from({"model": {"path": "m"}})


def test_yaml_has_the_type_first_and_every_key_of_open_sections():
    written = yaml.safe_load(dump_yaml(config_from({"model": {"path": "m"}})))
    assert next(iter(written["algorithm"]["advantage"])) == "type"
    assert written["algorithm"]["kl"] is None
    assert list(written) == [
        key for key in Config.model_fields if key not in ("sft", *PACKAGE_SECTIONS.names())
    ]


def test_a_variable_that_is_not_set_is_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("MMR1_NOT_SET", raising=False)
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: a}\ndata: {train: '${oc.env:MMR1_NOT_SET}'}\n")
    with pytest.raises(ValueError, match=r"run\.yaml: .*MMR1_NOT_SET.*data\.train") as refused:
        load_config(path)
    assert "\n" not in str(refused.value)


def test_a_default_of_the_environment_is_written_where_it_was_taken(tmp_path, monkeypatch):
    """Else the written configuration could only be read where the variable is set."""
    monkeypatch.delenv("MMR1_NOT_SET", raising=False)
    monkeypatch.setenv("MMR1_SET", "there")
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {path: a}\n"
        "data: {train: '${oc.env:MMR1_NOT_SET,data}/${oc.env:MMR1_SET,x}.jsonl'}\n"
    )
    config = load_config(path)
    write_yaml(tmp_path / "config.yaml", config)
    assert "train: data/${oc.env:MMR1_SET}.jsonl\n" in (tmp_path / "config.yaml").read_text()
    assert load_config(tmp_path / "config.yaml") == config


def test_a_filter_may_stand_on_another_number_of_a_function():
    keys = ["model.path=m", "algorithm=dapo", "rewards={rule: {type: 'x.py:reward_func'}}"]
    of = "algorithm.filter_groups.range={metric: %s}"
    config = load_config(None, [*keys, of % "rule/accuracy_rewards"])
    assert config.algorithm.resamples.range.metric == "rule/accuracy_rewards"
    with pytest.raises(ValueError, match=r"not in rewards"):
        load_config(None, [*keys, of % "other/accuracy_rewards"])


def test_a_string_is_short_for_the_type_of_a_reward():
    config = config_from({"model": {"path": "m"}}, ["rewards={own: 'f.py:g'}"], "train")
    assert (config.rewards["own"].type, config.rewards["own"].weight) == ("f.py:g", 1)
