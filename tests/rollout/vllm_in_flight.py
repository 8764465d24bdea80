"""Groups whose weights change while vLLM samples them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForImageTextToText

from mmr1.config import SamplingConfig
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.protocol import Request
from mmr1.trainer.forward.sequences import group_input
from mmr1.types import Completion, Prompt, RolloutGroup
from tests.asking import asks
from tests.padded_forward import padded_scores
from tests.rollout.vllm_engines import shake

SAMPLING = SamplingConfig(max_tokens=60)


N = 4


def model_with_large_weights(path: Path) -> Any:
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # so that attention matters
            if parameter.ndim >= 2:
                parameter.mul_(3.0)
    return model


def groups_of(prompts: list[Prompt], first: int | None = 6) -> dict[int, Request]:
    """Text alone, one image, two images, a video; the first completion of each ends early.

    Args:
        first: The most tokens that it may have; None where none is to end early.
    """
    return {
        N * place + index: replace(
            asks(prompt, 1, 100 * place + index, max_tokens=first if index == 0 else None),
            sampling=SAMPLING,
        )
        for place, prompt in enumerate(prompts)
        for index in range(N)
    }


def worst_gaps(
    parts, models: Mapping[int, torch.nn.Module], ended: Mapping[int, Completion]
) -> dict[int, float]:
    """By version: the largest distance of its tokens' log-probs from its own forward."""
    family, _, media, prompts, _ = parts
    gaps = dict.fromkeys(models, 0.0)
    for number, completion in ended.items():
        group = group_input(family, media, RolloutGroup(prompts[number // N], (completion,)))
        start = 0
        versions = completion.versions or ((completion.policy_version, len(completion.token_ids)),)
        for version, count in versions:
            scores = padded_scores(
                models[version], [group], Distribution(forbidden=family.forbidden_ids)
            )
            own = slice(start, start + count)
            gap = np.abs(completion.logprobs[own] - scores.logprobs[0].detach().numpy()[own]).max()
            gaps[version] = max(gaps[version], float(gap))
            start += count
        assert start == len(completion.token_ids)
    return gaps


def gaps_of_first_new_tokens(
    parts, old: torch.nn.Module, ended: Mapping[int, Completion]
) -> list[float]:
    """How far from the old weights' log-prob is that of the first token labelled 2, each time."""
    family, _, media, prompts, _ = parts
    gaps = []
    for number, completion in ended.items():
        if [version for version, _ in completion.versions] == [1, 2]:
            group = group_input(family, media, RolloutGroup(prompts[number // N], (completion,)))
            scores = padded_scores(old, [group], Distribution(forbidden=family.forbidden_ids))
            first = completion.versions[0][1]
            gaps.append(abs(completion.logprobs[first] - scores.logprobs[0, first].item()))
    return gaps


def changed(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    other = copy.deepcopy(model)
    shake(other, 1e-2, torch.Generator().manual_seed(seed))
    return other


class Nothing:
    """What a CPU has in the place of CUDA's streams and events: all is done when a call returns."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None
