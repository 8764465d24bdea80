"""Several rollout engines behind the protocol of a single one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mmr1.config import SamplingConfig
from mmr1.rollout.engine import Probe, Request
from mmr1.trainer.distributed.ray_calls import get
from mmr1.types import Prompt, RolloutGroup


class RayEngines:
    """Several engines as one ``RolloutEngine``: each gets its share of the prompts."""

    def __init__(self, engines: Sequence[Any]) -> None:
        self._engines = engines

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        # Contiguous shares, because prompts that share an image are neighbours.
        shares = np.array_split(np.arange(len(requests)), len(self._engines))
        calls = [
            engine.generate.remote([requests[i] for i in share], sampling)
            for engine, share in zip(self._engines, shares, strict=True)
            if len(share)
        ]
        return [group for groups in get(calls) for group in groups]

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        import ray

        shared = ray.put(dict(weights))  # once, however many engines read it
        get([engine.load_weights.remote(shared, version) for engine in self._engines])

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return get([self._engines[0].probe.remote(prompts)])[0]

    def close(self) -> None:
        """``on_ray`` ends the actors."""
