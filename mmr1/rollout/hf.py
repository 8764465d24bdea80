"""Rollouts through transformers: no vLLM needed, exactly repeatable.

How completions are sampled is the matter of a ``Sampler``, such as that of ``shared_prompts.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mmr1.config import SamplingConfig
from mmr1.rollout.engine import Probe, Request
from mmr1.rollout.generating import GeneratingSampler
from mmr1.rollout.sampling import Sampled, Sampler, has_stop_text
from mmr1.rollout.shared_prompts import SharedPromptSampler
from mmr1.rollout.tcp_transfer import TcpReceiver
from mmr1.types import Completion, Prompt, RolloutGroup
from mmr1.vision.families.family import ModelFamily, is_packed
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache


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
        self._sampler: Sampler = (
            SharedPromptSampler(model, family, media, features)
            if is_packed(family)
            else GeneratingSampler(model, family, media)
        )
        self._version = 0
        self._receiver = TcpReceiver()

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        training = self._model.training
        self._model.eval()
        try:
            sampled = self._sampler.sample(requests, sampling)
        finally:
            self._model.train(training)
        completions = iter([self._completion(row, sampling.stop) for row in sampled])
        return [
            RolloutGroup(r.prompt, tuple(next(completions) for _ in range(r.n))) for r in requests
        ]

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        if not self._shares_weights:
            self._model.load_state_dict(weights)
        self._version = version

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        self._receiver.connect(**init_info)

    def start_weight_update(self) -> None:
        """Nothing has to be prepared."""

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        own = self._model.state_dict()

        def load(chunk: list[tuple[str, torch.Tensor]]) -> None:
            for name, tensor in chunk:
                own[name].copy_(tensor)

        self._receiver.receive(**update_info, load=load)

    def finish_weight_update(self, version: int) -> None:
        self._version = version

    def abandon_weight_update(self) -> None:
        self._receiver.close()

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        probes = []
        for prompt in prompts:
            media = [self._media[m] for m in prompt.media]
            ids = self._family.read_prompt(prompt, media).ids.tolist()
            grids = tuple(m.grid for m in media) if is_packed(self._family) else ()
            probes.append(Probe(tuple(ids), grids))
        return probes

    def close(self) -> None:
        """Nothing to free: the model belongs to whoever passed it in."""

    def _completion(self, sampled: Sampled, stop: Sequence[str]) -> Completion:
        tokens, tokenizer = sampled.tokens, self._family.tokenizer
        ended = tokens[-1] in self._family.stop_ids or has_stop_text(tokenizer, tokens, stop)
        return Completion(
            token_ids=np.array(tokens, dtype=np.int64),
            logprobs=np.array(sampled.logprobs, dtype=np.float32),
            text=tokenizer.decode(tokens, skip_special_tokens=True),
            truncated=not ended,
            policy_version=self._version,
        )
