"""The packed forward, and what the head makes of hidden states: log-probs, entropies and KL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmr1.rollout.distribution import PLAIN, Distribution
from mmr1.routers import Routing, route, routers_of
from mmr1.trainer.forward.any_model.forward import check_context, shared_states
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.context_packing import pack_local
from mmr1.trainer.forward.logprob_head import Distributions, token_kl, token_logprobs
from mmr1.trainer.forward.packing import NAME, Packed, pack
from mmr1.trainer.forward.routing import RouterUse, expert_gap, load_balance
from mmr1.trainer.forward.sequences import (
    CompletionStates,
    GroupInput,
    Read,
    TokenScores,
    support_of_tokens,
    to_rows,
)
from mmr1.trainer.forward.unshared import unshared_states
from mmr1.vision.families.loading import (
    architecture_of,
    is_admitted,
    model_parts,
    packed_architecture_of,
    unwrapped,
)
from mmr1.vision.features import FeatureCache, encode_media, encode_nothing


def completion_states(
    model: Any,
    groups: Sequence[GroupInput],
    read: Read = "before",
    features: FeatureCache | None = None,
    run_tower: bool = False,
    context: Context | None = None,
    routing: Routing | None = None,
) -> CompletionStates:
    """Final hidden states of all completion tokens, for any head. Differentiable.

    By the packed forward of a family: all groups are one sequence, in which each image, video and
    prompt goes through the network once however many completions it has, and which equals
    ``tests/padded_forward.py`` in what it computes. For other models by the packed forward of any
    model, or by transformers' own where the layers cannot share a prompt.

    Args:
        model: A transformers model of a known family, as it is or inside a peft model.
        groups: B sequences in all.
        read: ``"before"``: the state each token is predicted from (critics). ``"at"``: the state
            at the token, the last one included (reward models).
        features: Vision features of a family's frozen tower, kept from call to call.
        run_tower: Run the vision tower even where there is nothing to see, because it is sharded
            and other ranks run it.
        context: Ranks that are given the same groups, and share the work; the states are those of
            this rank's tokens, which :func:`to_rows` puts together.
        routing: Use of the routers of a watched model.
    """
    route(unwrapped(model), routing)
    _check_lengths(unwrapped(model).config, groups, context)
    if not architecture_of(model).shares_prompts:
        if context is not None:
            check_context(model)
        if not is_admitted(model):
            return unshared_states(model, groups, read, run_tower)
        return shared_states(model, groups, read, run_tower, context)
    architecture, parts = packed_architecture_of(model), model_parts(model)
    inputs = (groups, parts.placeholder_ids, model.device, read)
    packed = pack(*inputs) if context is None else pack_local(*inputs, context)
    embeddings = parts.embed_tokens(packed.ids)
    tokens = {"inputs_embeds": embeddings[None]}
    if packed.media or packed.gather is not None:
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
    # Packing goes wrong silently: these are the ways that were seen.
    ran, layers, length = len(packed.layout.calls), len(parts.layers), len(packed.ids)
    assert ran == layers, f"{layers - ran} of {layers} layers mixed the packed sequences"
    assert packed.positions.shape == (1 + architecture.position_rows, length)
    assert hidden.shape[:2] == (1, length), hidden.shape
    states = hidden[0].index_select(0, packed.rows)
    return CompletionStates(states, packed.targets, packed.padded, packed.rows)


def _placed_features(
    model: Any, packed: Packed, features: FeatureCache | None, dtype: torch.dtype
) -> torch.Tensor:
    """Vision features at ``packed.feature_slots``."""
    if packed.media:
        encoded = encode_media(model, packed.media, features)
    else:  # other ranks have them all; where the tower is sharded, they call it together
        encoded = encode_nothing(model)[:0]
    rows = encoded.to(dtype)
    every = rows if packed.gather is None else packed.gather(rows)
    return every.index_select(0, packed.feature_rows)


def _check_lengths(config: Any, groups: Sequence[GroupInput], context: Context | None) -> None:
    """Refuse sequences whose length would change their own rotary angles, or those of others.

    Dynamic NTK scaling makes the angles of every token anew for each length beyond the original
    one; LongRoPE has two sets of them, on either side of it. A forward takes the longest sequence's
    for all, and a rank of a context those of the tokens that it has.

    Raises:
        ValueError: Sequences are on both sides of that length; or beyond it, of dynamic scaling or
            in a context.
    """
    language = config.get_text_config()
    parameters = getattr(language, "rope_parameters", None) or {}
    # Those of all layers, or of each type of layers.
    for rope in (parameters, *parameters.values()):
        kind = str(rope.get("rope_type")) if isinstance(rope, Mapping) else ""
        if kind not in ("dynamic", "longrope"):
            continue
        named = "original_max_position_embeddings"
        limit = rope.get(named) or getattr(language, named, None)
        limit = int(limit or language.max_position_embeddings)
        lengths = [len(g.prompt_ids) + len(row) for g in groups for row in g.completions]
        together = kind == "dynamic" or context is not None or min(lengths) <= limit
        if max(lengths) > limit and together:
            raise ValueError(
                f"the model's rotary embedding is of the type '{kind}', and a sequence of "
                f"{max(lengths)} tokens beyond its original {limit} would change what others "
                "compute; lower rollout.max_prompt_length and rollout.max_response_length to "
                f"{limit} together"
            )


def completion_scores(
    model: Any,
    groups: Sequence[GroupInput],
    distribution: Distribution = PLAIN,
    features: FeatureCache | None = None,
    chunk_elements: int | None = None,
    run_tower: bool = False,
    reference: Distributions | None = None,
    jsd_beta: float = 1.0,
    context: Context | None = None,
    routers: RouterUse | None = None,
    measure_kept_mass: bool = False,
) -> TokenScores:
    """Log-probs and entropies of all completion tokens. Differentiable.

    Args:
        model, groups, features, run_tower, context: Values of :func:`completion_states`.
        distribution: The one that the tokens were sampled from. If it keeps all, the ids that the
            engine kept are not looked at.
        chunk_elements: Logits that may exist at a time; None for the device's own number.
        reference: Distribution to measure the KL to: of the same groups, from
            :func:`completion_distributions`.
        jsd_beta: Weight that chooses the divergence; see :func:`kl.divergence`.
        routers: Use of the routers of the model, which is watched then.
        measure_kept_mass: Compute the mass of the kept ids, which takes the whole head.
    """
    packs = architecture_of(model).shares_prompts or is_admitted(model)
    routing = None if routers is None else routers.routing(groups, packs)
    states = completion_states(model, groups, "before", features, run_tower, context, routing)
    hidden, weight = states.hidden, _output_weight(model)
    support = None if distribution.keeps_all else support_of_tokens(groups, states.padded)
    logprobs, entropy = token_logprobs(
        hidden, weight, states.targets, distribution, support, chunk_elements
    )
    rows = TokenScores(to_rows(logprobs, states.padded), to_rows(entropy, states.padded))
    if measure_kept_mass:
        with torch.no_grad():
            head = (hidden.detach(), weight.detach(), states.targets, distribution)
            of_all, _ = token_logprobs(*head, None, chunk_elements)
        mass = (of_all - logprobs.detach()).exp()
        rows = rows._replace(kept_mass=to_rows(mass, states.padded))
    if routers is not None and routing is not None:
        watched = routers_of(unwrapped(model))
        assert watched is not None, "its routers are watched"
        gap = expert_gap(groups, packs, routing, states) if routers.compares else None
        rows = rows._replace(
            expert_gap=None if gap is None else to_rows(gap, states.padded),
            router_loss=(
                load_balance(groups, packs, routing, watched) if routers.balances else None
            ),
        )
    if reference is None:
        return rows
    policy = Distributions(hidden, weight)
    kl = token_kl(policy, reference, distribution, support, chunk_elements, jsd_beta)
    return rows._replace(kl=to_rows(kl, states.padded))


@torch.no_grad()
def completion_distributions(
    model: Any,
    groups: Sequence[GroupInput],
    features: FeatureCache | None = None,
    run_tower: bool = False,
    context: Context | None = None,
) -> Distributions:
    """The distributions that a model would have drawn completion tokens from. No gradient.

    With a ``context`` only those of this rank's tokens.
    """
    states = completion_states(model, groups, "before", features, run_tower, context)
    return Distributions(states.hidden, _output_weight(model))


def _output_weight(model: Any) -> torch.Tensor:
    head = model_parts(model).lm_head
    if type(head) is not torch.nn.Linear or head.bias is not None:
        raise ValueError(
            f"lm_head is a {type(head).__name__}; log-probs are computed from its plain weight, so "
            "leave lm_head out of the LoRA target modules and unquantised"
        )
    return head.weight
