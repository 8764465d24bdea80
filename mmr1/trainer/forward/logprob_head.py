"""What the output head makes of hidden states, a chunk of rows at a time.

The log-probability and entropy of tokens, or a divergence over the vocabulary. The logits of 16k
tokens over Qwen2.5-VL's vocabulary are 9.3 GiB in float32; here at most one chunk of them exists
(of a divergence, one of both models), in the forward as in the backward. Where the sampler kept a
few ids of the vocabulary, the head multiplies with their rows of the output embedding alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.algorithms.kl import divergence, divergence_gradient
from mmr1.rollout.distribution import FORBIDDEN, PLAIN, Distribution
from mmr1.types import Support

# Logits alive at a time: 64 MiB in float32 on a CPU, whose caches are small. Elsewhere 512 MiB: the
# backward pass rewrites the float32 gradient of the weight, 1.2 GiB for 3B, with every chunk.
CPU_CHUNK_ELEMENTS = 1 << 24
GPU_CHUNK_ELEMENTS = 1 << 27


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    distribution: Distribution = PLAIN,
    support: Support | None = None,
    chunk_elements: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of ``targets`` and entropies of their distributions, in nats.

    The distribution is ``softmax(hidden @ weight.T / temperature)`` over the ids that the sampler
    kept for a token, or over all that are not forbidden, in float32 whatever the inputs are.
    Differentiable by both outputs with respect to ``hidden`` and ``weight``.

    Args:
        hidden: ``[N, H]``.
        weight: ``[V, H]``, the output embedding.
        targets: ``[N]`` int64.
        distribution: Temperature and forbidden ids. What it cuts off is in ``support``.
        support: Kept ids of the N tokens; None: all were kept.
        chunk_elements: Logits, or elements of gathered rows of the weight, that may exist at a
            time; None for the device's own number. At least one row is taken.

    Returns:
        Two ``[N]`` float32 tensors.
    """
    with torch.autocast(hidden.device.type, enabled=False):  # it would round the logits
        temperature, forbidden = distribution.temperature, _forbidden(distribution, hidden.device)
        if support is None or not support.sizes.any():
            return _TokenLogprobs.apply(
                hidden, weight, targets, temperature, forbidden, chunk_elements
            )
        cut = torch.from_numpy(support.sizes > 0)
        both = hidden.new_zeros((2, len(hidden)), dtype=torch.float32)
        for kept in (True, False):
            if not (rows := (cut == kept).nonzero()[:, 0].to(hidden.device)).numel():
                continue
            part, own = hidden.index_select(0, rows), targets.index_select(0, rows)
            if kept:
                ids = kept_rows(support, hidden.device)
                found = _KeptLogprobs.apply(part, weight, own, temperature, ids, chunk_elements)
            else:
                found = _TokenLogprobs.apply(
                    part, weight, own, temperature, forbidden, chunk_elements
                )
            both = both.index_copy(1, rows, torch.stack(found))
        return both[0], both[1]


def _forbidden(distribution: Distribution, device: torch.device) -> torch.Tensor:
    ids = torch.tensor(distribution.forbidden, dtype=torch.int64)
    return ids.to(device, non_blocking=True)


class KeptRows(NamedTuple):
    """Kept ids of the N tokens that have any, the tokens with fewest ids first.

    Attributes:
        order: ``[N]`` int64, which token each row is.
        ids: ``[N, S]`` int64, 0 behind a token's last id.
        valid: ``[N, S]`` bool.
        widths: Number of ids of each row.
    """

    order: torch.Tensor
    ids: torch.Tensor
    valid: torch.Tensor
    widths: list[int]


def kept_rows(support: Support, device: torch.device) -> KeptRows:
    """Lay the kept ids of all cut tokens out as rows, on a device."""
    sizes = torch.from_numpy(support.sizes[support.sizes > 0]).long()
    rows = torch.from_numpy(support.ids).long().split(sizes.tolist())
    order = sizes.argsort(stable=True)
    ids = pad_sequence([rows[i] for i in order.tolist()], batch_first=True)
    widths = sizes[order]
    valid = torch.arange(ids.shape[1]) < widths[:, None]
    order, ids, valid = (x.to(device, non_blocking=True) for x in (order, ids, valid))
    return KeptRows(order, ids, valid, widths.tolist())


