"""Conversations and transfers of weights, for engines that do not provide them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from mmr1.config import SamplingConfig
from mmr1.rollout.engine import PreparedRequest, Request, RolloutEngine
from mmr1.rollout.tcp_transfer import TcpReceiver
from mmr1.types import Completion
from mmr1.vision.families.family import ModelFamily


class BatchedTurns:
    """A ``TurnEngine`` made of one that samples a batch to its end."""

    def __init__(self, engine: RolloutEngine, family: ModelFamily) -> None:
        self._engine, self._family = engine, family

    def advance(
        self, requests: Mapping[int, PreparedRequest], sampling: SamplingConfig
    ) -> dict[int, Completion]:
        """Sample all turns to their ends. Those of one prompt are one request."""
        shared: list[Request] = []
        for request in (prepared.request for prepared in requests.values()):
            last = shared[-1] if shared else None
            if last is None or request != replace(last, n=1, seed=last.seed + last.n):
                shared.append(request)
            else:
                shared[-1] = replace(last, n=last.n + 1)
        groups = self._engine.generate(shared, sampling) if shared else []
        completions = [
            self._cut(completion, request.max_tokens)
            for request, group in zip(shared, groups, strict=True)
            for completion in group.completions
        ]
        return dict(zip(requests, completions, strict=True))

    def abandon(self) -> None:
        """Nothing to drop: no turn is under way between two calls."""

    def _cut(self, completion: Completion, length: int | None) -> Completion:
        """Cut a completion to its request's length; later tokens change nothing before them."""
        if length is None or len(completion.token_ids) <= length:
            return completion
        tokens = completion.token_ids[:length]
        text = self._family.tokenizer.decode(tokens, skip_special_tokens=True)
        logprobs = completion.logprobs[:length]
        return replace(completion, token_ids=tokens, logprobs=logprobs, text=text, truncated=True)


class CollectedTransfer:
    """A ``ReceivingEngine`` that collects the weights in main memory for ``load_weights``."""

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self._receiver = TcpReceiver()
        self._weights: dict[str, torch.Tensor] = {}

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._receiver.connect(**init_info)

    def start_weight_update(self) -> None:
        self._weights = {}

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._receiver.receive(**update_info, load=self._weights.update)

    def finish_weight_update(self, version: int) -> None:
        weights, self._weights = self._weights, {}
        self._engine.load_weights(weights, version)

    def abandon_weight_update(self) -> None:
        self._weights = {}
        self._receiver.close()
