"""Sampling completions by transformers' own ``generate``, for models that share no prompts.

Slower than ``shared_prompts.py``: each completion computes its prompt, and prompts go one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig

from mmr1.adapters import unwrapped
from mmr1.config import SamplingConfig
from mmr1.rollout.engine import Request
from mmr1.rollout.sampling import Sampled, has_stop_text, next_tokens, uniforms_of
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.rows import arguments_of_rows
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class GeneratingSampler:
    """A ``Sampler``.

    Attributes:
        model: The model, with or without peft adapters.
        family: Its processor and tokens.
        media: Prepared media.
    """

    model: Any
    family: ModelFamily
    media: MediaCache

    @torch.no_grad()
    def sample(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[Sampled]:
        with _plain_generation(unwrapped(self.model)):
            return [row for request in requests for row in self._sample(request, sampling)]

    def _sample(self, request: Request, sampling: SamplingConfig) -> list[Sampled]:
        base, family = unwrapped(self.model), self.family
        prompt = family.read_prompt(request.prompt, [self.media[m] for m in request.prompt.media])
        length = len(prompt.ids)
        draw = _Draw(family, uniforms_of([request], sampling.max_tokens, base.device), sampling)
        ids = prompt.ids.expand(request.n, -1).to(base.device)
        base.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **arguments_of_rows(
                prompt.arguments, length, request.n, length, base.device, base.dtype
            ),
            max_new_tokens=sampling.max_tokens,
            do_sample=False,  # the draw leaves one token to choose
            eos_token_id=list(family.stop_ids),
            pad_token_id=family.pad_id,
            logits_processor=[draw],
        )
        return draw.sampled


@dataclass
class _Draw:
    """Draws the next token of each row, and takes every other token's probability away.

    Attributes:
        family: For the tokens.
        uniforms: ``[n, max_tokens]``.
        sampling: How to draw.
        sampled: What was drawn so far.
    """

    family: ModelFamily
    uniforms: torch.Tensor
    sampling: SamplingConfig
    sampled: list[Sampled] = field(init=False)

    def __post_init__(self) -> None:
        self.sampled = [Sampled() for _ in self.uniforms]
        self._step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """transformers' signature: ``[n, T]`` ids so far, ``[n, V]`` logits."""
        logits = scores.float()
        logits[:, list(self.family.forbidden_ids)] = -torch.inf
        drawn, logprobs = next_tokens(logits, self.uniforms[:, self._step], self.sampling)
        ended = [self._ended(row.tokens) for row in self.sampled]
        for row, has_ended, token, logprob in zip(
            self.sampled, ended, drawn.tolist(), logprobs.tolist(), strict=True
        ):
            if not has_ended:
                row.tokens.append(token)
                row.logprobs.append(logprob)
        # Of an ended row nothing is read.
        over = torch.tensor(ended, device=drawn.device)
        drawn = drawn.masked_fill(over, self.family.stop_ids[0])
        self._step += 1
        return torch.full_like(logits, -torch.inf).scatter(-1, drawn[:, None], 0.0)

    def _ended(self, tokens: list[int]) -> bool:
        if not tokens:
            return False
        stops = tokens[-1] in self.family.stop_ids
        return stops or has_stop_text(self.family.tokenizer, tokens, self.sampling.stop)


@contextmanager
def _plain_generation(base: Any) -> Iterator[None]:
    """Inside the block nothing of ``generation_config.json`` changes what the model would say."""
    own = base.generation_config
    base.generation_config = GenerationConfig()
    try:
        yield
    finally:
        base.generation_config = own
