"""The forward that training uses: one packed sequence, nothing computed twice.

Equal to ``padded.py`` in what it computes. Each image, video and prompt goes through the network
once however many completions it has, and of the logits only a chunk exists at a time. Policy,
reference, critic, reward model, SFT and DPO use the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mmr1.trainer.forward.attention import NAME
from mmr1.trainer.forward.kl_head import Distributions, token_kl
from mmr1.trainer.forward.logprob_head import token_logprobs
from mmr1.trainer.forward.packing import Packed, PaddedRows, Read, pack
from mmr1.trainer.forward.sequences import GroupInput, TokenScores
from mmr1.vision.families.family import ModelParts
from mmr1.vision.families.loading import architecture_of, model_parts
from mmr1.vision.features import FeatureCache, encode_media, encode_nothing


def packed_scores(
    model: Any,
    groups: Sequence[GroupInput],
    temperature: float,
    forbidden_ids: Sequence[int] = (),
    features: FeatureCache | None = None,
    chunk_elements: int | None = None,
    run_tower: bool = False,
    reference: Distributions | None = None,
) -> TokenScores:
    """Log-probs and entropies of all completion tokens. Differentiable.

    Args:
        model: A transformers model of a known family, as it is or inside a peft model.
        groups: B sequences in all.
        temperature: That of the rollout; the logits are divided by it.
        forbidden_ids: Tokens outside the policy's vocabulary; their probability is 0.
        features: Vision features of a frozen tower, kept from call to call.
        chunk_elements: Logits that may exist at a time; None for the device's own number.
        run_tower: Run the vision tower even where there is nothing to see, because it is sharded
            and other ranks run it.
        reference: To measure the KL to: of the same groups, from :func:`packed_distributions`.
    """
    parts = model_parts(model)
    packed = pack(groups, parts.placeholder_ids, model.device)
    hidden, weight = _forward(model, packed, features, run_tower), _output_weight(parts)
    logprobs, entropy = token_logprobs(
        hidden, weight, packed.targets, temperature, forbidden_ids, chunk_elements
    )
    rows = TokenScores(to_rows(logprobs, packed.padded), to_rows(entropy, packed.padded))
    if reference is None:
        return rows
    policy = Distributions(hidden, weight)
    kl = token_kl(policy, reference, temperature, forbidden_ids, chunk_elements)
    return replace(rows, kl=to_rows(kl, packed.padded))


@torch.no_grad()
def packed_distributions(
    model: Any, groups: Sequence[GroupInput], features: FeatureCache | None = None
) -> Distributions:
    """What a model would have drawn each completion token from, without gradient."""
    hidden, _ = packed_hidden(model, groups, "before", features)
    return Distributions(hidden, _output_weight(model_parts(model)))


def packed_hidden(
    model: Any,
    groups: Sequence[GroupInput],
    read: Read = "before",
    features: FeatureCache | None = None,
) -> tuple[torch.Tensor, PaddedRows]:
    """Final hidden states of all completion tokens, for a head of one's own. Differentiable.

    Args:
        read: ``"before"``: the state each token is predicted from (critics). ``"at"``: the state
            at the token, the last one included (reward models).

    Returns:
        ``[N, H]``, sequences in group order, and their places in a padded batch; ``to_rows``
        brings ``[N]`` values there.
    """
    packed = pack(groups, model_parts(model).placeholder_ids, model.device, read)
    return _forward(model, packed, features), packed.padded


def to_rows(values: torch.Tensor, padded: PaddedRows) -> torch.Tensor:
    """``[N]`` values in completion order to ``[B, R]``, 0 beyond the ends."""
    return values.new_zeros(padded.shape).index_put(tuple(padded.places), values)


def _output_weight(parts: ModelParts) -> torch.Tensor:
    head = parts.lm_head
    if type(head) is not torch.nn.Linear or head.bias is not None:
        raise ValueError(
            f"lm_head is a {type(head).__name__}; log-probs are computed from its plain weight, so "
            "leave lm_head out of the LoRA target modules and unquantised"
        )
    return head.weight


def _forward(
    model: Any, packed: Packed, features: FeatureCache | None, run_tower: bool = False
) -> torch.Tensor:
    """``[N, H]``: the hidden states that ``packed.rows`` names."""
    architecture, parts = architecture_of(model), model_parts(model)
    embeddings = parts.embed_tokens(packed.ids)
    tokens = {"inputs_embeds": embeddings[None]}
    if packed.media:
        encoded = encode_media(model, packed.media, features).to(embeddings.dtype)
        placed = encoded.index_select(0, packed.feature_rows)
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


def _check_forward(parts: ModelParts, packed: Packed, hidden: torch.Tensor, rows: int) -> None:
    """Packing goes wrong silently: these are the ways that were seen."""
    ran = len(packed.layout.calls)
    layers = len(parts.layers)
    assert ran == layers, f"{layers - ran} of {layers} layers mixed the packed sequences"
    assert packed.positions.shape == (1 + rows, len(packed.ids)), packed.positions.shape
    assert hidden.shape[:2] == (1, len(packed.ids)), hidden.shape
