"""Attention of a packed sequence, whatever the model's own mask, soft cap and sinks are.

Where the mask is causal and nothing else is asked for, it is the kernels of ``mmr1/attention``.
Otherwise a group is computed in two calls: its prompt, and its completions against their own keys
and those of the prompt that any of them sees.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mmr1.trainer.forward.any_model.layout import GroupRows, PrefixSharingError
from mmr1.trainer.forward.any_model.masks import OWN, GroupMask, SharedMask, running, shared_name

_HARMLESS = frozenset({"sliding_window", "position_ids", "seq_idx", "layout", "logits_to_keep"})
"""Numbers and tensors that layers hand to their attention and that change nothing here: a window is
in the mask already."""


MORE_THAN_CAUSAL = "which is more than causal (windows, caps, sinks, pictures that see each other)"


def _shared_attention(
    own: str,
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """transformers' attention signature: ``[1, H, T, D]`` in, ``[1, T, H, D]`` out."""
    if not isinstance(attention_mask, SharedMask):
        if (layout := running()) is not None:
            layout.stray.append(type(module).__name__)
        variants = {"softcap": softcap, "s_aux": s_aux}
        given = {name: value for name, value in variants.items() if value is not None}
        options = {"scaling": scaling, "dropout": dropout, **given, **kwargs}
        return _own_function(own, module)(module, query, key, value, attention_mask, **options)
    layout = attention_mask.packed
    _check(kwargs, query, key, layout.own_tokens)
    layout.calls.append(type(module).__name__)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    plain = attention_mask.is_causal and softcap is None and s_aux is None
    if plain and not dropout and query.shape[-1] == value.shape[-1]:
        # Under autocast the rotary embedding leaves queries and keys in float32.
        q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
        return layout.causal.attention(q, k, v, scale)[None], None
    attend = partial(_attend, scale=scale, softcap=softcap, sinks=s_aux, dropout=dropout)
    if layout.part is not None:
        raise PrefixSharingError(f"ranks do not cut its attention, {MORE_THAN_CAUSAL}")
    layout.dense.append(type(module).__name__)
    prompts, suffixes = [], []
    for group, mask in zip(layout.groups, attention_mask.groups, strict=True):
        prompt, suffix = _of_group(group, mask, query[0], key[0], value[0], attend)
        prompts.append(prompt)
        suffixes.append(suffix)
    return torch.cat([*prompts, *suffixes])[None], None


def _own_function(own: str, module: torch.nn.Module) -> Any:
    if own == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS[own]


def _check(arguments: dict[str, Any], query: torch.Tensor, key: torch.Tensor, tokens: int) -> None:
    unknown = sorted(
        name
        for name, value in arguments.items()
        if not (value is None or isinstance(value, bool) or name in _HARMLESS)
    )
    if unknown:  # such as the keys that an indexer chose
        raise PrefixSharingError(f"its attention is given {', '.join(unknown)}")
    if query.shape[0] != 1 or not query.shape[2] == key.shape[2] == tokens:
        raise PrefixSharingError(
            f"its attention is given {[*query.shape]} queries and {[*key.shape]} keys"
        )


def _of_group(
    group: GroupRows,
    mask: GroupMask,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attend: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[H, T, D]`` to ``[P, H, D]`` of the prompt and ``[S, H, D]`` of the suffixes."""
    of_prompt = [x[None, :, group.prompt] for x in (query, key, value)]
    length = of_prompt[0].shape[2]
    prompt = attend(*of_prompt, _or_causal(mask.prompt, length, length, query.device))
    rows = (group.padded(x.transpose(0, 1)).transpose(1, 2) for x in (query, key, value))
    q, k, v = rows  # [n, H, C, D]
    if q.numel() == 0:
        return prompt[0].transpose(0, 1), prompt.new_zeros(0, prompt.shape[1], prompt.shape[3])
    k, v = (
        torch.cat([x[:, :, mask.first :].expand(len(y), -1, -1, -1), y], 2)
        for x, y in zip(of_prompt[1:], (k, v), strict=True)
    )
    seen = _or_causal(mask.suffix, group.longest, length + group.longest, query.device)
    seen = seen[..., mask.first :]
    suffixes = attend(q, k, v, seen if seen.dim() == 2 else seen[:, None])
    return prompt[0].transpose(0, 1), group.unpadded(suffixes.transpose(1, 2))


def _or_causal(
    mask: torch.Tensor | None, queries: int, keys: int, device: torch.device
) -> torch.Tensor:
    """The mask, or the one in which the last query sees all keys."""
    if mask is not None:
        return mask
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """``[B, H, Q, D]`` queries, ``[B, H_kv, K, D]`` keys and values, ``[(B, 1,) Q, K]`` mask."""
    # Under autocast the rotary embedding leaves queries and keys in float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeats, 1) if repeats > 1 else x for x in (key, value))
    if softcap is None and sinks is None:
        return scaled_dot_product_attention(query, key, value, mask, dropout, scale=scale)
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        column = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    return torch.dropout(weights.to(value.dtype), dropout, dropout > 0) @ value


IMPLEMENTATIONS = {own: shared_name(own) for own in OWN}
"""Names of transformers' attention implementations, and of ours that stand before them."""

for _own, _name in IMPLEMENTATIONS.items():
    AttentionInterface.register(_name, partial(_shared_attention, _own))