class _Sums(NamedTuple):
    """The gradients of a head's inputs, chunk by chunk; None of what needs none.

    Attributes:
        hidden: ``[N, H]``, in its own precision.
        weight: ``[V, H]``, summed in float32, whatever the weight's own precision.
    """

    hidden: torch.Tensor | None
    weight: torch.Tensor | None

    @staticmethod
    def of(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> _Sums:
        of_hidden, of_weight = ctx.needs_input_grad[:2]
        return _Sums(
            torch.empty_like(hidden) if of_hidden else None,
            torch.zeros_like(weight, dtype=torch.float32) if of_weight else None,
        )

    def add(
        self, part: slice, of_logits: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor
    ) -> None:
        """Add a chunk of rows, by the gradients ``[C, V]`` of their logits."""
        if self.hidden is not None:
            torch.mm(of_logits, weight, out=self.hidden[part])
        if self.weight is not None:
            add_product(self.weight, of_logits.T, hidden[part])

    def rounded(self, dtype: torch.dtype) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The gradients of both inputs; the weight's in its precision."""
        return self.hidden, None if self.weight is None else self.weight.to(dtype)


class _KeptLogprobs(torch.autograd.Function):
    """Log-probs and entropies over kept ids: dot products with their rows of the weight alone."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        kept: KeptRows,
        chunk_elements: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropy = (torch.empty(len(hidden), device=hidden.device) for _ in range(2))
        distributions = []
        chunks = _kept_chunks(kept.widths, hidden, chunk_elements)
        for part, width in chunks:
            rows, valid = kept.order[part], kept.valid[part, :width]
            states = hidden.index_select(0, rows).float()
            logits = torch.bmm(weight[kept.ids[part, :width]].float(), states[:, :, None])[..., 0]
            log_p = (logits / temperature).masked_fill(~valid, FORBIDDEN).log_softmax(-1)
            is_target = valid & (kept.ids[part, :width] == targets[rows, None])
            logprobs[rows] = (log_p * is_target).sum(-1)
            entropy[rows] = -torch.linalg.vecdot(log_p.exp(), log_p)
            distributions += [log_p, is_target]
        ctx.save_for_backward(hidden, weight, entropy, *kept[:2], *distributions)
        ctx.temperature, ctx.chunks = temperature, chunks
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, entropy, order, ids, *distributions = ctx.saved_tensors
        no_gradient = torch.zeros_like(entropy)
        grad_logprobs = (no_gradient if grad_logprobs is None else grad_logprobs) / ctx.temperature
        grad_entropy = (no_gradient if grad_entropy is None else grad_entropy) / ctx.temperature
        sums = _Sums.of(ctx, hidden, weight)
        pairs = zip(distributions[::2], distributions[1::2], strict=True)
        for (part, width), (log_p, is_target) in zip(ctx.chunks, pairs, strict=True):
            rows, kept = order[part], ids[part, :width]
            p = log_p.exp()
            grad = grad_logprobs[rows, None] * (is_target.float() - p)
            grad -= grad_entropy[rows, None] * p * (log_p + entropy[rows, None])
            if sums.hidden is not None:
                of_rows = torch.bmm(grad[:, None], weight[kept].float())[:, 0]
                sums.hidden[rows] = of_rows.to(hidden.dtype)
            if sums.weight is not None:
                states = hidden.index_select(0, rows).float()
                products = grad[:, :, None] * states[:, None]
                sums.weight.index_add_(0, kept.flatten(), products.flatten(0, 1))
        return *sums.rounded(weight.dtype), None, None, None, None


def _kept_chunks(
    widths: list[int], hidden: torch.Tensor, chunk_elements: int | None
) -> list[tuple[slice, int]]:
    """Rows by chunk, each with its largest width; gathered weights of a chunk fit its elements."""
    chunks, start = [], 0
    limit = _chunk_elements(hidden, chunk_elements) // hidden.shape[1]
    for end, width in enumerate(widths):  # ascending
        if end > start and (end + 1 - start) * width > limit:
            chunks.append((slice(start, end), widths[end - 1]))
            start = end
    return [*chunks, (slice(start, len(widths)), widths[-1])]


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        forbidden: torch.Tensor,
        chunk_elements: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chunks = row_chunks(hidden, len(weight), chunk_elements)
        logprobs, entropy = (torch.empty(len(hidden), device=hidden.device) for _ in range(2))
        for part in chunks:
            log_p = logits_of(hidden[part], weight, temperature, forbidden).log_softmax(-1)
            logprobs[part] = log_p.gather(-1, targets[part, None])[:, 0]
            entropy[part] = -torch.linalg.vecdot(log_p.exp(), log_p)
        # A batch that is one chunk keeps it; otherwise the backward computes the chunks again.
        kept = log_p if len(chunks) == 1 and any(ctx.needs_input_grad[:2]) else None
        ctx.save_for_backward(hidden, weight, targets, forbidden, entropy, kept)
        ctx.temperature, ctx.chunks = temperature, chunks
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, forbidden, entropy, kept = ctx.saved_tensors
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(entropy)
        # The temperature's part is that of the rows: it costs no pass over the vocabulary.
        grad_logprobs = grad_logprobs / ctx.temperature
        grad_entropy = None if grad_entropy is None else grad_entropy / ctx.temperature
        sums = _Sums.of(ctx, hidden, weight)
        for part in ctx.chunks:
            if kept is not None:
                log_p, p = None if grad_entropy is None else kept.clone(), kept.exp()
            else:
                logits = logits_of(hidden[part], weight, ctx.temperature, forbidden)
                if grad_entropy is None:
                    log_p, p = None, logits.softmax(-1)
                else:
                    log_p = logits.log_softmax(-1)
                    p = torch.exp(log_p, out=logits)
                del logits
            of_entropy = None
            if grad_entropy is not None and log_p is not None:
                of_entropy = grad_entropy[part], log_p, entropy[part]
            grad_logits = _grad_logits(
                p, targets[part], grad_logprobs[part], of_entropy, weight.dtype
            )
            del of_entropy
            del p, log_p
            sums.add(part, grad_logits, hidden, weight)
        return *sums.rounded(weight.dtype), None, None, None, None


def row_chunks(hidden: torch.Tensor, width: int, chunk_elements: int | None) -> list[slice]:
    """Rows of ``[N, H]`` by chunk, whose logits are ``width`` each."""
    total, rows = len(hidden), max(1, _chunk_elements(hidden, chunk_elements) // width)
    return [slice(start, min(start + rows, total)) for start in range(0, total, rows)]


def _chunk_elements(hidden: torch.Tensor, given: int | None) -> int:
    if given is not None:
        return given
    return CPU_CHUNK_ELEMENTS if hidden.device.type == "cpu" else GPU_CHUNK_ELEMENTS


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
    p: torch.Tensor,
    targets: torch.Tensor,
    grad_logprobs: torch.Tensor,
    of_entropy: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``g (onehot - p) - g_H p (log p + H)``, the gradient of both outputs by the logits.

    Args:
        p: ``[C, V]``, the whole distribution; overwritten.
        targets, grad_logprobs: ``[C]``.
        of_entropy: ``(g_H, log p, H)``, ``[C]``, ``[C, V]`` (overwritten) and ``[C]``.
        dtype: Data type of the result.
    """
    if of_entropy is None:
        p.scatter_add_(-1, targets[:, None], torch.full_like(targets, -1, dtype=p.dtype)[:, None])
        return rounded_product(p, -grad_logprobs[:, None], dtype)
    grad_entropy, log_p, entropy = of_entropy
    factor = log_p.add_(entropy[:, None]).mul_(-grad_entropy[:, None])
    p.mul_(factor.sub_(grad_logprobs[:, None]))
    return p.scatter_add_(-1, targets[:, None], grad_logprobs[:, None]).to(dtype)


def rounded_product(values: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``values * factor`` in another precision, in one pass; overwritten if it is their own."""
    if values.dtype == dtype:
        return values.mul_(factor)
    return torch.mul(values, factor, out=torch.empty_like(values, dtype=dtype))


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add ``left @ right`` to a float32 sum; on a GPU the product is not rounded before."""
    right = right.to(left.dtype)
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif left.device.type == "cpu":
        total += left @ right
    else:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)


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
    distribution: Distribution = PLAIN,
    support: Support | None = None,
    chunk_elements: int | None = None,
    beta: float = 1.0,
) -> torch.Tensor:
    """Exact ``KL(policy || reference)`` at each place: ``[N]`` float32, in nats.

    With another ``beta`` than 1 it is the divergence of that name in ``kl.py``.

    Both at the temperature, and over the ids, that were sampled from: those of ``support``, or all
    that are not forbidden. Differentiable with respect to the policy's hidden states and weight;
    the reference is a constant. Where models of two sizes pad one vocabulary to two lengths, the
    shorter one counts: the rest are not tokens.
    """
    vocabulary = min(len(policy.weight), len(reference.weight))
    device = policy.hidden.device
    with torch.autocast(device.type, enabled=False):
        return _TokenKl.apply(
            *(policy.hidden, policy.weight[:vocabulary]),
            *(reference.hidden, reference.weight[:vocabulary]),
            *(distribution.temperature, _forbidden(distribution, device)),
            None if support is None else _padded_ids(support, vocabulary).to(device),
            *(chunk_elements, beta),
        )


