"""What is advised where a run does not fit its GPUs."""

from __future__ import annotations

import re
from functools import partial

import pytest

from mmr1.estimate.advice import advice
from mmr1.estimate.command import rows
from mmr1.estimate.load import Load
from mmr1.estimate.memory import GIB, bytes_while_sampling, bytes_while_sending, estimate
from tests.estimate.models import config_for
from tests.vision.families.general_family import GENERAL
from tests.vision.families.tiny_family import FAMILIES


def colocated(**keys: object) -> dict[str, object]:
    return {"engine": {"type": "vllm", "colocate": True, **keys}}


def test_what_does_not_fit_gets_advice_that_helps(three_b):
    load, memory = Load(1100, 1024, 512), 80 * GIB
    full = config_for(three_b)
    assert estimate(full, load).total("trainer") > memory / 2
    assert any("gradient_checkpointing" in line for line in advice(full, load, memory))
    lighter = config_for(
        three_b,
        model={"freeze_vision_tower": True, "gradient_checkpointing": True, "lora": {"rank": 64}},
        rollout={"engine": {"gpu_memory_utilization": 0.3}},
    )
    assert advice(lighter, load, memory) == []


def test_advice_checkpoints_the_fewest_layers_that_fit(three_b):
    load, frozen = Load(1100, 1024, 512), {"freeze_vision_tower": True, "lora": {"rank": 64}}
    plain = config_for(three_b, model=frozen)
    needed = estimate(plain, load).total("trainer")
    memory = (needed - GIB) / (1 - plain.gpu_memory_utilization)  # a GiB too small
    line = next(line for line in advice(plain, load, memory) if "checkpointing" in line)
    layers = int(line.partition("=")[2].partition(":")[0])
    assert 0 < layers < 36
    for number, fits in ((layers, True), (layers - 1, False)):
        changed = config_for(three_b, model={**frozen, "gradient_checkpointing": number or False})
        assert (advice(changed, load, memory) == []) == fits


def test_a_colocated_engine_has_what_the_ranks_leave_it(three_b):
    load, memory = Load(1100, 1024, 512), 80 * GIB
    run = partial(
        config_for,
        three_b,
        model={"gradient_checkpointing": True},
        resources={"ranks": 4},
    )
    roomy = run(rollout=colocated(gpu_memory_utilization=0.6))
    assert advice(roomy, load, memory) == []
    result = estimate(roomy, load)
    held = {i.name: i.bytes for i in result.items if i.owner == "trainer"}
    kept = bytes_while_sampling(roomy, result)
    assert kept == held["weights"] + held["AdamW moments"]  # no gradients, and float32 shards
    less, away, offload = advice(run(rollout=colocated(gpu_memory_utilization=0.9)), load, memory)
    advised = float(re.search(r"gpu_memory_utilization=([\d.]+)", less)[1])
    assert advice(run(rollout=colocated(gpu_memory_utilization=advised)), load, memory) == []
    assert "optimizer.offload=true: moments in main memory" in offload
    assert "rollout.engine.offload_trainer=true: weights and moments" in away
    offloaded = run(rollout=colocated(), optimizer={"offload": True})
    assert bytes_while_sampling(offloaded, estimate(offloaded, load)) == held["weights"]
    assert rows(roomy, result, memory)[-3] == (
        "trainer",
        "kept while the engine samples",
        f"{kept / GIB:.2f}",
    )


def test_advice_for_colocated_ranks_can_be_followed(three_b):
    load, memory = Load(1100, 1024, 512), 16 * GIB
    pair = {"ranks": 2}
    lines = advice(config_for(three_b, resources=pair, rollout=colocated()), load, memory)
    assert any("resources.ranks=4 engines=4" in line for line in lines)
    assert not any("tensor_parallel_size" in line for line in lines)
    # The ranks leave less than an engine's weights: no share of the memory helps.
    run = partial(
        config_for,
        three_b,
        model={"lora": {"rank": 8}, "gradient_checkpointing": True, "dtype": "bfloat16"},
        trainer={"max_tokens_per_gpu": 2048, "vision_token_cost": 1.0},
        optimizer={"offload": True},
    )
    crowded = run(resources=pair, rollout=colocated(gpu_memory_utilization=0.75))
    wider, offloaded = advice(crowded, load, 11 * GIB)
    assert wider.startswith("an engine on 2 GPUs (rollout.engine.tensor_parallel_size)")
    assert offloaded.startswith("rollout.engine.offload_trainer=true")
    wide = colocated(gpu_memory_utilization=0.5, tensor_parallel_size=2)
    assert not advice(run(resources=pair, rollout=wide), load, 11 * GIB)


