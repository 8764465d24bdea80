"""The memory of a rank, by a run of FSDP2 on stand-in devices, against ``doctor --estimate``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg

from mmr1.config import Config, ModelConfig, OptimizerConfig
from mmr1.estimate.load import Load
from mmr1.estimate.memory import GIB, estimate
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import GroupInput
from mmr1.trainer.models.optimizer import Optimizer, buffers_for
from tests.gpu_paths.memory import Memory
from tests.gpu_paths.stand_in import DEVICE, SHAPES, group

PROMPT, GRID, VISION, COMPLETION, N = 1280, (1, 64, 64), 1024, 1024, 8
LOAD = Load(PROMPT, VISION, COMPLETION)
CHECKPOINTED = {"gradient_checkpointing": True}
FROZEN = {**CHECKPOINTED, "freeze_vision_tower": True}
ADAPTERS = {**FROZEN, "lora": {"rank": 64}}


@pytest.fixture
def ranks(stand_in) -> Iterator[None]:
    """Makes this process rank 0 of many whose other ranks do not exist."""
    dist.Backend.register_backend(
        "standin_fake", _create_fake_pg, extended_api=True, devices=["cpu", DEVICE.type]
    )
    yield
    dist.destroy_process_group()


def mesh_of(size: int) -> DeviceMesh:
    dist.init_process_group("standin_fake", rank=0, world_size=size, store=FakeStore())
    return init_device_mesh(DEVICE.type, (size,))


def peak_of_a_step(
    config: ModelConfig,
    mesh: DeviceMesh,
    groups: Sequence[GroupInput] = (),
    context: Context | None = None,
) -> tuple[int, int]:
    """Bytes in the second micro-batch, after which all gradients are there; and before it."""
    with Memory() as memory:
        model = fsdp.spread(config, True, mesh)
        model.train()
        optimizer = Optimizer(model, OptimizerConfig(), 10)
        optimizer.tensors()  # AdamW's moments are made
        for _ in range(2):
            memory.restart()
            before = memory.now
            groups = groups or [group([COMPLETION] * N, GRID, PROMPT - VISION)]
            of_batch = fsdp.run_sharded(completion_scores, model, groups, context=context)
            of_batch.logprobs.sum().backward()
            del of_batch
        return memory.peak, before


def estimated(
    model: dict,
    ranks: int,
    load: Load = LOAD,
    **sections: dict,
) -> float:
    """What the doctor says, without the features that a cache keeps in the course of a run."""
    tree = {
        "model": model,
        "data": {"train_batch_size": ranks},
        "rollout": {"n": N, "max_response_length": COMPLETION},
        "resources": {"ranks": ranks},
        **sections,
    }
    items = estimate(Config.model_validate(tree), load).items
    return sum(i.bytes for i in items if i.owner == "trainer" and i.name != "vision features")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        *(
            (name, size, options)
            for name in ("qwen2_5_vl_3b", "qwen2_5_vl_7b")
            for size in (8, 64)
            for options in ({}, CHECKPOINTED, FROZEN, ADAPTERS)
        ),
        *(
            (name, size, options)
            for name in ("qwen2_5_vl_32b", "qwen2_5_vl_72b")
            for size in (8, 16)
            for options in (FROZEN, ADAPTERS)
        ),
    ],
)
@pytest.mark.usefixtures("ranks")
def test_the_estimate_is_within_a_tenth_of_the_peak(name, size, options):
    model = {"path": str(SHAPES / name), **options}
    peak, _ = peak_of_a_step(ModelConfig(**model), mesh_of(size))
    expected = estimated(model, size)
    print(f"{name} {size} {options}: {peak / GIB:.2f} GiB, estimated {expected / GIB:.2f}")
    assert expected == pytest.approx(peak, rel=0.1)


@pytest.mark.usefixtures("ranks")
def test_buffers_of_an_offloaded_optimizer_stay_in_main_memory():
    """The ranks' mesh is one of GPUs, and the masters of its shards are not there."""
    mesh = mesh_of(2)
    meta = TensorMeta(torch.Size([6]), (1,), torch.float32)
    master = DTensor(torch.empty(3), DTensorSpec(mesh, (Shard(0),), meta), requires_grad=False)
    (buffer,) = buffers_for([master], pinned=False)
    assert buffer.device_mesh.device_type == DEVICE.type
    assert (buffer.to_local().device.type, buffer.shape) == ("cpu", master.shape)


LONG = {
    "text": lambda: group([1024] * 8, None, 57344),
    "video": lambda: group([1024] * 8, (64, 32, 32), 40960),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "layers"),
    [
        ("text", 3),
        pytest.param("text", 28, marks=pytest.mark.slow),
        pytest.param("video", 28, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("ranks")
def test_ranks_that_share_a_sequence_of_64k_tokens_share_its_memory(case, layers, tmp_path):
    published = json.loads((SHAPES / "qwen2_5_vl_7b/config.json").read_text())
    published["num_hidden_layers"] = layers
    (tmp_path / "config.json").write_text(json.dumps(published))
    model, mesh = ModelConfig(path=str(tmp_path), **CHECKPOINTED), mesh_of(8)
    vision = LONG[case]().media[0].tokens if case == "video" else 0
    taken = {}
    for size in (1, 4) if layers < 28 else (1, 2, 4, 8):
        context = Context(0, size, dist.new_group(list(range(size)))) if size > 1 else None
        peak, before = peak_of_a_step(model, mesh, [LONG[case]()], context)
        taken[size] = peak - before
        expected = estimated(
            {"path": str(tmp_path), **CHECKPOINTED},
            8,
            Load(57344, vision, 1024),
            resources={"ranks": 8, "context_parallel_size": size},
            data={"train_batch_size": 8},
            rollout={"n": 8, "max_prompt_length": 60000 - 1024},
            trainer={"max_tokens_per_gpu": (65536 + vision) // size, "vision_token_cost": 1.0},
        )
        print(
            f"{case}, {layers} layers, {size}: {taken[size] / GIB:.2f} of {peak / GIB:.2f} GiB, "
            f"estimated {expected / GIB:.2f}"
        )
        if layers == 28:
            assert expected == pytest.approx(peak, rel=0.1)
    # Gathered weights and the gradient of the head are there however short a sequence is.
    peak, before = peak_of_a_step(model, mesh, [group([8], None, 8)])
    fixed = peak - before
    print(f"fixed: {fixed / GIB:.2f} GiB")
    for size in set(taken) - {1}:
        assert taken[size] - fixed <= 1.2 * (taken[1] - fixed) / size
