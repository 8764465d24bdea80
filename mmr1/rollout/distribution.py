"""The distribution that completions are sampled from: one object with every reader.

Engines draw from it, and the trainer evaluates log-probs, ratios and entropies under it. What it
cuts off (min-p, top-k, top-p) depends on the weights, so the engine returns the ids that it kept
with each token (:class:`mmr1.types.Support`), and the trainer evaluates on the same ids: the *Keep
Sampling Mask* of DeepSeek-V3.2 (arXiv 2512.02556, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mmr1.config import SamplingConfig
from mmr1.types import Support

FORBIDDEN = -1e4
"""The logit of a forbidden id: its probability is exactly 0 in float32, its products are finite."""
SUPPORT_LIMIT = 512
"""The ``top_k`` of a distribution that is cut without one, so that no support is ever clipped."""
_NO_IDS = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution over next tokens, as a function of a model's logits.

    Attributes:
        temperature: Divisor of the logits. 0: the most probable token alone.
        min_p: Least probability relative to the most probable token (arXiv 2407.01082); 0: off.
        top_k: Number of the most probable tokens that are kept; 0: all.
        top_p: Mass of the most probable tokens that are kept (nucleus, arXiv 1904.09751); 1: all.
        forbidden: Ids that are never sampled.
    """

    temperature: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    forbidden: tuple[int, ...] = ()

    @classmethod
    def of(cls, sampling: SamplingConfig, forbidden: Sequence[int] = ()) -> Distribution:
        """Return the distribution of sampling parameters; a cut one has a finite ``top_k``."""
        top_k = sampling.top_k
        if top_k == 0 and (sampling.top_p < 1 or sampling.min_p > 0):
            top_k = SUPPORT_LIMIT
        return cls(sampling.temperature, sampling.min_p, top_k, sampling.top_p, tuple(forbidden))

    @property
    def keeps_all(self) -> bool:
        """True if every id but the forbidden ones can be sampled: no support has to travel."""
        return self.temperature > 0 and not (self.min_p or self.top_k or self.top_p < 1)

    def of_model(self) -> Distribution:
        """Return the model's own distribution: at temperature 1, nothing cut."""
        return Distribution(forbidden=self.forbidden)

    def bounded(self) -> Distribution:
        """Return the distribution with a positive temperature and a finite ``top_k``.

        Engines that return the support of every token take no other form. Greedy decoding is the
        most probable token at temperature 1; one that keeps all is cut to ``SUPPORT_LIMIT`` ids.
        """
        if self.temperature == 0:
            return replace(self.of_model(), top_k=1)
        return replace(self, top_k=self.top_k or SUPPORT_LIMIT)

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the log-probs ``[B, V]`` of all ids; one that is not kept has a probability of 0.

        The order is vLLM's: forbidden ids, temperature, min-p, top-k, top-p.

        Args:
            logits: ``[B, V]`` float32, the model's; forbidden ids are written over.
        """
        logits[:, list(self.forbidden)] = FORBIDDEN
        if self.temperature == 0:
            best = logits.argmax(-1, keepdim=True)
            return torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)
        logits = logits / self.temperature
        if self.min_p:
            probabilities = logits.softmax(-1)
            least = self.min_p * probabilities.amax(-1, keepdim=True)
            logits = logits.masked_fill(probabilities < least, -torch.inf)
        if self.top_k:
            kth = logits.topk(min(self.top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        if self.top_p < 1:
            ordered, order = logits.sort(descending=True)
            probabilities = ordered.softmax(-1)
            before = probabilities.cumsum(-1) - probabilities  # mass of the more probable ids
            outside = torch.zeros_like(before, dtype=torch.bool).scatter(
                -1, order, before >= self.top_p
            )
            logits = logits.masked_fill(outside, -torch.inf)
        return logits.log_softmax(-1)

    def vllm(self) -> dict[str, Any]:
        """Return vLLM's ``SamplingParams`` of it. vLLM adds the bias before the temperature."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "logit_bias": dict.fromkeys(self.forbidden, FORBIDDEN),
        }


PLAIN = Distribution()
"""A model's own distribution, without forbidden ids."""


def kept_ids(log_probs: torch.Tensor) -> list[np.ndarray]:
    """Return the ids of each row of ``[B, V]`` that have a probability, int32."""
    kept = log_probs.exp() > 0
    ids = kept.nonzero()[:, 1].to(torch.int32).cpu().numpy()
    return np.split(ids, kept.sum(-1).cumsum(0)[:-1].cpu().numpy())


def support_of(kept: Sequence[np.ndarray]) -> Support:
    """Return the support of tokens whose kept ids are ``kept``."""
    sizes = np.array([len(ids) for ids in kept], dtype=np.int32)
    return Support(np.concatenate([_NO_IDS, *kept]), sizes)


def select_support(support: Support, tokens: np.ndarray | slice) -> Support:
    """Return the support of some tokens, which a mask ``[R]`` or a slice names, in order."""
    chosen = np.zeros(len(support.sizes), dtype=bool)
    chosen[tokens] = True
    return Support(support.ids[np.repeat(chosen, support.sizes)], support.sizes[chosen])


def join_supports(parts: Sequence[Support | int]) -> Support | None:
    """Return the support of sequences next to each other; None if none of them has one.

    Args:
        parts: Support of each sequence, or its number of tokens if it has none.
    """
    if all(isinstance(part, int) for part in parts):
        return None
    whole = [Support(_NO_IDS, np.zeros(p, np.int32)) if isinstance(p, int) else p for p in parts]
    return Support(
        np.concatenate([part.ids for part in whole]), np.concatenate([p.sizes for p in whole])
    )
