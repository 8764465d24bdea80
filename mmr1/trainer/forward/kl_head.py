"""A divergence over the whole vocabulary from hidden states, a chunk of rows at a time.

As in ``logprob_head.py`` the logits of at most one chunk exist, here of both models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mmr1.trainer.algorithms.kl import divergence, divergence_gradient
from mmr1.trainer.forward.logprob_head import add_product, chunk_for, logits_of, row_chunks


class Distributions(NamedTuple):
    """The next-token distributions of N places, before they are made: ``softmax(hidden weight^T)``.

    Attributes:
        hidden: ``[N, H]``.
        weight: ``[V, H]``, the output embedding.
    """

    hidden: torch.Tensor
    weight: torch.Tensor


def token_kl(
    policy: Distributions,
    reference: Distributions,
    temperature: float = 1.0,
    forbidden_ids: Sequence[int] = (),
    chunk_elements: int | None = None,
    beta: float = 1.0,
) -> torch.Tensor:
    """Exact ``KL(policy || reference)`` at each place: ``[N]`` float32, in nats.

    With another ``beta`` than 1 it is the divergence of that name in ``kl.py``.

    Both with the temperature of the rollout and without the forbidden tokens. Differentiable with
    respect to the policy's hidden states and weight; the reference is a constant. Where models of
    two sizes pad one vocabulary to two lengths, the shorter one counts: the rest are not tokens.
    """
    vocabulary = min(len(policy.weight), len(reference.weight))
    device = policy.hidden.device
    chunk_elements = chunk_elements or chunk_for(device)
    with torch.autocast(device.type, enabled=False):
        forbidden = torch.tensor(list(forbidden_ids), dtype=torch.int64)
        forbidden = forbidden.to(device, non_blocking=True)
        return _TokenKl.apply(
            *(policy.hidden, policy.weight[:vocabulary]),
            *(reference.hidden, reference.weight[:vocabulary]),
            *(temperature, forbidden, chunk_elements, beta),
        )


class _TokenKl(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        ref_hidden: torch.Tensor,
        ref_weight: torch.Tensor,
        temperature: float,
        forbidden: torch.Tensor,
        chunk_elements: int,
        beta: float,
    ) -> torch.Tensor:
        rows = max(1, chunk_elements // (2 * len(weight)))
        kl = torch.empty(len(hidden), device=hidden.device)
        for part in row_chunks(len(hidden), rows):
            log_p = logits_of(hidden[part], weight, temperature, forbidden).log_softmax(-1)
            log_q = logits_of(ref_hidden[part], ref_weight, temperature, forbidden).log_softmax(-1)
            kl[part] = divergence(log_p, log_q, beta)
        ctx.save_for_backward(hidden, weight, ref_hidden, ref_weight, forbidden)
        ctx.temperature, ctx.rows, ctx.beta = temperature, rows, beta
        return kl

    @staticmethod
    def backward(ctx: Any, grad_kl: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, ref_hidden, ref_weight, forbidden = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = (
            torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
            if ctx.needs_input_grad[1]
            else None
        )
        scale = (ctx.temperature, forbidden)
        for part in row_chunks(len(hidden), ctx.rows):
            log_p = logits_of(hidden[part], weight, *scale).log_softmax(-1)
            log_q = logits_of(ref_hidden[part], ref_weight, *scale).log_softmax(-1)
            grad = divergence_gradient(log_p, log_q, ctx.beta)
            grad = grad.mul_(grad_kl[part, None] / ctx.temperature).to(weight.dtype)
            if grad_hidden is not None:
                torch.mm(grad, weight, out=grad_hidden[part])
            if grad_weight is not None:
                add_product(grad_weight, grad.T, hidden[part])
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None, None, None
