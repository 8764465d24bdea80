"""Run by ``test_fused_layers.py`` in a process in which Triton's kernels are Python.

Prints how far log-probs and gradients of the fused layers are from those of the plain ones.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import torch
import triton.language as tl
from liger_kernel.ops import rms_norm
from triton.runtime import interpreter

from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.models.fused_layers import fuse_layers
from tests.trainer.tiny_groups import group, image, new_model

_convert = interpreter._implicit_cvt


def with_scalars(argument: Any) -> Any:
    """A compiled kernel gets numbers as scalars; the interpreter leaves floats as they are."""
    if isinstance(argument, float):
        handle = interpreter.TensorHandle(interpreter.np.array([argument], "f4"), tl.float32)
        return tl.tensor(handle, tl.float32)
    return _convert(argument)


interpreter._implicit_cvt = with_scalars
rms_norm.rsqrt = lambda x: tl.rsqrt(x)  # CUDA's own function has no Python form


GROUPS = [group([image(56, 56, 0)], 6, (5, 3), 0), group([], 4, (2,), 1)]


def outcome(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    scores = completion_scores(model, GROUPS)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return scores.logprobs.detach(), grads


def main() -> None:
    plain = new_model()
    fused = copy.deepcopy(plain)
    wanted, gradients = outcome(plain)
    report: dict[str, Any] = {"layers": fuse_layers(fused)}
    got, own = outcome(fused)
    apart = [float((own[n] - g).norm() / g.norm().clamp(min=1e-12)) for n, g in gradients.items()]
    report |= {"logprobs": float((got - wanted).abs().max()), "gradients": max(apart)}
    report["same_parameters"] = own.keys() == gradients.keys()
    print(json.dumps(report))


main()
