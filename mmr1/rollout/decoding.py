"""Decoding completions of groups through a transformers model.

Keys and values of a prompt are kept once for its group; those of each completion lie beside them,
written in place. A new token attends to both in two calls, merged by their log-sum-exp, so neither
the prompt's keys nor its share of a step's work is repeated for the completions.

Registered with transformers as ``"mmr1_decoding"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mmr1.attention import additive_mask, block_forward, merge, require_supported_attention
from mmr1.vision.families.loading import model_parts, packed_architecture_of

NAME = "mmr1_decoding"
GROWTH = 64  # tokens by which the completions' room grows


class Decoder:
    """The unfinished completions of a batch of groups, and one step of all of them.

    Rows are completions, those of a group next to each other. B rows, G groups, P tokens of the
    longest prompt.

    Args:
        model: The transformers model, not inside a peft model.
        prefilled: Its cache after the prompts, which are padded on the left.
        attention_mask: ``[G, P]``, 0 where a prompt is padded.
        next_position: ``[G]``, of the first token after each prompt.
        sizes: ``[G]``, completions of each group.
    """

    def __init__(
        self,
        model: Any,
        prefilled: DynamicCache,
        attention_mask: torch.Tensor,
        next_position: torch.Tensor,
        sizes: torch.Tensor,
    ) -> None:
        self._architecture, self._parts = packed_architecture_of(model), model_parts(model)
        self._prompts = [(layer.keys, layer.values) for layer in prefilled.layers]
        real, dtype = attention_mask.bool(), self._prompts[0][0].dtype
        self._padding = None if real.all() else additive_mask(real, dtype)
        groups = torch.arange(len(sizes), device=sizes.device)
        self._group = groups.repeat_interleave(sizes)  # [B], ascending
        self._place_rows()
        self._next_position = next_position[self._group]
        self._length = 0
        room = (len(self._group), self._prompts[0][0].shape[1], 0, self._prompts[0][0].shape[3])
        self._completions = [(k.new_empty(room), v.new_empty(room)) for k, v in self._prompts]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed each row's newest token, ``[B]``; returns the logits ``[B, V]`` of the next."""
        if self._length == self._completions[0][0].shape[2]:
            room = (0, 0, 0, GROWTH)
            self._completions = [(pad(k, room), pad(v, room)) for k, v in self._completions]
        parts, rows = self._parts, self._architecture.position_rows
        rope = self._next_position[None, None].expand(rows, -1, -1)
        parts.language_model.config._attn_implementation = NAME
        hidden = parts.language_model(
            inputs_embeds=parts.embed_tokens(tokens)[None],
            position_ids=self._architecture.position_ids(rope),
            attention_mask=self._architecture.no_mask,
            use_cache=False,
            decoder=self,
        ).last_hidden_state
        self._length += 1
        self._next_position = self._next_position + 1
        return parts.lm_head(hidden[0])

    def keep(self, alive: torch.Tensor) -> None:
        """Drop the rows that are not ``alive``, ``[B]`` bool, and groups without a row left."""
        self._completions = [(k[alive], v[alive]) for k, v in self._completions]
        self._next_position = self._next_position[alive]
        groups, self._group = self._group[alive].unique(return_inverse=True)
        if len(groups) < len(self._prompts[0][0]):
            self._prompts = [(k[groups], v[groups]) for k, v in self._prompts]
            self._padding = None if self._padding is None else self._padding[groups]
        self._place_rows()

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Keep the new tokens' keys and values, and attend to all there are.

        Args:
            query: ``[B, H, D]``.
            key, value: ``[B, H_kv, D]``.

        Returns:
            ``[B, H, D]``.
        """
        keys, values = self._completions[layer]
        keys[:, :, self._length], values[:, :, self._length] = key, value
        now = self._length + 1
        # The heads that share a key are queries of the same attention.
        rows = query.unflatten(1, (key.shape[1], -1))
        own = block_forward(rows, keys[:, :, :now], values[:, :, :now], None, False, scale)
        out, _ = merge(own, self._attend_prompts(layer, rows, scale))
        return out.flatten(1, 2)

    def _attend_prompts(
        self, layer: int, rows: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[B, H_kv, r, D]`` queries to their group's prompt, those of a group in one go."""
        keys, values = self._prompts[layer]
        placed = rows.new_zeros(len(keys) * self._widest, *rows.shape[1:])
        queries = placed.index_copy_(0, self._places, rows).unflatten(0, (-1, self._widest))
        attended = block_forward(
            queries.transpose(1, 2).flatten(2, 3), keys, values, self._padding, False, scale
        )
        # [G, H_kv, widest * r, ...] back to rows
        by_row = (x.unflatten(2, (self._widest, -1)) for x in attended)
        out, lse = (x.transpose(1, 2).flatten(0, 1) for x in by_row)
        return out.index_select(0, self._places), lse.index_select(0, self._places)

    def _place_rows(self) -> None:
        """The place of each row in a table of groups by rows of the largest group."""
        counts = self._group.bincount(minlength=len(self._prompts[0][0]))
        first = counts.cumsum(0) - counts
        rank = torch.arange(len(self._group), device=counts.device) - first[self._group]
        self._widest = int(counts.max())
        self._places = self._group * self._widest + rank


def decoding_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    decoder: Decoder | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature; the rows of a step come as ``[1, H, B, D]``."""
    if decoder is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    require_supported_attention(kwargs)
    rows, keys, values = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    return decoder.attend(module.layer_idx, rows, keys, values, scaling)[None], None


@contextmanager
def transposed_weights(model: Any) -> Iterator[None]:
    """Transpose the text model's linear layers in memory, inside the block.

    On a CPU that makes them faster for the few rows of a decoding step: 64 rows of a model with 12M
    parameters took 28 ms a step instead of 33, and laying the weights out 30 ms once. Values and
    shapes are what they were. On other devices nothing happens.
    """
    parts = model_parts(model)
    tied = parts.embed_tokens.weight
    layers = [m for m in parts.language_model.modules() if isinstance(m, torch.nn.Linear)]
    weights = [layer.weight for layer in (*layers, parts.lm_head) if layer.weight is not tied]
    if tied.device.type != "cpu":
        weights = []
    try:
        for weight in weights:
            weight.data = weight.data.t().contiguous().t()
        yield
    finally:
        for weight in weights:
            weight.data = weight.data.contiguous()


AttentionInterface.register(NAME, decoding_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
