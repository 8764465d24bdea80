"""Drawing the next token from logits, as vLLM's processed log-probs describe it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from mmr1.config import SamplingConfig
from mmr1.rollout.engine import Request


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens of one completion so far, and their log-probs under the sampling distribution."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Sampler(Protocol):
    """How a transformers model samples; it is in evaluation mode then."""

    def sample(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[Sampled]:
        """The completions of all requests, those of a request next to each other."""
        ...


def uniforms_of(requests: Sequence[Request], count: int, device: torch.device) -> torch.Tensor:
    """``[B, count]``: the numbers in [0, 1) that decide the tokens of each completion."""
    seeds = [request.seed + i for request in requests for i in range(request.n)]
    numbers = [torch.rand(count, generator=torch.Generator().manual_seed(s)) for s in seeds]
    return torch.stack(numbers).to(device)


def has_stop_text(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str]) -> bool:
    """Did the last token complete one of the texts? A token is at least a byte of it."""
    if not stop:
        return False
    longest = max(len(text.encode()) for text in stop)
    tail = tokenizer.decode(tokens[-longest:])
    return any(text in tail for text in stop)


def next_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, sampling: SamplingConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row by inverting the cumulative distribution.

    One uniform number decides one token, so a completion depends on its own seed and not on the
    rows that happen to be beside it.

    Args:
        logits: ``[B, V]`` float32, forbidden tokens already at minus infinity.
        uniforms: ``[B]`` in [0, 1).

    Returns:
        Token ids ``[B]`` and their log-probabilities ``[B]`` under the sampling distribution. At
        temperature 0 the most probable token and its log-probability at temperature 1.
    """
    if sampling.temperature == 0:
        logprobs = logits.log_softmax(-1)
        best = logprobs.max(-1)
        return best.indices, best.values
    logprobs = _truncate(logits / sampling.temperature, sampling).log_softmax(-1)
    cumulative = logprobs.exp().cumsum(-1)
    # Rounding leaves the last entry near 1; scaling by it keeps every index inside the vocabulary.
    thresholds = uniforms[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, thresholds, right=True)
    tokens = tokens.clamp(max=logits.shape[-1] - 1)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]


def _truncate(logits: torch.Tensor, sampling: SamplingConfig) -> torch.Tensor:
    """Set the logits of excluded tokens to minus infinity, in vLLM's order.

    Min-p (arXiv 2407.01082), top-k, then top-p (nucleus, arXiv 1904.09751).
    """
    if sampling.min_p:
        probabilities = logits.softmax(-1)
        least = sampling.min_p * probabilities.amax(-1, keepdim=True)
        logits = logits.masked_fill(probabilities < least, -torch.inf)
    if sampling.top_k:
        kth = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # mass of the more probable tokens
        outside = torch.zeros_like(before, dtype=torch.bool).scatter(
            -1, order, before >= sampling.top_p
        )
        logits = logits.masked_fill(outside, -torch.inf)
    return logits
