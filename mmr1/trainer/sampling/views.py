"""Prompts with altered media: frames shuffled, pictures grey, masked or of another prompt.

Text and tokens stay as they are. What the policy makes of that tells whether it looks.
:mod:`mmr1.trainer.sampling.other_views` samples from such prompts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.sampling.experience import SupportsLogprobs
from mmr1.types import Completion, MediaRef, Prompt, RolloutGroup, StepStats
from mmr1.vision.views import view_options

logger = logging.getLogger(__name__)


def under(prompt: Prompt, options: Mapping[str, float]) -> Prompt:
    """The prompt with the options of a view for each medium that it changes; those of tools stay.

    Without options it is the prompt itself.
    """
    if not options:
        return prompt

    def view(medium: MediaRef) -> MediaRef:
        if medium.kind == "image" and "shuffle" in options:  # it has no frames
            return medium
        # The options are part of a medium's digest, so no cache takes it for the original.
        return replace(medium, options={**medium.options, **options})

    media = prompt.sample.shown if prompt.shown is None else prompt.shown
    return replace(prompt, shown=tuple(map(view, media)))


def changes(media: Iterable[MediaRef], view: str) -> bool:
    """True if the view changes one of the media."""
    return any(view != "shuffle" or medium.kind == "video" for medium in media)


def masked_logprobs(
    policy: SupportsLogprobs, groups: Sequence[RolloutGroup], ratio: float, seed: int
) -> torch.Tensor:
    """``[B, R]``: of the completions if their prompts' media were masked; NaN without media."""
    places = [bool(group.prompt.media) for group in groups for _ in group.completions]
    logprobs = torch.full(completion_mask(groups).shape, float("nan"))
    seen = [
        as_if(group, under(group.prompt, view_options("mask", ratio, seed + index)))
        for index, group in enumerate(groups)
        if group.prompt.media
    ]
    if seen:
        values = policy.logprobs(seen)
        logprobs[torch.tensor(places), : values.shape[1]] = values
    return logprobs


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


def check_changed(key: str, view: str, data: str, kinds: Iterable[Iterable[str]]) -> None:
    """Say how many samples a view does not change.

    Args:
        key: Key of the configuration that asks for the view.
        data: Data that the samples come from.
        kinds: The kinds of the media of each sample.

    Raises:
        ValueError: If the view changes no sample.
    """
    changed = [any(view != "shuffle" or kind == "video" for kind in own) for own in kinds]
    what = "a video" if view == "shuffle" else "an image or a video"
    if not any(changed):
        raise ValueError(
            f"{key}: the view {view}, and no sample of {data} has {what}; leave it out, or use "
            "other data"
        )
    if not all(changed):
        count = changed.count(False)
        logger.info(
            "%s: %d of %d samples of %s are without %s, and so without the view %s",
            key,
            count,
            len(changed),
            data,
            what,
            view,
        )


Lost = Mapping[int, list[torch.Tensor]]
"""The nats that each sampled token loses, by the index of a group, for each of its completions."""

Piece = tuple[str, float]
"""A piece of a completion's text, and the nats that its tokens lose."""


@dataclass(frozen=True, slots=True)
class VisionUse:
    """How much completions depend on the media of their prompts.

    Attributes:
        lost: ``blank``: ``log p(token | prompt) - log p(token | prompt, media grey)``; ``swapped``:
            the same with the media of another prompt. Prompts without media have none, and nothing
            is swapped with itself.
    """

    lost: Mapping[Literal["blank", "swapped"], Lost] = field(default_factory=dict)

    @property
    def metrics(self) -> StepStats:
        """``vision/blank`` and ``vision/swapped``, means over all tokens; empty without media.

        A policy that does not look has 0.
        """
        return {
            f"vision/{name}": float(torch.cat([x for group in lost.values() for x in group]).mean())
            for name, lost in self.lost.items()
            if lost
        }

    def of(self, group: int, completion: int) -> dict[str, float]:
        """The means over the tokens of one completion, as ``blank`` and ``swapped``."""
        return {
            name: float(lost[group][completion].mean())
            for name, lost in self.lost.items()
            if group in lost
        }

    def pieces(
        self, groups: Sequence[RolloutGroup], text_of: Callable[[Sequence[int]], str]
    ) -> dict[int, list[list[Piece]]]:
        """The completions of a group, by its index, as pieces with what each loses when swapped.

        Conversations have none.
        """
        return {
            index: [
                _pieces(text_of, completion, values.tolist())
                for completion, values in zip(groups[index].completions, lost, strict=True)
            ]
            for index, lost in self.lost.get("swapped", {}).items()
            if not any(completion.spans for completion in groups[index].completions)
        }


def vision_use(policy: SupportsLogprobs, groups: Sequence[RolloutGroup]) -> VisionUse:
    """Score the completions again with grey pictures, and with those of another of the groups."""
    seen = {n: over_all_ids(group) for n, group in enumerate(groups) if group.prompt.media}
    if not seen:
        return VisionUse()
    indices, prompts = list(seen), [group.prompt for group in seen.values()]
    whole = policy.logprobs([as_if(group, group.prompt) for group in seen.values()])
    blank = view_options("blank", 1, 0)
    grey = _lost(policy, seen, whole, {n: under(g.prompt, blank) for n, g in seen.items()})
    others = _lost(policy, seen, whole, {indices[n]: p for n, p in swapped(prompts).items()})
    return VisionUse({"blank": grey, "swapped": others})


def _lost(
    policy: SupportsLogprobs,
    groups: Mapping[int, RolloutGroup],
    whole: torch.Tensor,
    prompts: Mapping[int, Prompt],
) -> dict[int, list[torch.Tensor]]:
    """Return what the sampled tokens of each completion lose with these prompts, by group index.

    ``whole`` has the log-probs of all groups.
    """
    if not prompts:
        return {}
    viewed = [as_if(groups[index], prompt) for index, prompt in prompts.items()]
    size = len(viewed[0].completions)
    places = {index: size * place for place, index in enumerate(groups)}
    rows = torch.tensor([places[index] + row for index in prompts for row in range(size)])
    mask = completion_mask(viewed)
    lost = (whole[rows, : mask.shape[1]] - policy.logprobs(viewed)).double()
    each = [values[sampled] for values, sampled in zip(lost, mask, strict=True)]
    return {index: each[n * size : (n + 1) * size] for n, index in enumerate(prompts)}


def over_all_ids(group: RolloutGroup) -> RolloutGroup:
    """Return the group as if nothing had been cut: over a few kept ids a picture moves little."""
    return replace(group, completions=tuple(replace(c, support=None) for c in group.completions))


def as_if(group: RolloutGroup, prompt: Prompt) -> RolloutGroup:
    """Return the group with that prompt, whose tokens the engine did not route to experts."""
    unrouted = tuple(replace(c, routed_experts=None) for c in group.completions)
    return RolloutGroup(prompt, unrouted)


def _pieces(
    text_of: Callable[[Sequence[int]], str], completion: Completion, lost: Sequence[float]
) -> list[Piece]:
    """The text by tokens; those that share a character are one piece, those of turns are empty."""
    pieces: list[Piece] = []
    ids = completion.token_ids.tolist()
    start, nats = 0, 0.0
    for end, value in enumerate(lost, 1):
        nats += value
        before = ids[max(0, start - 1) : start]  # some tokenizers drop a space at the beginning
        known = text_of(before)
        text = text_of(before + ids[start:end])[len(known) :]
        if not text.endswith("\ufffd") or end == len(ids):
            pieces.append((text, round(nats, 4)))
            start, nats = end, 0.0
    return pieces
