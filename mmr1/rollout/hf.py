"""Rollouts through transformers: no vLLM needed, exactly repeatable.

Each prompt and its media go through the network once; the cache is then repeated for the group's
completions, and finished rows leave the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from mmr1.config import SamplingConfig
from mmr1.rollout.engine import Probe, Request
from mmr1.rollout.sampling import next_tokens
from mmr1.types import Completion, Prompt, RolloutGroup
from mmr1.vision.families.qwen2_5_vl import Family, expand_placeholders, prompt_positions
from mmr1.vision.prepare import MediaCache, media_inputs


@dataclass(slots=True)
class _Rows:
    """The unfinished completions of a batch: parallel lists and tensors, one entry per row."""

    index: torch.Tensor  # [B] place in the request order
    next_position: torch.Tensor  # [B]
    attention_mask: torch.Tensor  # [B, T]
    uniforms: torch.Tensor  # [B, max_tokens]

    def keep(self, alive: torch.Tensor) -> _Rows:
        return _Rows(
            self.index[alive],
            self.next_position[alive],
            self.attention_mask[alive],
            self.uniforms[alive],
        )


class HfEngine:
    """Samples from a transformers model.

    Args:
        model: The model, with or without peft adapters.
        family: Its processor and tokens.
        media: Prepared media.
        shares_weights: It is the very module that is being trained: it has every weight already.
    """

    def __init__(
        self, model: Any, family: Family, media: MediaCache, shares_weights: bool = False
    ) -> None:
        self._model = model
        self._shares_weights = shares_weights
        self._family = family
        self._media = media
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
            ids = expand_placeholders(self._family, prompt.token_ids, media)
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
        logits, cache, rows = self._prefill(requests, sampling)
        stop_ids = torch.tensor(self._family.stop_ids, device=logits.device)
        tokens: list[list[int]] = [[] for _ in rows.index]
        logprobs: list[list[float]] = [[] for _ in rows.index]
        for step in range(sampling.max_tokens):
            logits[:, list(self._family.forbidden_ids)] = -torch.inf
            drawn, drawn_logprobs = next_tokens(logits, rows.uniforms[:, step], sampling)
            for row, token, logprob in zip(
                rows.index.tolist(), drawn.tolist(), drawn_logprobs.tolist(), strict=True
            ):
                tokens[row].append(token)
                logprobs[row].append(logprob)
            alive = ~torch.isin(drawn, stop_ids)
            if sampling.stop:
                stopped = [self._has_stop_text(tokens[i], sampling.stop) for i in rows.index]
                alive &= ~torch.tensor(stopped, device=alive.device)
            if step + 1 == sampling.max_tokens or not alive.any():
                break
            if not alive.all():
                rows, drawn = rows.keep(alive), drawn[alive]
                cache.batch_select_indices(alive.nonzero()[:, 0])
            logits = self._decode(drawn, cache, rows)
        return tokens, logprobs

    def _prefill(
        self, requests: Sequence[Request], sampling: SamplingConfig
    ) -> tuple[torch.Tensor, DynamicCache, _Rows]:
        """Each prompt once, then everything repeated ``n`` times: ``[B, V]`` logits and state."""
        inputs = self._prompt_inputs([r.prompt for r in requests])
        cache = DynamicCache(config=self._model.config)
        output = self._model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        repeats = torch.tensor([r.n for r in requests], device=self._model.device)
        source = torch.arange(len(requests), device=self._model.device).repeat_interleave(repeats)
        cache.batch_select_indices(source)
        next_position = inputs["position_ids"].amax(dim=(0, 2)) + 1  # padding holds position 0
        rows = _Rows(
            index=torch.arange(len(source), device=source.device),
            next_position=next_position[source],
            attention_mask=inputs["attention_mask"][source],
            uniforms=self._uniforms(requests, sampling.max_tokens),
        )
        return output.logits[source, -1].float(), cache, rows

    def _decode(self, tokens: torch.Tensor, cache: DynamicCache, rows: _Rows) -> torch.Tensor:
        rows.attention_mask = torch.cat(
            [rows.attention_mask, rows.attention_mask.new_ones(len(tokens), 1)], dim=1
        )
        output = self._model(
            input_ids=tokens[:, None],
            position_ids=rows.next_position[None, :, None].expand(3, -1, -1),
            attention_mask=rows.attention_mask,
            past_key_values=cache,
            use_cache=True,
        )
        rows.next_position = rows.next_position + 1
        return output.logits[:, -1].float()

    def _uniforms(self, requests: Sequence[Request], count: int) -> torch.Tensor:
        seeds = [request.seed + i for request in requests for i in range(request.n)]
        numbers = [torch.rand(count, generator=torch.Generator().manual_seed(s)) for s in seeds]
        return torch.stack(numbers).to(self._model.device)

    def _prompt_inputs(self, prompts: Sequence[Prompt]) -> dict[str, torch.Tensor]:
        """Left-padded prompts ``[G, P]`` with their media, each medium once."""
        ids, positions, media = [], [], []
        for prompt in prompts:
            prepared = [self._media[m] for m in prompt.media]
            row = expand_placeholders(self._family, prompt.token_ids, prepared)
            ids.append(torch.tensor(row))
            positions.append(prompt_positions(self._family, row, prepared))
            media.extend(prepared)
        longest = max(len(row) for row in ids)

        def left_padded(row: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(row, (longest - row.shape[-1], 0))

        inputs = {
            "input_ids": torch.stack([left_padded(row) for row in ids]),
            "attention_mask": torch.stack([left_padded(torch.ones_like(row)) for row in ids]),
            "position_ids": torch.stack([left_padded(row) for row in positions], dim=1),
            **media_inputs(media),
        }
        return {name: tensor.to(self._model.device) for name, tensor in inputs.items()}
