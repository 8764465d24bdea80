"""The forward that training uses: one packed sequence, nothing computed twice.

Equal to ``padded.py`` in what it computes. Each image, video and prompt goes through the network
once however many completions it has, and of the logits only a chunk exists at a time. Policy,
reference, critic, reward model, SFT and DPO use the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmr1.trainer.attention import NAME
from mmr1.trainer.features import FeatureCache
from mmr1.trainer.logprob_head import CHUNK_ELEMENTS, token_logprobs
from mmr1.trainer.packing import Packed, Read, pack
from mmr1.trainer.sequences import GroupInput, TokenScores
from mmr1.vision.prepare import PreparedMedia


def packed_scores(
    model: Any,
    groups: Sequence[GroupInput],
    temperature: float,
    forbidden_ids: Sequence[int] = (),
    features: FeatureCache | None = None,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> TokenScores:
    """Log-probs and entropies of all completion tokens. Differentiable.

    Args:
        model: A ``Qwen2_5_VLForConditionalGeneration``, as it is or inside a peft model.
        groups: B sequences in all.
        temperature: That of the rollout; the logits are divided by it.
        forbidden_ids: Tokens outside the policy's vocabulary; their probability is 0.
        features: Vision features of a frozen tower, kept from call to call.
        chunk_elements: Logits that may exist at a time.
    """
    base = unwrapped(model)
    packed = pack(groups, _placeholder_ids(base), base.device)
    hidden = _forward(base, packed, features)
    logprobs, entropy = token_logprobs(
        hidden, _output_weight(base), packed.targets, temperature, forbidden_ids, chunk_elements
    )
    return TokenScores(to_rows(logprobs, packed.mask), to_rows(entropy, packed.mask))


def packed_hidden(
    model: Any,
    groups: Sequence[GroupInput],
    read: Read = "before",
    features: FeatureCache | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Final hidden states of all completion tokens, for a head of one's own. Differentiable.

    Args:
        read: ``"before"``: the state each token is predicted from (critics). ``"at"``: the state
            at the token, the last one included (reward models).

    Returns:
        ``[N, H]``, sequences in group order, and the ``[B, R]`` bool mask of their places;
        ``to_rows`` brings ``[N]`` values there.
    """
    base = unwrapped(model)
    packed = pack(groups, _placeholder_ids(base), base.device, read)
    return _forward(base, packed, features), packed.mask


def to_rows(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``[N]`` values in completion order to ``[B, R]``, 0 beyond the ends."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def unwrapped(model: Any) -> Any:
    """The transformers model inside a peft model; its adapters stay in place."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _placeholder_ids(base: Any) -> tuple[int, int]:
    return base.config.image_token_id, base.config.video_token_id


def _output_weight(base: Any) -> torch.Tensor:
    head = base.lm_head
    if type(head) is not torch.nn.Linear or head.bias is not None:
        raise ValueError(
            f"lm_head is a {type(head).__name__}; log-probs are computed from its plain weight, so "
            "leave lm_head out of the LoRA target modules and unquantised"
        )
    return head.weight


def _forward(base: Any, packed: Packed, features: FeatureCache | None) -> torch.Tensor:
    """``[N, H]``: the hidden states that ``packed.rows`` names."""
    text_model = base.model.language_model
    embeddings = text_model.embed_tokens(packed.ids)
    if packed.media:
        encoded = encode_media(base.model.visual, packed.media, features)
        placed = encoded.to(embeddings.dtype).index_select(0, packed.feature_rows)
        embeddings = embeddings.index_copy(0, packed.feature_slots, placed)
    text_model.config._attn_implementation = NAME
    hidden = text_model(
        inputs_embeds=embeddings[None],
        position_ids=packed.positions[:, None],
        # A mapping is taken as it is: no mask is built from positions or by tokens squared.
        attention_mask={"full_attention": None},
        use_cache=False,
        layout=packed.layout,
    ).last_hidden_state
    _check_forward(text_model, packed, hidden)
    return hidden[0].index_select(0, packed.rows)


def _check_forward(text_model: Any, packed: Packed, hidden: torch.Tensor) -> None:
    """Packing goes wrong silently: these are the ways that were seen."""
    ran = len(packed.layout.calls)
    layers = len(text_model.layers)
    assert ran == layers, f"{layers - ran} of {layers} layers mixed the packed sequences"
    assert packed.positions.shape == (4, len(packed.ids)), "a packed forward has 4-row positions"
    assert hidden.shape[:2] == (1, len(packed.ids)), hidden.shape


def encode_media(
    tower: Any, media: Sequence[PreparedMedia], features: FeatureCache | None = None
) -> torch.Tensor:
    """Features of distinct media, concatenated: ``[sum of medium.tokens, H]``.

    Raises:
        ValueError: Features are to be kept, but the tower is being trained.
    """
    frozen = not any(p.requires_grad for p in tower.parameters())
    if features is not None and not frozen:
        raise ValueError("vision features can only be kept where the vision tower is frozen")
    missing = [m for m in media if features is None or m.digest not in features]
    made: dict[str, torch.Tensor] = {}
    if missing:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            encoded = _run_tower(tower, missing)
        made = {m.digest: rows for m, rows in zip(missing, encoded, strict=True)}
    if features is None:
        return torch.cat([made[m.digest] for m in media])
    found = [made[m.digest] if m.digest in made else features[m.digest] for m in media]
    for digest, rows in made.items():
        features[digest] = rows
    return torch.cat(found)


def _run_tower(tower: Any, media: Sequence[PreparedMedia]) -> tuple[torch.Tensor, ...]:
    weight = tower.patch_embed.proj.weight
    patches = torch.cat([m.patches for m in media]).to(weight.device, weight.dtype)
    grid = torch.tensor([m.grid for m in media], device=weight.device)
    output = tower(patches, grid_thw=grid).pooler_output
    return output.split([m.tokens for m in media])
