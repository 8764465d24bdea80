"""Layers that carry a state from token to token, in a packed sequence.

transformers reaches what mixes tokens in such layers through functions of its modules: a short
convolution and a scan. Everything else goes token by token. A completion's convolution begins with
the last inputs of its prompt and its scan with the state in which the prompt ends, so autograd adds
up their gradients over the completions. The functions that stand before transformers' own take the
layout as an argument that the layers hand on; without one they are transformers' own.

On GPUs transformers' functions call flash-linear-attention and causal-conv1d, with the
arguments that are used here. That was read, and never run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, cast

import torch
from torch.nn.functional import pad

from mmr1.trainer.forward.any_model.layout import PrefixSharingError, SharedLayout

Function = Callable[..., Any]


def share_states(modules: Sequence[torch.nn.Module]) -> None:
    """Put ours before the functions of the Python modules that define these layers, once.

    Raises:
        PrefixSharingError: If they scan by a function that ours do not stand before.
    """
    for module in {sys.modules[type(m).__module__] for m in modules}:
        if any(hasattr(module, name) for name in _NOT_SHARED):
            raise PrefixSharingError("its layers carry a state that completions cannot begin with")
        for name, ours in _SHARED.items():
            own = getattr(module, name, None)
            if own is not None and not hasattr(own, "shares_states"):
                shared = wraps(own)(ours(own))
                shared.shares_states = True  # type: ignore[attr-defined]
                setattr(module, name, shared)


def has_states(modules: Sequence[torch.nn.Module]) -> bool:
    """True if such layers take a layout."""
    defined = {sys.modules[type(m).__module__] for m in modules}
    return any(hasattr(module, name) for module in defined for name in _SHARED)


def _layout(arguments: dict[str, Any]) -> SharedLayout | None:
    """Take the layout out of the arguments: some layers pass on no more than ``seq_idx``."""
    given = arguments.pop("layout", None), arguments.get("seq_idx")
    layout = next((x for x in given if isinstance(x, SharedLayout)), None)
    if layout is not None:
        for name in ("seq_idx", "cu_seqlens"):
            arguments.pop(name, None)
    return layout


def _convolution(own: Function) -> Function:
    """A convolution of packed sequences: ``[1, D, T]`` inputs, ``[D, K]`` weights."""

    def convolution(
        hidden_states: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        layout = _layout(kwargs)
        if layout is None:
            return own(hidden_states, weight, *args, **kwargs)
        before = weight.shape[-1] - 1
        rows = hidden_states[0].T  # [T, D]
        prompts, suffixes = [], []
        for group in layout.groups:
            prompt = hidden_states[..., group.prompt]
            prompts.append(own(prompt, weight, *args, **kwargs)[0].T)
            if not len(group.index):
                continue
            last = pad(prompt, (before, 0))[..., prompt.shape[-1] :]  # [1, D, K - 1]
            inputs = group.padded(rows).transpose(1, 2)  # [n, D, C]
            inputs = torch.cat([last.expand(len(inputs), -1, -1), inputs], -1)
            out = own(inputs, weight, *args, **kwargs)[..., before:]
            suffixes.append(group.unpadded(out.transpose(1, 2)))
        return torch.cat([*prompts, *suffixes]).T[None]

    return convolution


def _scanned(
    layout: SharedLayout, inputs: Sequence[torch.Tensor], scan: Callable[..., Any]
) -> torch.Tensor:
    """Scan ``[1, T, ...]`` inputs: all prompts in one call, and all suffixes from their states.

    Behind shorter prompts stand zeros, which must not change the state.
    """
    groups, device = layout.groups, layout.places.device
    lengths = torch.tensor([g.prompt.stop - g.prompt.start for g in groups], device=device)
    steps = torch.arange(int(lengths.max()), device=device)
    real = steps < lengths[:, None]
    starts = lengths.cumsum(0) - lengths
    index = torch.where(real, starts[:, None] + steps, 0)
    rows = [x[0, index] * real.view(*real.shape, *[1] * (x.dim() - 2)).to(x.dtype) for x in inputs]
    shared = [g for g in groups if len(g.index)]
    if not shared:
        return cast(torch.Tensor, scan(rows, None, False))[real][None]
    out, state = scan(rows, None, True)
    longest = max(g.longest for g in shared)
    own = torch.cat([pad(g.index[None], (0, longest - g.longest), "replicate")[0] for g in shared])
    sizes = torch.tensor([len(g.index) for g in groups], device=device)
    after = scan([x[0, own] for x in inputs], state.repeat_interleave(sizes, 0), False)
    suffixes = [
        rows[:, : g.longest].flatten(0, 1).index_select(0, g.real)
        for g, rows in zip(shared, after.split([len(g.index) for g in shared]), strict=True)
    ]
    return torch.cat([out[real], *suffixes])[None]


def _delta_rule(own: Function) -> Function:
    """Gated delta rule and Kimi's delta attention."""

    def delta_rule(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        **kwargs: Any,
    ) -> Any:
        layout = _layout(kwargs)
        if layout is None:
            return own(query, key, value, g=g, beta=beta, **kwargs)
        assert kwargs.pop("initial_state", None) is None, "packing does not go with a cache"
        kwargs.pop("output_final_state", None)

        def scan(rows: Sequence[torch.Tensor], state: torch.Tensor | None, ends: bool) -> Any:
            q, k, v, gate, b = rows
            states = {"initial_state": state, "output_final_state": ends}
            out, end = own(q, k, v, g=gate, beta=b, **states, **kwargs)
            return (out, end) if ends else out

        # Without a gate and without beta a token leaves the state as it is.
        return _scanned(layout, (query, key, value, g, beta), scan), None

    return delta_rule


_NOT_SHARED = ("mamba2_chunk_scan",)
"""Scans of Mamba-2. The state of a small one fades so fast that no number may tell."""
_SHARED: dict[str, Callable[[Function], Function]] = {
    "causal_conv1d_fn": _convolution,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
}
