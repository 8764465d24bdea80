"""Rollouts through transformers: no vLLM needed, exactly repeatable.

Each prompt and its media go through the network once for all completions of its group, and
finished rows leave the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from mmr1.adapters import unwrapped
from mmr1.config import SamplingConfig
from mmr1.rollout.decoding import Decoder, transposed_weights
from mmr1.rollout.engine import Probe, Request
from mmr1.rollout.sampling import next_tokens
from mmr1.types import Completion, Prompt, RolloutGroup
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.loading import architecture_of, model_parts
from mmr1.vision.features import FeatureCache, encode_media
from mmr1.vision.prepare import MediaCache, PreparedMedia


@dataclass(frozen=True, slots=True)
class _Padded:
    """G prompts, padded on the left to the longest, P tokens."""

    ids: torch.Tensor  # [G, P]
    attention_mask: torch.Tensor  # [G, P], 0 on padding
    positions: torch.Tensor  # [rows, G, P]
    completion_starts: torch.Tensor  # [G]: position of the first completion token
    slots: torch.Tensor  # [F]: the placeholders among the G * P tokens
    media: list[PreparedMedia]  # of all prompts, in order


class HfEngine:
    """Samples from a transformers model.

    Args:
        model: The model, with or without peft adapters.
        family: Its processor and tokens.
        media: Prepared media.
        shares_weights: It is the very module that is being trained: it has every weight already.
        features: Where those of a frozen vision tower are kept.
    """

    def __init__(
        self,
        model: Any,
        family: ModelFamily,
        media: MediaCache,
        shares_weights: bool = False,
        features: FeatureCache | None = None,
    ) -> None:
        self._model = model
        self._shares_weights = shares_weights
        self._family = family
        self._media = media
        self._features = features
        self._version = 0

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        training = self._model.training
        self._model.eval()
        try:
            tokens, logprobs = self._sample(requests, sampling)
        finally:
            self._model.train(training)
        completions = iter(
            [self._completion(*row, sampling.stop) for row in zip(tokens, logprobs, strict=True)]
        )
        return [
            RolloutGroup(r.prompt, tuple(next(completions) for _ in range(r.n))) for r in requests
        ]

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        if not self._shares_weights:
            self._model.load_state_dict(weights)
        self._version = version

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        probes = []
        for prompt in prompts:
            media = [self._media[m] for m in prompt.media]
            ids = self._family.expand_placeholders(prompt.token_ids, media)
            probes.append(Probe(tuple(ids), tuple(m.grid for m in media)))
        return probes

    def close(self) -> None:
        """Nothing to free: the model belongs to whoever passed it in."""

    def _completion(
        self, tokens: list[int], logprobs: list[float], stop: Sequence[str]
    ) -> Completion:
        ended = tokens[-1] in self._family.stop_ids or self._has_stop_text(tokens, stop)
        return Completion(
            token_ids=np.array(tokens, dtype=np.int64),
            logprobs=np.array(logprobs, dtype=np.float32),
            text=self._family.tokenizer.decode(tokens, skip_special_tokens=True),
            truncated=not ended,
            policy_version=self._version,
        )

    def _has_stop_text(self, tokens: Sequence[int], stop: Sequence[str]) -> bool:
        """Did the last token complete one of the texts? A token is at least a byte of it."""
        if not stop:
            return False
        longest = max(len(text.encode()) for text in stop)
        tail = self._family.tokenizer.decode(tokens[-longest:])
        return any(text in tail for text in stop)

    @torch.no_grad()
    def _sample(
        self, requests: Sequence[Request], sampling: SamplingConfig
    ) -> tuple[list[list[int]], list[list[float]]]:
        logits, decoder = self._prefill(requests)
        with transposed_weights(unwrapped(self._model)):
            return self._decode(requests, sampling, logits, decoder)

    def _decode(
        self,
        requests: Sequence[Request],
        sampling: SamplingConfig,
        logits: torch.Tensor,
        decoder: Decoder,
    ) -> tuple[list[list[int]], list[list[float]]]:
        uniforms = self._uniforms(requests, sampling.max_tokens)
        rows = torch.arange(len(uniforms), device=logits.device)  # the unfinished completions
        stop_ids = torch.tensor(self._family.stop_ids, device=logits.device)
        tokens: list[list[int]] = [[] for _ in rows]
        logprobs: list[list[float]] = [[] for _ in rows]
        for step in range(sampling.max_tokens):
            logits[:, list(self._family.forbidden_ids)] = -torch.inf
            drawn, drawn_logprobs = next_tokens(logits, uniforms[:, step], sampling)
            for row, token, logprob in zip(
                rows.tolist(), drawn.tolist(), drawn_logprobs.tolist(), strict=True
            ):
                tokens[row].append(token)
                logprobs[row].append(logprob)
            alive = ~torch.isin(drawn, stop_ids)
            if sampling.stop:
                stopped = [self._has_stop_text(tokens[i], sampling.stop) for i in rows]
                alive &= ~torch.tensor(stopped, device=alive.device)
            if step + 1 == sampling.max_tokens or not alive.any():
                break
            if not alive.all():
                rows, drawn, uniforms = rows[alive], drawn[alive], uniforms[alive]
                decoder.keep(alive)
            logits = decoder.step(drawn).float()
        return tokens, logprobs

    def _prefill(self, requests: Sequence[Request]) -> tuple[torch.Tensor, Decoder]:
        """Each prompt once: ``[B, V]`` logits of the first tokens, and what decodes the others."""
        base, parts = unwrapped(self._model), model_parts(self._model)
        architecture = architecture_of(base)
        batch = self._padded([r.prompt for r in requests])
        embeddings = parts.embed_tokens(batch.ids)
        tokens = {"inputs_embeds": embeddings}
        if batch.media:
            encoded = encode_media(base, batch.media, self._features).to(embeddings.dtype)
            tokens = architecture.language_inputs(embeddings, batch.slots, encoded)
        cache = DynamicCache(config=base.config)
        hidden = parts.language_model(
            **tokens,
            position_ids=architecture.position_ids(batch.positions),
            attention_mask=batch.attention_mask,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        sizes = torch.tensor([r.n for r in requests], device=hidden.device)
        decoder = Decoder(base, cache, batch.attention_mask, batch.completion_starts, sizes)
        logits = parts.lm_head(hidden[:, -1]).float()
        return logits.repeat_interleave(sizes, dim=0), decoder

    def _uniforms(self, requests: Sequence[Request], count: int) -> torch.Tensor:
        seeds = [request.seed + i for request in requests for i in range(request.n)]
        numbers = [torch.rand(count, generator=torch.Generator().manual_seed(s)) for s in seeds]
        return torch.stack(numbers).to(self._model.device)

    def _padded(self, prompts: Sequence[Prompt]) -> _Padded:
        ids, positions, media = [], [], []
        for prompt in prompts:
            prepared = [self._media[m] for m in prompt.media]
            row = self._family.expand_placeholders(prompt.token_ids, prepared)
            ids.append(torch.tensor(row))
            positions.append(self._family.prompt_positions(row, prepared))
            media.extend(prepared)
        longest = max(len(row) for row in ids)

        def stacked(rows: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
            padded = [torch.nn.functional.pad(r, (longest - r.shape[-1], 0)) for r in rows]
            return torch.stack(padded, dim).to(self._model.device)

        tokens, real = stacked(ids), stacked([torch.ones_like(row) for row in ids])
        kinds = list(self._family.placeholder_kinds)
        of_media = torch.tensor(kinds, dtype=torch.int64, device=tokens.device)
        slots = (torch.isin(tokens, of_media) & real.bool()).flatten().nonzero()[:, 0]
        starts = [self._family.completion_start(rows) for rows in positions]
        return _Padded(
            tokens,
            real,
            stacked(positions, 1),
            torch.tensor(starts, device=tokens.device),
            slots,
            media,
        )
