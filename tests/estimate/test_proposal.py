"""What is proposed for the GPUs of a machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from mmr1.config import Config
from mmr1.config.file import load_config, read_written
from mmr1.estimate.command import split_lines
from mmr1.estimate.gpu_split import Machine, Step, split
from mmr1.estimate.gpus import Gpus
from mmr1.estimate.load import Load, longest_load, measured_load
from mmr1.estimate.memory import GIB
from mmr1.estimate.proposal import propose
from mmr1.estimate.shapes import read_shapes
from mmr1.trainer.runs.output import RunDirectory
from tests.estimate.models import config_for
from tests.vision.families import general_models

EIGHT = Gpus(8, 80 * GIB)


@pytest.fixture
def made(tiny_model, tmp_path):
    def make(**sections: object) -> Config:
        tree = {"model": {"path": str(tiny_model)}, "trainer": {"output_dir": str(tmp_path)}}
        for name, keys in sections.items():
            tree[name] = {**tree.get(name, {}), **keys}
        return Config.model_validate(tree)

    return make


@pytest.fixture(scope="module")
def general(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "general"
    general_models.new_model("internvl", folder)
    return folder


def numbers(config: Config) -> tuple[int, int, bool]:
    return config.resources.ranks, config.engines, config.rollout.colocated


@pytest.mark.parametrize("gpus", [Gpus(0, 0), Gpus(1, 80 * GIB)])
def test_without_several_gpus_nothing_changes(made, gpus):
    config = made()
    proposal = propose(config, "train", gpus)
    assert proposal.config == config
    assert proposal.why is None
    assert numbers(config) == (1, 1, False)


def test_synchronous_rollouts_are_colocated(made):
    proposal = propose(made(), "train", EIGHT)
    assert numbers(proposal.config) == (8, 8, True)
    assert "resources.ranks=8 rollout.engine.type=vllm_colocate, because" in str(proposal.why)
    assert "take turns" in str(proposal.why)


def test_rollouts_ahead_are_split_for_the_shortest_step(made):
    config = made(rollout={"max_off_policy_steps": 1})
    proposal = propose(config, "train", EIGHT)
    ranks, engines, colocate = numbers(proposal.config)
    assert not colocate
    assert "rollout.max_off_policy_steps=1" in str(proposal.why)
    shapes, rollout = read_shapes(config), config.rollout
    step = Step(
        *(shapes.model, shapes.weights, shapes.vocabulary, config.data.train_batch_size, rollout.n),
        longest_load(config),
    )
    seconds = {n: split(step, 8 - n, n, 1, True, Machine()).step_s for n in range(1, 8)}
    assert (ranks, engines) == (8 - engines, min(seconds, key=seconds.__getitem__))


@pytest.mark.parametrize(("share", "offloaded"), [(0.6, False), (0.8, True)])
def test_where_memory_is_short_the_ranks_leave_it_to_the_engines(
    three_b, tmp_path, share, offloaded
):
    """Two ranks of 3B keep 21 GiB of weights and moments each; the engine leaves 32 or 16."""
    config = config_for(
        three_b,
        model={"gradient_checkpointing": True, "dtype": "bfloat16"},
        rollout={"engine": {"gpu_memory_utilization": share}},
        trainer={"output_dir": str(tmp_path)},
    )
    pair = Gpus(2, 80 * GIB)
    proposal = propose(config, "train", pair)
    assert numbers(proposal.config) == (2, 2, True)
    assert proposal.config.rollout.offload_trainer == offloaded
    assert ("offload_trainer=true" in str(proposal.why)) == offloaded


@pytest.mark.parametrize(
    ("sections", "memory", "why"),
    [
        ({"rollout": {"engine": "hf"}}, 80, "separate GPUs"),
        ({}, 1.5, "do not fit the same GPUs"),
    ],
    ids=["hf", "memory"],
)
def test_what_cannot_be_colocated_is_split(made, sections, memory, why):
    proposal = propose(made(**sections), "train", Gpus(8, memory * GIB))
    ranks, engines, colocate = numbers(proposal.config)
    assert not colocate
    width = proposal.config.rollout.gpus_per_engine
    assert ranks + width * engines == 8
    assert why in str(proposal.why)


@pytest.mark.parametrize(
    ("command", "sections", "expected"),
    [
        ("sft", {}, (8, 1, False)),
        ("eval", {}, (1, 8, False)),
        ("eval", {"rollout": {"engine": {"tensor_parallel_size": 2}}}, (1, 4, False)),
        ("eval", {"rollout": {"engine": "vllm_colocate"}}, (8, 8, True)),
        ("sft", {"model": {"lora": {"load_in_4bit": True}}}, (8, 1, False)),
    ],
)
def test_other_commands(made, command, sections, expected):
    assert numbers(propose(made(**sections), command, EIGHT).config) == expected


@pytest.mark.parametrize(
    ("width", "count", "engines", "why"),
    [
        (3, 8, 2, "6 of 8 GPUs sample"),
        (16, 8, 1, "rollout.engine.tensor_parallel_size=16 is more than 8 GPUs"),
    ],
)
def test_wide_engines_of_an_evaluation(made, width, count, engines, why):
    config = made(rollout={"engine": {"tensor_parallel_size": width}})
    proposal = propose(config, "eval", Gpus(count, 80 * GIB))
    assert numbers(proposal.config) == (1, engines, False)
    assert why in str(proposal.why)


def test_a_gpu_that_cannot_hold_an_engine_is_no_engine(three_b, tmp_path):
    """An engine of 3B takes 7 GiB; two GPUs hold halves of it."""
    config = config_for(
        three_b,
        model={"dtype": "bfloat16", "lora": {"rank": 16}, "gradient_checkpointing": True},
        rollout={"max_off_policy_steps": 1},
        trainer={"output_dir": str(tmp_path)},
    )
    small = Gpus(8, 8 * GIB)
    proposal = propose(config, "train", small)
    assert numbers(proposal.config) == (1, 1, False)
    assert "8 GiB does not hold an engine's weights" in str(proposal.why)
    wide = config.changed({"rollout.engine.tensor_parallel_size": 2})
    proposal = propose(wide, "train", small)
    assert proposal.config.distributed
    lines = list(split_lines(config, longest_load(config), 8, 8 * GIB))
    assert "too few" in lines[0]
    assert "too few" in lines[1]


def test_ranks_that_share_sequences_make_a_step_of_few_groups_shorter(made):
    """Three groups: a whole one for each of three ranks, or half a one for each of six."""
    load = Load(20_000, 0, 8)
    keys = {"data": {"train_batch_size": 3}, "rollout": {"n": 2, "engine": "hf"}}
    for context, ranks in ((1, 3), (2, 6)):
        config = made(**keys, resources={"ranks": context, "context_parallel_size": context})
        proposal = propose(config, "train", EIGHT, load=load)
        assert numbers(proposal.config) == (ranks, 8 - ranks, False)
        line = next(split_lines(config, load, 8, EIGHT.memory))
        assert f"resources.ranks={ranks} resources.engines={8 - ranks}" in line


def test_a_split_is_one_that_the_configuration_takes(made):
    config = made(resources={"ranks": 8, "fsdp_size": 4})
    lines = list(split_lines(config, longest_load(config), 8, 80 * GIB))
    assert all("ranks=4" in line for line in lines[:2])
    assert "does not divide 6 GPUs" in list(split_lines(config, longest_load(config), 6, 1e11))[2]
    two = list(split_lines(made(), longest_load(made()), 2, 80 * GIB))
    assert "too few" in two[0]
    wide = made(rollout={"engine": {"tensor_parallel_size": 2}})
    shared = list(split_lines(wide, longest_load(wide), 8, 1e11))[2]
    assert "resources.ranks=8 resources.engines=4" in shared
    three = made(rollout={"engine": {"tensor_parallel_size": 3}})
    shared = list(split_lines(three, longest_load(three), 8, 1e11))[2]
    assert "an engine of 3 GPUs does not divide 8 GPUs" in shared


def test_engines_of_several_gpus_are_colocated_too(made):
    wide = {"engine": {"tensor_parallel_size": 2}}
    assert numbers(propose(made(rollout=wide), "train", EIGHT).config) == (8, 4, True)
    assert numbers(propose(made(rollout=wide), "train", Gpus(7, 80 * GIB)).config) == (6, 3, True)
    shared = {"engine": {"type": "vllm_colocate", **wide["engine"]}}
    assert numbers(propose(made(rollout=shared), "eval", Gpus(7, 80 * GIB)).config) == (6, 3, True)


def test_colocation_that_does_not_fit_is_the_lightest_and_says_so(three_b, tmp_path):
    config = config_for(
        three_b, rollout={"engine": "vllm_colocate"}, trainer={"output_dir": str(tmp_path)}
    )
    proposal = propose(config, "train", Gpus(8, 16 * GIB))
    assert proposal.config.rollout.offload_trainer
    assert "by the estimate this does not fit" in str(proposal.why)


def test_rows_that_training_leaves_out_do_not_count(made, tmp_path):
    Image.new("RGB", (56, 56)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    rows = [
        {"images": [name], "problem": f"<image>{text}", "answer": "1"}
        for name, text in (("good.png", "what?"), ("bad.png", "what?"), ("good.png", "why? " * 999))
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    limits = {"max_prompt_length": 448, "max_response_length": 64}
    load = measured_load(made(data={"train": str(path)}, rollout=limits))
    assert 0 < load.vision < load.prompt < 100


def test_what_two_gpus_cannot_do_runs_in_one_process(made):
    ahead = made(rollout={"max_off_policy_steps": 1})
    proposal = propose(ahead, "train", Gpus(2, 80 * GIB))
    assert numbers(proposal.config) == (1, 1, False)
    assert "cannot be split" in str(proposal.why)
    assert "One of 2 GPUs is used" in str(proposal.why)


def test_a_model_without_a_family_has_all_gpus(made, general):
    proposal = propose(made(model={"path": str(general)}), "train", EIGHT)
    assert numbers(proposal.config) == (8, 8, True)


def test_colocation_that_was_asked_for_and_cannot_be_is_refused(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    config = made(rollout={"engine": "vllm_colocate"})
    with pytest.raises(ValueError, match=r"Ray, .*, is not installed"):
        propose(config, "train", EIGHT)


def test_a_resumed_run_keeps_its_numbers_while_the_machine_has_them(made, tmp_path):
    first = propose(made(), "train", Gpus(4, 80 * GIB)).config
    with RunDirectory(first) as directory:
        directory.begin()
    assert numbers(read_written(tmp_path / "config.yaml")) == (4, 4, True)
    proposal = propose(made(), "train", EIGHT, resume=True)
    assert numbers(proposal.config) == (4, 4, True)
    assert "the run was started so" in str(proposal.why)
    assert numbers(propose(made(), "train", EIGHT).config) == (8, 8, True)
    assert numbers(propose(made(), "train", Gpus(3, 80 * GIB), resume=True).config) == (3, 3, True)


def test_a_resumed_run_keeps_how_its_ranks_share(made):
    first = made(resources={"ranks": 4, "engines": 2, "fsdp_size": 2})
    with RunDirectory(first) as directory:
        directory.begin()
    again = made(resources={"context_parallel_size": 1})
    resumed = propose(again, "train", EIGHT, resume=True)
    assert resumed.config.resources.fsdp_size == 2
    assert "resources.fsdp_size=2" in str(resumed.why)


def test_references_to_credentials_stay(made):
    config = made()
    config.keep_references({("trackers",): "${oc.env:KEY}"})
    assert propose(config, "train", EIGHT).config.references == config.references


def test_commands_run_one_process_whatever_the_machine_has(tiny_model, tmp_path, mmr1):
    (tmp_path / "run.yaml").write_text(f"model: {{path: {tiny_model}}}\n")
    for command in ("train", "sft", "eval"):
        code, out, _ = mmr1(command, tmp_path / "run.yaml", "--dry-run")
        assert code == 0
        (tmp_path / "shown.yaml").write_text(out)
        assert numbers(load_config(tmp_path / "shown.yaml", command=command)) == (1, 1, False)


def test_doctor_prints_the_proposal(made, tmp_path, mmr1):
    config, sizes = made(), ("--memory", 80, "--prompt-tokens", 300)
    path = tmp_path / "run.yaml"
    path.write_text(f"model: {{path: {config.model.path}}}\nalgorithm: {{name: grpo}}\n")
    _, out, _ = mmr1("doctor", "--estimate", path, *sizes, "--gpus", 8)
    load = Load(300, 0, config.rollout.sampling.max_tokens)
    assert str(propose(config, "train", EIGHT, load=load).why) in out
