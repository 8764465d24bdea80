"""The packed forward and backward of full-size models, up to the kernels' doors."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmr1.attention import Blocks, attend_backward
from mmr1.rollout.distribution import Distribution
from mmr1.runtime import set_up_torch
from mmr1.trainer.forward.logprob_head import token_logprobs
from mmr1.trainer.forward.scores import completion_scores
from tests.gpu_paths.stand_in import DEVICE, full_size_model, group

LAYERS = {"qwen2_5_vl_3b": 36, "qwen2_5_vl_7b": 28}


class Products(TorchDispatchMode):
    """Shapes of the matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.mm:
            self.shapes.append(tuple(out.shape))
        return out


class Demanded(TorchDispatchMode):
    """Whether deterministic operations are demanded at each backward of the varlen kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.at_kernel: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten._flash_attention_backward:
            lenient = torch.is_deterministic_algorithms_warn_only_enabled()
            self.at_kernel.append(torch.are_deterministic_algorithms_enabled() and not lenient)
        return func(*args, **(kwargs or {}))


def scores_and_gradients(model, groups, **options):
    scores = completion_scores(model, groups, Distribution(forbidden=(151655, 151656)), **options)
    scores.logprobs.sum().backward()
    return scores


@pytest.mark.parametrize("name", LAYERS)
def test_images_text_and_short_completions(stand_in, name):
    model = full_size_model(name)
    groups = [
        group([100, 37, 1, 64], (1, 64, 64)),
        group([90], (1, 36, 52)),
        group([2, 2, 1, 5]),
    ]
    scores = scores_and_gradients(model, groups)
    assert scores.logprobs.shape == (9, 100)
    assert (scores.logprobs.device, scores.logprobs.dtype) == (DEVICE, torch.float32)
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())
    # A layer attends within prompts, within completions and from completions to prompts.
    calls = 3 * LAYERS[name] + 32
    assert stand_in.kernels == {
        "_flash_attention_forward": calls,
        "_flash_attention_backward": calls,
    }


@pytest.mark.parametrize("asked", [False, True])
def test_a_deterministic_run_has_the_kernel_add_in_order(stand_in, monkeypatch, asked):
    """The kernel does so where deterministic operations are demanded, and not only warned of."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    before = torch.are_deterministic_algorithms_enabled()
    rows = [torch.empty(6, 2, 64, dtype=torch.bfloat16, device=DEVICE) for _ in range(5)]
    blocks = Blocks((4, 2), (4, 2), causal=True, device=DEVICE)
    lse = torch.empty(6, 2, device=DEVICE)
    try:
        set_up_torch(0, deterministic=asked)
        with Demanded() as demanded:
            attend_backward(*rows, lse, blocks, 0.1)
        assert torch.is_deterministic_algorithms_warn_only_enabled() == asked
    finally:
        torch.use_deterministic_algorithms(before)
    assert demanded.at_kernel == [asked]


def test_the_head_takes_a_chunk_of_883_rows(stand_in):
    hidden = torch.empty(2000, 2048, dtype=torch.bfloat16, device=DEVICE)
    weight = torch.empty(151936, 2048, dtype=torch.bfloat16, device=DEVICE)
    hidden.requires_grad_()
    weight.requires_grad_()
    targets = torch.zeros(2000, dtype=torch.int64).to(DEVICE)
    with Products() as products:
        logprobs, entropy = token_logprobs(hidden, weight, targets)
        (logprobs.sum() + entropy.sum()).backward()
    logits = [shape for shape in products.shapes if shape[1] == 151936]
    # Once in the forward pass, and again in the backward pass.
    assert logits == 2 * [(883, 151936), (883, 151936), (234, 151936)]