def test_what_lies_in_main_memory_while_an_engine_samples_is_not_kept(three_b):
    load = Load(1100, 1024, 512)
    model = {"freeze_vision_tower": True, "dtype": "bfloat16"}
    run = config_for(
        three_b,
        model=model,
        algorithm={"name": "ppo"},
        resources={"ranks": 2},
        rollout=colocated(offload_trainer=True),
    )
    result = estimate(run, load)
    held = {i.name: i.bytes for i in result.items if i.owner == "trainer"}
    assert bytes_while_sampling(run, result) == held["vision features"]
    assert bytes_while_sending(run, result) == held["vision features"] + held["weights"]
    # The engine may then have nearly all, but not while the ranks send their weights.
    memory = 1.02 * result.total("trainer") + 2 * GIB
    assert advice(run.changed({"rollout.engine.gpu_memory_utilization": 0.9}), load, memory) == []
    (engine,) = (i.bytes for i in result.items if (i.owner, i.name) == ("engine", "weights"))
    assert held["weights"] + engine < memory


def test_a_sequence_that_is_too_long_alone_is_to_be_shared(three_b):
    """A micro-batch has a prompt and one completion at the least, whatever its budget."""
    load, memory = Load(60000, 0, 1024), 40 * GIB
    run = partial(config_for, three_b, model={"gradient_checkpointing": True})
    alone, halved = (run(trainer={"max_tokens_per_gpu": tokens}) for tokens in (16384, 8192))
    of_alone, of_halved = (estimate(config, load).total("trainer") for config in (alone, halved))
    assert of_alone == of_halved
    lines = advice(alone, load, memory)
    assert not any("max_tokens_per_gpu" in line for line in lines)
    assert (
        "resources.context_parallel_size=2 ranks=2: half of a sequence's activations each" in lines
    )

    def activations(**resources: int) -> float:
        items = estimate(run(resources=resources), load).items
        return next(i.bytes for i in items if i.name == "activations of a micro-batch")

    assert activations(ranks=4, context_parallel_size=2) == activations(ranks=4) / 2
    # Then the sequence fits, and other completions beside it.
    assert activations(ranks=4, context_parallel_size=4) == 2 * 36 * 2048 * 16384
    sections = {"resources": {"ranks": 6, "context_parallel_size": 2}}
    further = advice(run(**sections), load, memory / 2)
    assert any("resources.context_parallel_size=4 ranks=12" in line for line in further)


@pytest.mark.parametrize(("name", "cut"), [("gemma3", True), ("qwen3_5", False)])
def test_sequences_of_layers_with_a_state_are_not_to_be_shared(name, cut):
    """With adapters, whose model has another class than the one that is probed."""
    config = config_for(GENERAL[name].folder, model={"lora": {"rank": 2}})
    lines = advice(config, Load(60000, 0, 1024), GIB // 4)
    assert any("context_parallel_size=2" in line for line in lines) == cut


@pytest.mark.parametrize(("folder", "share"), [("llava", 1.0), ("qwen2_5_vl", 0.5)])
def test_of_a_model_without_a_family_each_rank_encodes_all_pictures(folder, share):
    own = {**GENERAL, **FAMILIES}[folder].folder

    def activations(context: int) -> float:
        resources = {"ranks": 2, "context_parallel_size": context}
        config = config_for(own, resources=resources, trainer={"max_tokens_per_gpu": 1})
        items = estimate(config, Load(1, 4096, 1)).items
        return next(i.bytes for i in items if i.name == "activations of a micro-batch")

    assert activations(2) / activations(1) == pytest.approx(share, rel=0.01)
