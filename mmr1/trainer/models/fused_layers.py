"""Norms, gated MLPs and rotary embeddings of a model by Liger-Kernel's fused Triton kernels.

transformers computes each as several element-wise kernels, which on a GPU read and write their
tensors again and again. A layer is replaced by what it computes, not by its name: its class must
give the numbers of the plain formula on a small example.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import nn

from mmr1.config import ModelConfig
from mmr1.vision.families.loading import model_parts

logger = logging.getLogger(__name__)
ROTARY = "apply_rotary_pos_emb"
"""transformers' function, in the module of each family."""


def uses_liger(config: ModelConfig) -> bool:
    """``model.use_liger_kernel``, or its default: on a GPU, where it is installed.

    Raises:
        ValueError: If Liger is asked for and is not installed, or there is no GPU.
    """
    installed = importlib.util.find_spec("liger_kernel") is not None
    runs = torch.cuda.is_available() or _interprets()
    if config.use_liger_kernel is None:
        return installed and torch.cuda.is_available()
    if config.use_liger_kernel and not installed:
        raise ValueError(
            "model.use_liger_kernel=true, and Liger-Kernel is not installed; install "
            "'mmr1[liger]', or leave it out"
        )
    if config.use_liger_kernel and not runs:
        raise ValueError(
            "model.use_liger_kernel=true, and its kernels need a GPU, which torch does not see "
            "here; leave it out"
        )
    return config.use_liger_kernel


def fuse_layers(model: Any) -> dict[str, int]:
    """Replace the layers of a transformers model that Liger-Kernel computes, in place.

    Returns:
        How many of each kind.
    """
    fused = {"RMSNorm": 0, "SwiGLU": 0, "rotary embedding": 0}
    for module in model.modules():
        kind: Any = type(module)
        if is_rms_norm(kind):
            module.forward = MethodType(_rms_norm, module)
            fused["RMSNorm"] += 1
        elif _is_silu(getattr(module, "act_fn", None)) and is_swiglu(kind):
            module.forward = MethodType(_swiglu, module)
            fused["SwiGLU"] += 1
    for home in {_home(layer) for layer in model_parts(model).layers}:
        rotary = getattr(sys.modules[home], ROTARY, None)
        if rotary is None or not (is_fused(rotary) or is_rotary(rotary)):
            continue
        if not is_fused(rotary):  # by an earlier model of the family
            setattr(sys.modules[home], ROTARY, _rotary_or(rotary))
        fused["rotary embedding"] += 1
    left = [kind for kind, count in fused.items() if not count]
    if left:
        logger.warning("Liger-Kernel: the model has no %s that it fuses", " and no ".join(left))
    return fused


def _home(layer: Any) -> str:
    """The module of the layer's class; transformers has its rotary embedding there too."""
    return type(layer).__module__


def _rms_norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    from liger_kernel.transformers.functional import liger_rms_norm

    # Not in place: the gradient that comes in may continue along the residual too.
    normed: torch.Tensor = liger_rms_norm(
        hidden_states, self.weight, self.variance_epsilon, in_place=False
    )
    return normed


def _swiglu(self: Any, x: torch.Tensor) -> torch.Tensor:
    from liger_kernel.transformers.functional import liger_swiglu

    out: torch.Tensor = self.down_proj(liger_swiglu(self.gate_proj(x), self.up_proj(x)))
    return out


def _rotary_or(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A rotary embedding that is fused on a GPU; other models of the family call it too."""

    def rotary(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        unsqueeze_dim: int = 1,
    ) -> Any:
        if unsqueeze_dim != 1 or not (q.is_cuda or _interprets()):
            return plain(q, k, cos, sin, unsqueeze_dim)
        from liger_kernel.transformers.functional import liger_rope

        return liger_rope(q, k, cos, sin)

    rotary.fused = True  # type: ignore[attr-defined]
    return rotary


def _interprets() -> bool:
    """True if Triton interprets its kernels in Python, on a CPU too."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def is_rms_norm(kind: Any) -> bool:
    """True if this class computes ``weight * x / rms(x)``, the root in float32.

    Others, with ``1 + weight`` or a gate, have the same attributes.
    """
    if not kind.__name__.endswith("RMSNorm"):
        return False
    with torch.device("cpu"), torch.no_grad():
        try:
            norm: Any = kind(6, eps=1e-5)
            norm.weight.copy_(torch.linspace(0.5, 2, 6))
            x = torch.linspace(-3, 2, 12).view(2, 6)
            scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)
            return torch.allclose(norm(x), norm.weight * (x * scale), atol=1e-6)
        except (AttributeError, TypeError):  # it is built or called otherwise
            return False


def _is_silu(activation: Any) -> bool:
    x = torch.linspace(-3, 3, 7, device="cpu")
    return callable(activation) and torch.equal(activation(x), nn.functional.silu(x))


@cache
def is_swiglu(kind: Any) -> bool:
    """True if this class computes ``down(silu(gate(x)) * up(x))``."""
    with torch.device("cpu"), torch.no_grad():
        own: Any = kind.__new__(kind)
        nn.Module.__init__(own)
        own.gate_proj, own.up_proj = nn.Linear(4, 6), nn.Linear(4, 6)
        own.down_proj, own.act_fn = nn.Linear(6, 4), nn.SiLU()
        x = torch.linspace(-3, 2, 8).view(2, 4)
        try:
            got = own(x)
        except (AttributeError, TypeError):
            return False
        wanted = own.down_proj(nn.functional.silu(own.gate_proj(x)) * own.up_proj(x))
        return isinstance(got, torch.Tensor) and torch.allclose(got, wanted, atol=1e-6)


def is_fused(rotary: Callable[..., Any]) -> bool:
    """Return whether :func:`fuse_layers` made this rotary embedding."""
    return getattr(rotary, "fused", False)


def is_rotary(function: Callable[..., Any]) -> bool:
    """Return whether it rotates the halves of all of each head by equal angles."""
    with torch.device("cpu"), torch.no_grad():
        q, k = (
            torch.linspace(-2, 3, 24).view(1, 2, 3, 4),
            torch.linspace(-1, 1, 12).view(1, 1, 3, 4),
        )
        angles = torch.linspace(0, 3, 6).view(1, 3, 2).repeat(1, 1, 2)
        try:
            got = function(q, k, angles.cos(), angles.sin())
        except TypeError:
            return False

        def turned(x: torch.Tensor) -> torch.Tensor:
            left, right = x.chunk(2, -1)
            return x * angles.cos()[:, None] + torch.cat([-right, left], -1) * angles.sin()[:, None]

        return all(
            torch.allclose(a, turned(b), atol=1e-6) for a, b in zip(got, (q, k), strict=True)
        )
