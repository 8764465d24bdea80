"""T-GRPO's second rollout: the same prompts with the frames of their videos in another order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mmr1.config import SamplingConfig
from mmr1.data.rows import kinds_of
from mmr1.rollout.engine import Request, RolloutEngine
from mmr1.types import ContentPart, MediaRef, Message, Prompt, Sample


def sample_shuffled(
    engine: RolloutEngine, requests: Sequence[Request], sampling: SamplingConfig
) -> dict[int, tuple[str, ...]]:
    """Completions for shuffled frames, by the index of the request.

    Half a group for each request, as in Video-R1 (arXiv 2503.21776, section 3.1). Requests without
    a video are not in the result.
    """
    shuffled_requests = {
        index: Request(shuffled(r.prompt, r.seed), max(1, r.n // 2), r.seed + r.n)
        for index, r in enumerate(requests)
        if any(medium.kind == "video" for medium in r.prompt.media)
    }
    groups = (
        engine.generate(list(shuffled_requests.values()), sampling) if shuffled_requests else []
    )
    return {
        index: tuple(completion.text for completion in group.completions)
        for index, group in zip(shuffled_requests, groups, strict=True)
    }


def refuse_without_videos(sources: Iterable[Sequence[Sample]]) -> None:
    """Raises ValueError when no sample has a video to shuffle."""
    if not any("video" in kinds for samples in sources for kinds in kinds_of(samples)):
        raise ValueError(
            "rewards.functions.temporal_contrast shuffles the frames of videos and data.train has "
            "no video; leave it out, or use other data"
        )


def shuffled(prompt: Prompt, seed: int) -> Prompt:
    """The prompt with the frames of each video shuffled; text and tokens stay as they are."""
    messages = tuple(
        Message(message.role, tuple(_shuffled(content, seed) for content in message.parts))
        for message in prompt.sample.messages
    )
    return replace(prompt, sample=replace(prompt.sample, messages=messages))


def _shuffled(content: ContentPart, seed: int) -> ContentPart:
    if not isinstance(content, MediaRef) or content.kind != "video":
        return content
    # The options are part of a medium's digest, so no cache takes it for the original.
    return replace(content, options={**content.options, "shuffle": seed})
