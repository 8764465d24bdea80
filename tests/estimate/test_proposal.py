"""What is proposed for the GPUs of a machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from mmr1.config import Config
from mmr1.config.file import load_config, read_written
from mmr1.estimate.gpus import Gpus
from mmr1.estimate.load import Load, longest_load, measured_load
from mmr1.estimate.memory import GIB, estimate
from mmr1.estimate.proposal import propose
from mmr1.trainer.runs.output import RunDirectory
from tests.config.recipes import command_of
from tests.estimate.models import config_for
from tests.paths import REPOSITORY
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
    proposal = propose(config, gpus)
    assert proposal.config == config
    assert proposal.why is None
    assert numbers(config) == (1, 1, False)


def test_synchronous_rollouts_are_colocated(made):
    proposal = propose(made().for_command("train"), EIGHT)
    assert numbers(proposal.config) == (8, 8, True)
    assert "resources.ranks=8 rollout.engine.colocate=true, because" in str(proposal.why)
    assert "take turns" in str(proposal.why)


@pytest.mark.parametrize(("gpus", "expected"), [(8, (4, 4)), (5, (2, 3)), (3, (1, 2))])
def test_of_rollouts_ahead_half_of_the_gpus_learn(made, gpus, expected):
    config = made(rollout={"max_off_policy_steps": 1})
    proposal = propose(config, Gpus(gpus, 80 * GIB))
    assert numbers(proposal.config) == (*expected, False)


def test_more_than_half_learn_where_half_do_not_hold_it(three_b, tmp_path):
    """Ranks of 3B keep 16 bytes of each weight in shards, and whole activations."""
    config = config_for(
        three_b,
        model={"gradient_checkpointing": True},
        rollout={"max_off_policy_steps": 1},
        trainer={"output_dir": str(tmp_path)},
    )
    load, learning = longest_load(config), list[tuple[int, bool]]()
    for memory in range(8, 81, 4):
        chosen = propose(config, Gpus(8, memory * GIB)).config
        learning.append((chosen.resources.ranks, chosen.distributed))
        if chosen.distributed:
            assert chosen.resources.ranks + chosen.engines == 8
            assert estimate(chosen, load).total("trainer") <= memory * GIB
            fewer = chosen.changed({"resources.ranks": chosen.resources.ranks - 1})
            assert chosen.resources.ranks == 4 or (
                estimate(fewer, load).total("trainer") > memory * GIB
            )
    assert learning[0] == (1, False)
    assert {ranks for ranks, distributed in learning if distributed} >= {4, 5}


TURNS = ((2, 2, True), (4, 4, True), (8, 8, True))
HALVES = ((1, 1, False), (2, 2, False), (4, 4, False))
LEARNS = ((2, 1, False), (4, 1, False), (8, 1, False))
BESIDE_ONE = ((1, 1, False), (3, 3, True), (7, 7, True))
OF_RECIPES = {
    "r1_v_geoqa/exact_rl": TURNS,
    "r1_v_clevr/exact_rl": ((1, 1, False), (1, 1, False), (7, 1, False)),
    "vlm_r1_rec/exact_rl": HALVES,
    "video_r1/sft": LEARNS,
    "video_r1/rl": TURNS,
    "video_r1/exact_rl": HALVES,
    "lmm_r1/exact_multimodal": TURNS,
    "easyr1_geometry3k/exact_grpo": ((2, 1, True), (4, 2, True), (8, 4, True)),
    "visualprm/rl": BESIDE_ONE,
    "iterative_grpo/rounds": BESIDE_ONE,
}
"""On 2, 4 and 8 GPUs of 72 GiB, with the published shapes of Qwen2.5-VL-3B."""


@pytest.mark.parametrize("name", OF_RECIPES)
def test_recipes_keep_their_splits(name):
    file = REPOSITORY / f"scripts/recipes/{name}.yaml"
    shapes = REPOSITORY / "scripts/gpu/shapes/qwen2_5_vl_3b"
    config = load_config(file, [f"model.path={shapes}"], command_of(file))
    load = longest_load(config)
    chosen = [propose(config, Gpus(n, 72 * GIB), load=load).config for n in (2, 4, 8)]
    assert tuple(map(numbers, chosen)) == OF_RECIPES[name]


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
    proposal = propose(config, pair)
    assert numbers(proposal.config) == (2, 2, True)
    assert proposal.config.rollout.offload_trainer == offloaded
    assert ("offload_trainer=true" in str(proposal.why)) == offloaded


@pytest.mark.parametrize(
    ("sections", "memory", "why"),
    [
        ({"rollout": {"engine": "hf"}}, 80, "4 of 8 GPUs learn, the others sample"),
        ({}, 1.5, "rollout.engine.colocate=true does not fit GPUs of"),
    ],
    ids=["hf", "memory"],
)
def test_what_cannot_be_colocated_is_split(made, sections, memory, why):
    proposal = propose(made(**sections), Gpus(8, memory * GIB))
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
        ("eval", {"rollout": {"engine": {"colocate": True}}}, (8, 8, True)),
        ("sft", {"model": {"lora": {"load_in_4bit": True}}}, (8, 1, False)),
    ],
)
def test_other_commands(made, command, sections, expected):
    assert numbers(propose(made(**sections).for_command(command), EIGHT).config) == expected


@pytest.mark.parametrize(
    ("width", "count", "engines", "why"),
    [
        (3, 8, 2, "6 of 8 GPUs sample"),
        (16, 8, 1, "rollout.engine.tensor_parallel_size=16 is more than 8 GPUs"),
    ],
)
def test_wide_engines_of_an_evaluation(made, width, count, engines, why):
    config = made(rollout={"engine": {"tensor_parallel_size": width}})
    proposal = propose(config.for_command("eval"), Gpus(count, 80 * GIB))
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
    proposal = propose(config, small)
    assert numbers(proposal.config) == (1, 1, False)
    assert "does not fit GPUs of 8 GiB" in str(proposal.why)
    wide = config.changed({"rollout.engine.tensor_parallel_size": 2})
    proposal = propose(wide, small)
    assert proposal.config.distributed


def test_a_split_is_one_that_the_configuration_takes(made):
    keys = {"rollout": {"engine": "hf"}}
    shared = made(**keys, resources={"ranks": 3, "context_parallel_size": 3})
    assert numbers(propose(shared, EIGHT).config) == (6, 2, False)
    wide = made(rollout={"engine": {"tensor_parallel_size": 3}, "max_off_policy_steps": 1})
    assert numbers(propose(wide, EIGHT).config) == (5, 1, False)


def test_engines_of_several_gpus_are_colocated_too(made):
    wide = {"engine": {"tensor_parallel_size": 2}}
    assert numbers(propose(made(rollout=wide), EIGHT).config) == (8, 4, True)
    assert numbers(propose(made(rollout=wide), Gpus(7, 80 * GIB)).config) == (6, 3, True)
    shared = {"engine": {"type": "vllm", "colocate": True, **wide["engine"]}}
    assert numbers(propose(made(rollout=shared).for_command("eval"), Gpus(7, 80 * GIB)).config) == (
        6,
        3,
        True,
    )


def test_colocation_that_does_not_fit_is_the_lightest_and_says_so(three_b, tmp_path):
    config = config_for(
        three_b, rollout={"engine": {"colocate": True}}, trainer={"output_dir": str(tmp_path)}
    )
    proposal = propose(config, Gpus(8, 16 * GIB))
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
    proposal = propose(ahead, Gpus(2, 80 * GIB))
    assert numbers(proposal.config) == (1, 1, False)
    assert "One of 2 GPUs is used" in str(proposal.why)


def test_a_model_without_a_family_has_all_gpus(made, general):
    proposal = propose(made(model={"path": str(general)}), EIGHT)
    assert numbers(proposal.config) == (8, 8, True)


def test_colocation_that_was_asked_for_and_cannot_be_is_refused(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    config = made(rollout={"engine": {"colocate": True}})
    with pytest.raises(ValueError, match=r"Ray, .*, is not installed"):
        propose(config, EIGHT)


def test_a_resumed_run_keeps_its_numbers_while_the_machine_has_them(made, tmp_path):
    first = propose(made(), Gpus(4, 80 * GIB)).config
    with RunDirectory(first) as directory:
        directory.begin()
    assert numbers(read_written(tmp_path / "config.yaml")) == (4, 4, True)
    proposal = propose(made(), EIGHT, resume=True)
    assert numbers(proposal.config) == (4, 4, True)
    assert "the run was started so" in str(proposal.why)
    assert numbers(propose(made(), EIGHT).config) == (8, 8, True)
    assert numbers(propose(made(), Gpus(3, 80 * GIB), resume=True).config) == (3, 3, True)


def test_a_resumed_run_keeps_how_its_ranks_share(made):
    first = made(resources={"ranks": 4, "engines": 2, "fsdp_size": 2})
    with RunDirectory(first) as directory:
        directory.begin()
    again = made(resources={"context_parallel_size": 1})
    resumed = propose(again, EIGHT, resume=True)
    assert resumed.config.resources.fsdp_size == 2
    assert "resources.fsdp_size=2" in str(resumed.why)


def test_references_to_credentials_stay(made):
    config = made()
    config.keep_references({("trackers",): "${oc.env:KEY}"})
    assert propose(config, EIGHT).config.references == config.references


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
    assert str(propose(config, EIGHT, load=load).why) in out