def _padded_ids(support: Support, vocabulary: int) -> torch.Tensor:
    """Kept ids ``[N, S]`` of N tokens, the vocabulary's size behind a token's last one."""
    rows = torch.from_numpy(support.ids).long().split(support.sizes.tolist())
    return pad_sequence(rows, batch_first=True, padding_value=vocabulary)


def _mask_cut(logits: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    """Give ids that were not kept no probability; rows without kept ids stay as they are.

    Args:
        ids: See ``_padded_ids``; None: all were kept.
    """
    if ids is None or ids.shape[1] == 0:
        return logits
    vocabulary = logits.shape[1]
    kept = logits.new_zeros((len(logits), vocabulary + 1), dtype=torch.bool).scatter_(1, ids, True)
    is_whole = ids[:, :1] == vocabulary
    return logits.masked_fill_(~(kept[:, :vocabulary] | is_whole), FORBIDDEN)


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
        ids: torch.Tensor | None,
        chunk_elements: int | None,
        beta: float,
    ) -> torch.Tensor:
        chunks = row_chunks(hidden, 2 * len(weight), chunk_elements)
        kl = torch.empty(len(hidden), device=hidden.device)
        for part in chunks:
            kept = None if ids is None else ids[part]
            both = (hidden[part], weight), (ref_hidden[part], ref_weight)
            log_p, log_q = (
                _mask_cut(logits_of(*of, temperature, forbidden), kept).log_softmax(-1)
                for of in both
            )
            kl[part] = divergence(log_p, log_q, beta)
        ctx.save_for_backward(hidden, weight, ref_hidden, ref_weight, forbidden, ids)
        ctx.temperature, ctx.chunks, ctx.beta = temperature, chunks, beta
        return kl

    @staticmethod
    def backward(ctx: Any, grad_kl: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, ref_hidden, ref_weight, forbidden, ids = ctx.saved_tensors
        sums = _Sums.of(ctx, hidden, weight)
        scale = (ctx.temperature, forbidden)
        for part in ctx.chunks:
            kept = None if ids is None else ids[part]
            both = (hidden[part], weight), (ref_hidden[part], ref_weight)
            log_p, log_q = (_mask_cut(logits_of(*of, *scale), kept).log_softmax(-1) for of in both)
            grad = divergence_gradient(log_p, log_q, ctx.beta)
            grad = rounded_product(grad, grad_kl[part, None] / ctx.temperature, weight.dtype)
            sums.add(part, grad, hidden, weight)
        return *sums.rounded(weight.dtype), *[None] * 7
