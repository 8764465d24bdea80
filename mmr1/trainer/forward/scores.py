"""Log-probs, entropies and KL of completions: the head on the hidden states of any forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmr1.adapters import unwrapped
from mmr1.trainer.forward.any_model.forward import shared_states, verdict_of
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.kl_head import Distributions, token_kl
from mmr1.trainer.forward.logprob_head import token_logprobs
from mmr1.trainer.forward.packed import packed_states
from mmr1.trainer.forward.rotary import check_lengths
from mmr1.trainer.forward.sequences import GroupInput, TokenScores
from mmr1.trainer.forward.states import CompletionStates, Read, to_rows
from mmr1.trainer.forward.unshared import unshared_states
from mmr1.vision.families.loading import architecture_of, model_parts
from mmr1.vision.features import FeatureCache


def completion_states(
    model: Any,
    groups: Sequence[GroupInput],
    read: Read = "before",
    features: FeatureCache | None = None,
    run_tower: bool = False,
    context: Context | None = None,
) -> CompletionStates:
    """Final hidden states of all completion tokens, for a head of one's own. Differentiable.

    By the packed forward of a family, by that of any model, or by transformers' own where a model's
    layers cannot share a prompt.

    Args:
        model: A transformers model of a known family, as it is or inside a peft model.
        groups: B sequences in all.
        read: ``"before"``: the state each token is predicted from (critics). ``"at"``: the state
            at the token, the last one included (reward models).
        features: Vision features of a frozen tower, kept from call to call.
        run_tower: Run the vision tower even where there is nothing to see, because it is sharded
            and other ranks run it.
        context: Ranks that are given the same groups, and share the work; the states are those of
            this rank's tokens, which ``states.to_rows`` puts together.
    """
    check_lengths(unwrapped(model).config, groups)
    if architecture_of(model).shares_prompts:
        return packed_states(model, groups, read, features, run_tower, context)
    assert context is None, "the model's own forward sees each sequence whole"
    if verdict_of(model) is not None:
        return shared_states(model, groups, read, run_tower)
    return unshared_states(model, groups, read, run_tower)


def completion_scores(
    model: Any,
    groups: Sequence[GroupInput],
    temperature: float,
    forbidden_ids: Sequence[int] = (),
    features: FeatureCache | None = None,
    chunk_elements: int | None = None,
    run_tower: bool = False,
    reference: Distributions | None = None,
    jsd_beta: float = 1.0,
    context: Context | None = None,
) -> TokenScores:
    """Log-probs and entropies of all completion tokens. Differentiable.

    Args:
        model, groups, features, run_tower, context: As for :func:`completion_states`.
        temperature: That of the rollout; the logits are divided by it.
        forbidden_ids: Tokens outside the policy's vocabulary; their probability is 0.
        chunk_elements: Logits that may exist at a time; None for the device's own number.
        reference: To measure the KL to: of the same groups, from :func:`completion_distributions`.
        jsd_beta: Which divergence that is; see :func:`kl.divergence`.
    """
    states = completion_states(model, groups, "before", features, run_tower, context)
    hidden, weight = states.hidden, _output_weight(model)
    logprobs, entropy = token_logprobs(
        hidden, weight, states.targets, temperature, forbidden_ids, chunk_elements
    )
    rows = TokenScores(to_rows(logprobs, states.padded), to_rows(entropy, states.padded))
    if reference is None:
        return rows
    policy = Distributions(hidden, weight)
    kl = token_kl(policy, reference, temperature, forbidden_ids, chunk_elements, jsd_beta)
    return rows._replace(kl=to_rows(kl, states.padded))


@torch.no_grad()
def completion_distributions(
    model: Any,
    groups: Sequence[GroupInput],
    features: FeatureCache | None = None,
    run_tower: bool = False,
    context: Context | None = None,
) -> Distributions:
    """What a model would have drawn each completion token from, without gradient.

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
