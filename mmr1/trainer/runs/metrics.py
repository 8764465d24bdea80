"""The metrics of one step: a line of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from mmr1.rewards.accounting import reward_stats
from mmr1.types import Prompt, ScoredGroup, StepStats
from mmr1.vision.prepare import MediaCache


def step_stats(
    step: int,
    scored: Sequence[ScoredGroup],
    update: Mapping[str, float],
    seconds: Mapping[str, float],
    media: MediaCache,
) -> StepStats:
    """A line of ``metrics.jsonl``. Means of rewards are over valid rewards only.

    ``tokens/prompt`` counts each prompt once, vision tokens included. ``tokens/vision`` counts the
    vision tokens alone.

    Args:
        step: The step's number.
        scored: All groups that were sampled.
        update: Metrics of the update.
        seconds: Seconds of each phase.
        media: For the number of vision tokens.
    """
    rewards = [r for s in scored for r in s.rewards]
    completions = [c for s in scored for c in s.group.completions]
    lengths = [c.sampled_tokens for c in completions]
    vision = [vision_tokens(s.group.prompt, media) for s in scored]
    text = [len(s.group.prompt.token_ids) - len(s.group.prompt.media) for s in scored]
    return {
        "step": step,
        **reward_stats(rewards),
        "reward/no_signal": fmean(len({r.value for r in s.rewards if r.valid}) < 2 for s in scored),
        **update,
        "completion/length_mean": fmean(lengths),
        "completion/truncated": fmean(c.truncated for c in completions),
        "tokens/prompt": sum(text) + sum(vision),
        "tokens/vision": sum(vision),
        "tokens/completion": sum(lengths),
        **{f"time/{name}": value for name, value in seconds.items()},
    }


def vision_tokens(prompt: Prompt, media: MediaCache) -> int:
    """Tokens that the prompt's images and videos take up."""
    return sum(media[m].tokens for m in prompt.media)
