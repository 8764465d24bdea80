"""The numbers of one step, under the names of ``metrics.jsonl``."""

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
    """Everything that a line of ``metrics.jsonl`` holds. Means are over valid rewards only.

    A prompt counts once in ``tokens/prompt``, with its vision tokens, however many completions
    it has; ``tokens/vision`` counts those vision tokens alone.
    """
    rewards = [r for s in scored for r in s.rewards]
    completions = [c for s in scored for c in s.group.completions]
    lengths = [len(c.token_ids) for c in completions]
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
