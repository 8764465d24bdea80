"""Log-probability and entropy of tokens from hidden states, a chunk of rows at a time.

The logits of 16k tokens over Qwen2.5-VL's vocabulary are 9.3 GiB in float32; here at most one
chunk of them exists, in the forward as in the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# Logits alive at a time: 64 MiB in float32 on a CPU, whose caches are small. Elsewhere 512 MiB: the
# backward pass rewrites the float32 gradient of the weight, 1.2 GiB for 3B, with every chunk.
CPU_CHUNK_ELEMENTS = 1 << 24
GPU_CHUNK_ELEMENTS = 1 << 27
FORBIDDEN = -1e4  # a logit whose probability is exactly 0 in float32, and its products finite


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    temperature: float = 1.0,
    forbidden_ids: Sequence[int] = (),
    chunk_elements: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of ``targets`` and entropies of their distributions, in nats.

    The distribution is ``softmax(hidden @ weight.T / temperature)`` over the tokens that are not
    forbidden, in float32 whatever the inputs are. Differentiable by both outputs with respect to
    ``hidden`` and ``weight``.

    Args:
        hidden: ``[N, H]``.
        weight: ``[V, H]``, the output embedding.
        targets: ``[N]`` int64.
        temperature: That of the rollout.
        forbidden_ids: Tokens that cannot be sampled; their probability is 0.
        chunk_elements: Logits that may exist at a time, by default those of :func:`chunk_for`; at
            least one row is taken.

    Returns:
        Two ``[N]`` float32 tensors.
    """
    chunk_elements = chunk_elements or chunk_for(hidden.device)
    with torch.autocast(hidden.device.type, enabled=False):  # it would round the logits
        forbidden = torch.tensor(list(forbidden_ids), dtype=torch.int64)
        forbidden = forbidden.to(hidden.device, non_blocking=True)
        return _TokenLogprobs.apply(hidden, weight, targets, temperature, forbidden, chunk_elements)


def chunk_for(device: torch.device) -> int:
    """Logits that may exist at a time on a device."""
    return CPU_CHUNK_ELEMENTS if device.type == "cpu" else GPU_CHUNK_ELEMENTS


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        forbidden: torch.Tensor,
        chunk_elements: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = max(1, chunk_elements // len(weight))
        chunks = row_chunks(len(hidden), rows)
        lse, logprobs, entropy = (torch.empty(len(hidden), device=hidden.device) for _ in range(3))
        for part in chunks:
            distribution = logits_of(hidden[part], weight, temperature, forbidden)
            lse[part] = distribution.logsumexp(-1)
            distribution.sub_(lse[part, None])  # log-probabilities [C, V]
            logprobs[part] = distribution.gather(-1, targets[part, None])[:, 0]
            entropy[part] = -torch.linalg.vecdot(distribution.exp(), distribution)
        # A batch that is one chunk keeps it; otherwise the backward computes the chunks again.
        kept = distribution if len(chunks) == 1 and any(ctx.needs_input_grad[:2]) else None
        ctx.save_for_backward(hidden, weight, targets, forbidden, lse, entropy, kept)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, forbidden, lse, entropy, kept = ctx.saved_tensors
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(lse)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # Summed over chunks in float32, whatever the weight's own precision.
        grad_weight = (
            torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
            if ctx.needs_input_grad[1]
            else None
        )
        for part in row_chunks(len(hidden), ctx.rows):
            distribution = kept
            if distribution is None:
                distribution = logits_of(hidden[part], weight, ctx.temperature, forbidden)
                distribution.sub_(lse[part, None])
            grad_logits = _grad_logits(
                distribution,
                targets[part],
                grad_logprobs[part],
                None if grad_entropy is None else grad_entropy[part],
                entropy[part],
            )
            grad_logits = grad_logits.div_(ctx.temperature).to(weight.dtype)
            if grad_hidden is not None:
                torch.mm(grad_logits, weight, out=grad_hidden[part])
            if grad_weight is not None:
                add_product(grad_weight, grad_logits.T, hidden[part])
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None


def row_chunks(total: int, rows: int) -> list[slice]:
    return [slice(start, min(start + rows, total)) for start in range(0, total, rows)]


def logits_of(
    hidden: torch.Tensor, weight: torch.Tensor, temperature: float, forbidden: torch.Tensor
) -> torch.Tensor:
    """``[C, V]`` float32 logits, divided by the temperature; forbidden tokens are -inf."""
    if hidden.dtype == weight.dtype == torch.float32:
        logits = hidden @ weight.T
    elif hidden.device.type != "cpu" and hidden.dtype == weight.dtype:
        # Rounding logits to half precision would move log-probs by hundredths of a nat.
        logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)
    else:
        logits = hidden.float() @ weight.float().T
    if temperature != 1:
        logits.div_(temperature)
    return logits.index_fill_(-1, forbidden, FORBIDDEN)


def _grad_logits(
    logprobs: torch.Tensor,
    targets: torch.Tensor,
    grad_logprobs: torch.Tensor,
    grad_entropy: torch.Tensor | None,
    entropy: torch.Tensor,
) -> torch.Tensor:
    """``g (onehot - p) - g_H p (log p + H)``, the gradient of both outputs by the logits.

    Args:
        logprobs: ``[C, V]``, of the whole distribution.
        targets, grad_logprobs, grad_entropy, entropy: ``[C]``.
    """
    grad = logprobs.exp()
    if grad_entropy is None:
        grad.mul_(-grad_logprobs[:, None])
    else:
        factor = (logprobs + entropy[:, None]).mul_(-grad_entropy[:, None])
        grad.mul_(factor.sub_(grad_logprobs[:, None]))
    return grad.scatter_add_(-1, targets[:, None], grad_logprobs[:, None])


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if left.dtype == right.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right.to(left.dtype)
