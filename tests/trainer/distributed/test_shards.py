"""Models on two ranks, without Ray: what they load, what they keep, what they give away."""

from __future__ import annotations

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
from mmr1.trainer.models.state import model_snapshot, model_weights
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
        model, _ = fsdp.load(config, True, mesh=mesh)
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


def _check_bfloat16(rank: int, mesh: Any, path: Path, batches: list[Any], out: Path) -> None:
    config = ModelConfig(path=str(path), dtype="bfloat16")
    model, run = fsdp.load(config, True, mesh=mesh)
    optimizer = Optimizer(model, OptimizerConfig(lr=1e-4, warmup_steps=0), 10)

    def gradients(of: list[Any]) -> dict[str, torch.Tensor]:
        for batch in of:
            run(completion_scores, model, batch, 1.0).logprobs.sum().backward()
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
    completion_scores(whole, batches[0], 1.0).logprobs.sum().backward()
    for name, parameter in whole.named_parameters():
        ours, norm = apart[0][name], parameter.grad.float().norm()
        assert (ours - parameter.grad).norm() <= 0.02 * norm, name

    before = {n: _full(p).clone() for n, p in model.named_parameters()}
    run(completion_scores, model, batches[0], 1.0).logprobs.sum().backward()
    optimizer.step()
    moved = [n for n, p in model.named_parameters() if not torch.equal(_full(p), before[n])]
    assert len(moved) == len(before)
    processor, ranks = AutoProcessor.from_pretrained(path), fsdp.DistributedProcessGroup(rank, 2)
    model_snapshot(model, processor, optimizer, process_group=ranks)(out)
    dist.barrier()
    assert AutoConfig.from_pretrained(out).dtype == torch.bfloat16
    stored = load_file(out / "model.safetensors")
    assert "lm_head.weight" not in stored, "the input embedding is stored once"
    read = AutoModelForImageTextToText.from_pretrained(out, dtype="auto")
    for name, parameter in read.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, _full(model.get_parameter(name)).bfloat16()), name


def test_bfloat16_ranks_add_up_gradients_and_step_in_float32(tied, tmp_path):
    batches = [[group([image(56, 56, seed)], 8, [5, 7], seed)] for seed in range(3)]
    on_two_ranks(_check_bfloat16, tied, batches, tmp_path)
