"""The packed forward: all groups as one sequence, nothing computed twice.

Equal to ``padded.py`` in what it computes. Each image, video and prompt goes through the network
once however many completions it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmr1.trainer.forward.attention import NAME
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.context_packing import pack_own
from mmr1.trainer.forward.packing import Packed, pack
from mmr1.trainer.forward.sequences import GroupInput
from mmr1.trainer.forward.states import CompletionStates, Read
from mmr1.vision.families.family import ModelParts
from mmr1.vision.families.loading import model_parts, packed_architecture_of
from mmr1.vision.features import FeatureCache, encode_media, encode_nothing


def packed_states(
    model: Any,
    groups: Sequence[GroupInput],
    read: Read = "before",
    features: FeatureCache | None = None,
    run_tower: bool = False,
    context: Context | None = None,
) -> CompletionStates:
    """See ``scores.completion_states``."""
    inputs = (groups, model_parts(model).placeholder_ids, model.device, read)
    packed = pack(*inputs) if context is None else pack_own(*inputs, context)
    hidden = _forward(model, packed, features, run_tower)
    return CompletionStates(hidden, packed.targets, packed.padded)


def _forward(
    model: Any, packed: Packed, features: FeatureCache | None, run_tower: bool
) -> torch.Tensor:
    """``[N, H]``: the hidden states that ``packed.rows`` names."""
    architecture, parts = packed_architecture_of(model), model_parts(model)
    embeddings = parts.embed_tokens(packed.ids)
    tokens = {"inputs_embeds": embeddings[None]}
    if packed.media or packed.exchange is not None:
        placed = _placed_features(model, packed, features, embeddings.dtype)
        tokens = architecture.language_inputs(embeddings[None], packed.feature_slots, placed)
    elif run_tower:
        blank = encode_nothing(model).to(embeddings.dtype)
        tokens = {"inputs_embeds": (embeddings + 0 * blank.sum())[None]}
    places, rope = packed.positions[:1], packed.positions[1:, None]
    parts.language_model.config._attn_implementation = NAME
    hidden = parts.language_model(
        **tokens,
        position_ids=architecture.position_ids(rope, places),
        attention_mask=architecture.no_mask,  # else one of tokens by tokens would be built
        use_cache=False,
        layout=packed.layout,
    ).last_hidden_state
    _check_forward(parts, packed, hidden, architecture.position_rows)
    return hidden[0].index_select(0, packed.rows)


def _placed_features(
    model: Any, packed: Packed, features: FeatureCache | None, dtype: torch.dtype
) -> torch.Tensor:
    """Those of ``packed.feature_slots``."""
    if packed.media:
        encoded = encode_media(model, packed.media, features)
    else:  # other ranks have them all; where the tower is sharded, they call it together
        encoded = encode_nothing(model)[:0]
    rows = encoded.to(dtype).index_select(0, packed.feature_rows)
    return rows if packed.exchange is None else packed.exchange(rows)


def _check_forward(parts: ModelParts, packed: Packed, hidden: torch.Tensor, rows: int) -> None:
    """Packing goes wrong silently: these are the ways that were seen."""
    ran = len(packed.layout.calls)
    layers = len(parts.layers)
    assert ran == layers, f"{layers - ran} of {layers} layers mixed the packed sequences"
    assert packed.positions.shape == (1 + rows, len(packed.ids)), packed.positions.shape
    assert hidden.shape[:2] == (1, len(packed.ids)), hidden.shape
