"""Sampling the completions of groups from a transformers model that shares their prompts.

Each prompt and its media go through the network once for all completions of its group, and
finished rows leave the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from mmr1.adapters import unwrapped
from mmr1.config import SamplingConfig
from mmr1.rollout.decoding import Decoder, transposed_weights
from mmr1.rollout.engine import Request
from mmr1.rollout.sampling import Sampled, has_stop_text, next_tokens, uniforms_of
from mmr1.types import Prompt
from mmr1.vision.families.family import PackedFamily
from mmr1.vision.families.loading import model_parts, packed_architecture_of
from mmr1.vision.features import FeatureCache, encode_media
from mmr1.vision.prepare import MediaCache, Medium


@dataclass(frozen=True, slots=True)
class _Padded:
    """G prompts, padded on the left to the longest, P tokens."""

    ids: torch.Tensor  # [G, P]
    attention_mask: torch.Tensor  # [G, P], 0 on padding
    positions: torch.Tensor  # [rows, G, P]
    completion_starts: torch.Tensor  # [G]: position of the first completion token
    slots: torch.Tensor  # [F]: the placeholders among the G * P tokens
    media: list[Medium]  # of all prompts, in order


@dataclass(frozen=True, slots=True)
class SharedPromptSampler:
    """A ``Sampler``.

    Attributes:
        model: The model, with or without peft adapters.
        family: Its processor and tokens.
        media: Prepared media.
        features: Where those of a frozen vision tower are kept.
    """

    model: Any
    family: PackedFamily
    media: MediaCache
    features: FeatureCache | None

    @torch.no_grad()
    def sample(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[Sampled]:
        logits, decoder = self._prefill(requests)
        with transposed_weights(unwrapped(self.model)):
            return self._decode(requests, sampling, logits, decoder)

    def _decode(
        self,
        requests: Sequence[Request],
        sampling: SamplingConfig,
        logits: torch.Tensor,
        decoder: Decoder,
    ) -> list[Sampled]:
        uniforms = uniforms_of(requests, sampling.max_tokens, logits.device)
        rows = torch.arange(len(uniforms), device=logits.device)  # the unfinished completions
        stop_ids = torch.tensor(self.family.stop_ids, device=logits.device)
        sampled = [Sampled() for _ in rows]
        for step in range(sampling.max_tokens):
            logits[:, list(self.family.forbidden_ids)] = -torch.inf
            drawn, logprobs = next_tokens(logits, uniforms[:, step], sampling)
            for row, token, logprob in zip(
                rows.tolist(), drawn.tolist(), logprobs.tolist(), strict=True
            ):
                sampled[row].tokens.append(token)
                sampled[row].logprobs.append(logprob)
            alive = ~torch.isin(drawn, stop_ids)
            if sampling.stop:
                tokenizer = self.family.tokenizer
                stopped = [has_stop_text(tokenizer, sampled[i].tokens, sampling.stop) for i in rows]
                alive &= ~torch.tensor(stopped, device=alive.device)
            if step + 1 == sampling.max_tokens or not alive.any():
                break
            if not alive.all():
                rows, drawn, uniforms = rows[alive], drawn[alive], uniforms[alive]
                decoder.keep(alive)
            logits = decoder.step(drawn).float()
        return sampled

    def _prefill(self, requests: Sequence[Request]) -> tuple[torch.Tensor, Decoder]:
        """Each prompt once: ``[B, V]`` logits of the first tokens, and what decodes the others."""
        base, parts = unwrapped(self.model), model_parts(self.model)
        architecture = packed_architecture_of(base)
        batch = self._padded([r.prompt for r in requests])
        embeddings = parts.embed_tokens(batch.ids)
        tokens = {"inputs_embeds": embeddings}
        if batch.media:
            encoded = encode_media(base, batch.media, self.features).to(embeddings.dtype)
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

    def _padded(self, prompts: Sequence[Prompt]) -> _Padded:
        ids, positions, media = [], [], []
        for prompt in prompts:
            prepared = [self.media[m] for m in prompt.media]
            row = self.family.expand_placeholders(prompt.token_ids, prepared)
            ids.append(torch.tensor(row))
            positions.append(self.family.prompt_positions(row, prepared))
            media.extend(prepared)
        longest = max(len(row) for row in ids)

        def stacked(rows: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
            padded = [torch.nn.functional.pad(r, (longest - r.shape[-1], 0)) for r in rows]
            return torch.stack(padded, dim).to(self.model.device)

        tokens, real = stacked(ids), stacked([torch.ones_like(row) for row in ids])
        kinds = list(self.family.placeholder_kinds)
        of_media = torch.tensor(kinds, dtype=torch.int64, device=tokens.device)
        slots = (torch.isin(tokens, of_media) & real.bool()).flatten().nonzero()[:, 0]
        starts = [self.family.completion_start(rows) for rows in positions]
        return _Padded(
            tokens,
            real,
            stacked(positions, 1),
            torch.tensor(starts, device=tokens.device),
            slots,
            media,
        )
