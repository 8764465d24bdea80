"""Prompts with altered media: frames shuffled, pictures grey or of another prompt.

Text and tokens stay as they are. What the policy makes of that tells whether it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.sampling.experience import SupportsLogprobs
from mmr1.types import MediaRef, Prompt, RolloutGroup, StepStats


def shown_as(prompt: Prompt, view: Callable[[MediaRef], MediaRef]) -> Prompt:
    """The prompt with ``view(medium)`` in place of each medium; those of tools stay."""
    media = prompt.sample.shown if prompt.shown is None else prompt.shown
    return replace(prompt, shown=tuple(map(view, media)))


def shuffled(prompt: Prompt, seed: int) -> Prompt:
    """The prompt with the frames of each video shuffled."""

    def view(medium: MediaRef) -> MediaRef:
        return _with_option(medium, "shuffle", seed) if medium.kind == "video" else medium

    return shown_as(prompt, view)


def blank(prompt: Prompt) -> Prompt:
    """The prompt with each medium grey, in its size."""
    return shown_as(prompt, lambda medium: _with_option(medium, "blank", 1))


def swapped(prompts: Sequence[Prompt]) -> dict[int, Prompt]:
    """The prompts with each other's media, by their index: the next prompt's of the same kinds.

    A prompt that is alone with its kinds of media is not in the result.
    """
    of_kinds: dict[tuple[str, ...], list[int]] = {}
    for index, prompt in enumerate(prompts):
        of_kinds.setdefault(tuple(medium.kind for medium in prompt.media), []).append(index)
    return {
        index: replace(prompts[index], shown=prompts[other].media)
        for kinds, indices in of_kinds.items()
        for index, other in zip(indices, [*indices[1:], indices[0]], strict=True)
        if kinds and other != index
    }


def vision_use(policy: SupportsLogprobs, groups: Sequence[RolloutGroup]) -> StepStats:
    """Metrics of how much completions depend on the media of their prompts, in nats per token.

    ``vision/blank`` is the mean of ``log p(token | prompt) - log p(token | prompt, media grey)``
    over all tokens that the policy sampled for prompts with media, ``vision/swapped`` the same with
    the media of another prompt of the step. A policy that does not look has 0.
    """
    seen = [group for group in groups if group.prompt.media]
    views = {
        "vision/blank": {index: blank(group.prompt) for index, group in enumerate(seen)},
        "vision/swapped": swapped([group.prompt for group in seen]),
    }
    whole = policy.logprobs(seen) if seen else None
    return {
        name: _lost(policy, seen, whole, prompts)
        for name, prompts in views.items()
        if prompts and whole is not None
    }


def _lost(
    policy: SupportsLogprobs,
    groups: Sequence[RolloutGroup],
    whole: torch.Tensor,
    prompts: Mapping[int, Prompt],
) -> float:
    size = len(groups[0].completions)
    rows = torch.tensor([index * size + row for index in prompts for row in range(size)])
    viewed = [replace(groups[index], prompt=prompt) for index, prompt in prompts.items()]
    mask = completion_mask(viewed)
    lost = whole[rows, : mask.shape[1]] - policy.logprobs(viewed)
    return float(lost[mask].double().mean())


def _with_option(medium: MediaRef, name: str, value: int) -> MediaRef:
    # The options are part of a medium's digest, so no cache takes it for the original.
    return replace(medium, options={**medium.options, name: value})
