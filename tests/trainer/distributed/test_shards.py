"""Models on two ranks, without Ray: what they load, what they keep, what they give away."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from mmr1.config import ModelConfig, OptimizerConfig
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.models.loading import load_trainable
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.parts import known_to_engines
from mmr1.trainer.models.quantization import quantized_weights
from mmr1.trainer.models.state import (
    Digests,
    load_snapshot,
    model_snapshot,
    save_progress,
)
from mmr1.trainer.models.weights import model_weights
from mmr1.trainer.runs.checkpoint import (
    latest_valid_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from tests.trainer.distributed.gloo import on_two_ranks
from tests.trainer.tiny_groups import group, image


@pytest.fixture(scope="module")
def tied(tiny_model, tmp_path_factory) -> Path:
    """The tiny model with one embedding for input and output, as 3B has it."""
    path = tmp_path_factory.mktemp("models") / "tied"
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    model.config.tie_word_embeddings = True
    model.config.text_config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(path)
    AutoProcessor.from_pretrained(tiny_model).save_pretrained(path)
    return path


LOADED = [
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "freeze_vision_tower": True, "lora": {"rank": 2}},
]


@pytest.fixture
def adapter(tied, tmp_path) -> Path:
    """Adapters of the tied model, not zero."""
    model = AutoModelForImageTextToText.from_pretrained(tied, dtype=torch.float32)
    settings = peft.LoraConfig(r=2, target_modules=["v_proj"], init_lora_weights=False)
    peft.get_peft_model(model, settings).save_pretrained(tmp_path)
    return tmp_path


def _check_what_is_loaded(rank: int, mesh: Any, path: Path, adapter: Path) -> None:
    stored = {"dtype": "float32", "lora": {"path": str(adapter)}}
    for sections in (*LOADED, stored):
        config = ModelConfig(path=str(path), **sections)
        model = fsdp.load(config, True, mesh=mesh)
        whole = load_trainable(config)
        sharded = 0
        for name, parameter in model.named_parameters():
            wanted = torch.float32 if parameter.requires_grad else getattr(torch, config.dtype)
            assert parameter.dtype == wanted, name
            sharded += isinstance(parameter, DTensor)
            if (
                ".lora_" not in name or sections is stored
            ):  # else they begin at random, in each process
                assert torch.equal(_full(parameter), whole.get_parameter(name).to(wanted)), name
        assert sharded > 20
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, whole.get_buffer(name)), name
        weights = model_weights(model)
        for name, weight in whole.state_dict().items() if config.lora is None else ():
            assert torch.equal(weights[name], weight), name


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def test_ranks_load_their_shards(tied, adapter):
    on_two_ranks(_check_what_is_loaded, tied, adapter)


def _check_4_bits(rank: int, mesh: Any, path: Path, adapter: Path, out: Path) -> None:
    lora = {"path": str(adapter), "load_in_4bit": True}
    config = ModelConfig(path=str(path), freeze_vision_tower=True, lora=lora)
    model = fsdp.load(config, True, mesh=mesh)
    sharded = {n for n, p in model.named_parameters() if isinstance(p, DTensor)}
    assert {n for n, p in model.named_parameters() if p.requires_grad} <= sharded
    assert not sharded & set(quantized_weights(model))
    whole = model_weights(load_trainable(config))
    weights = model_weights(model)
    assert list(weights) == list(whole)
    for name, weight in whole.items():
        assert torch.equal(weights[name], weight), name
    # What the engine has read of a frozen tower was not in 4 bits.
    known = known_to_engines(model)
    assert "model.visual.patch_embed.proj.weight" in known
    assert "model.visual.blocks.0.mlp.up_proj.weight" not in known
    optimizer = Optimizer(model, OptimizerConfig(scheduler={"warmup_steps": 0}), 10)
    processor, ranks = AutoProcessor.from_pretrained(path), fsdp.DistributedProcessGroup(rank, 2)
    model_snapshot(model, processor, optimizer, process_group=ranks)(out)
    dist.barrier()
    read = AutoModelForImageTextToText.from_pretrained(out, dtype="auto")
    for name, parameter in read.named_parameters():
        assert torch.equal(parameter, whole[name]), name
    trained = {n: _full(p).clone() for n, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.zero_()
    load_snapshot(out, optimizer, rank)
    for name, weight in trained.items():
        assert torch.equal(_full(model.get_parameter(name)), weight), name


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
def test_each_rank_has_the_weights_in_4_bits(tied, adapter, tmp_path):
    on_two_ranks(_check_4_bits, tied, adapter, tmp_path / "out")


def _check_bfloat16(
    rank: int, mesh: Any, path: Path, batches: list[Any], out: Path, digests: Path
) -> None:
    config = ModelConfig(path=str(path), dtype="bfloat16")
    model = fsdp.load(config, True, mesh=mesh)
    optimizer = Optimizer(model, OptimizerConfig(lr=1e-4, scheduler={"warmup_steps": 0}), 10)

    def gradients(of: list[Any]) -> dict[str, torch.Tensor]:
        for batch in of:
            fsdp.run_sharded(completion_scores, model, batch).logprobs.sum().backward()
        caught = {n: _full(p.grad) for n, p in model.named_parameters()}
        optimizer.zero_grad()
        return caught

    apart = [gradients([batch]) for batch in batches]
    together = gradients(batches)
    for name, gradient in together.items():
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, apart[0][name] + apart[1][name] + apart[2][name]), name
    # What one process computes, which the ranks' mean of equal batches is.
    whole = load_trainable(config)
    completion_scores(whole, batches[0]).logprobs.sum().backward()
    for name, parameter in whole.named_parameters():
        ours, norm = apart[0][name], parameter.grad.float().norm()
        assert (ours - parameter.grad).norm() <= 0.02 * norm, name

    before = {n: _full(p).clone() for n, p in model.named_parameters()}
    fsdp.run_sharded(completion_scores, model, batches[0]).logprobs.sum().backward()
    optimizer.step()
    moved = [n for n, p in model.named_parameters() if not torch.equal(_full(p), before[n])]
    assert len(moved) == len(before)
    processor, ranks = AutoProcessor.from_pretrained(path), fsdp.DistributedProcessGroup(rank, 2)
    told = model_snapshot(model, processor, optimizer, process_group=ranks)(out)
    (digests / str(rank)).write_text(json.dumps(told))
    dist.barrier()
    assert AutoConfig.from_pretrained(out).dtype == torch.bfloat16
    stored = load_file(out / "model.safetensors")
    assert "lm_head.weight" not in stored, "the input embedding is stored once"
    read = AutoModelForImageTextToText.from_pretrained(out, dtype="auto")
    for name, parameter in read.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, _full(model.get_parameter(name)).bfloat16()), name


@pytest.mark.slow
def test_bfloat16_ranks_add_up_gradients_and_step_in_float32(saved):
    """The ranks check it themselves."""
    assert saved.checkpoint.is_dir()


@dataclass
class Saved:
    """A checkpoint that two ranks have written, for this process.

    Attributes:
        told: The digests that each rank gave.
        read: What this process has opened for reading since.
    """

    told: list[Digests] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    checkpoint: Path = field(default_factory=Path)


@pytest.fixture(scope="module")
def saved(tied, tmp_path_factory) -> Saved:
    saved, digests = Saved(), tmp_path_factory.mktemp("digests")
    watching = False

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if watching and event == "open" and args[1] in ("r", "rb"):  # no mode: opened to be synced
            saved.read.append(str(args[0]))

    def write(folder: Path) -> Digests:
        nonlocal watching
        batches = [[group([image(56, 56, seed)], 8, [5, 7], seed)] for seed in range(3)]
        on_two_ranks(_check_bfloat16, tied, batches, folder, digests)
        save_progress(folder, {"step": 1})
        saved.told += [json.loads((digests / str(rank)).read_text()) for rank in (0, 1)]
        watching = True
        return saved.told[0] | saved.told[1]

    sys.addaudithook(watch)
    saved.checkpoint = write_checkpoint(tmp_path_factory.mktemp("run"), 1, write)
    watching = False
    return saved


def test_what_a_rank_has_written_is_read_again_by_that_rank_alone(saved):
    checkpoint = saved.checkpoint
    manifest = verify_checkpoint(checkpoint)
    unfinished = f"{checkpoint}.tmp/"
    read = {name.removeprefix(unfinished) for name in saved.read if name.startswith(unfinished)}
    assert read == {"training/state.json", "manifest.json"}
    shards = [f"training/optimizer/shard-0000{n}-model-00001-of-00001.safetensors" for n in (1, 2)]
    generators = [f"training/rng/rank_0000{n}.safetensors" for n in (0, 1)]
    first, second = map(set, saved.told)
    assert second == {shards[1], generators[1]}
    assert first >= {shards[0], generators[0], "model.safetensors", "tokenizer.json"}
    assert first | second | {"training/state.json"} == set(manifest["files"])


@pytest.mark.parametrize("name", ["model.safetensors", "training/rng/rank_00001.safetensors"])
def test_what_is_damaged_later_is_found_whoever_took_its_digest(name, saved):
    path = saved.checkpoint / name
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(bytes(damaged))
    with pytest.raises(ValueError, match=rf"{name} is not what was written"):
        latest_valid_checkpoint(saved.checkpoint.parent)
    path.write_bytes(whole)
    assert latest_valid_checkpoint(saved.checkpoint.parent) == saved.checkpoint
