"""The metrics of one step: a line of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from mmr1.rewards.composite import reward_stats
from mmr1.types import Completion, Prompt, ScoredGroup, StepStats
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
        **environment_stats(completions),
        **{f"time/{name}": value for name, value in seconds.items()},
    }


def environment_stats(completions: Sequence[Completion]) -> StepStats:
    """What the policy made of its environment; empty without one.

    ``environment/calls/NAME`` counts the calls of a tool, those that failed included, per
    completion. ``tokens/observed`` are those that the policy did not sample.
    """
    if not any(c.spans for c in completions):
        return {}
    calls = [call for c in completions for call in c.calls]
    names = sorted({call.name for call in calls if call.name})
    count = len(completions)
    return {
        "environment/turns": fmean(c.turns for c in completions),
        "environment/with_call": fmean(bool(c.calls) for c in completions),
        "environment/pictures": fmean(len(c.media) for c in completions),
        "environment/failed_calls": sum(c.error is not None for c in calls) / max(1, len(calls)),
        **{f"environment/calls/{n}": sum(c.name == n for c in calls) / count for n in names},
        "environment/broken": fmean(c.failure is not None for c in completions),
        "tokens/observed": sum(len(c.token_ids) - c.sampled_tokens for c in completions),
    }


def vision_tokens(prompt: Prompt, media: MediaCache) -> int:
    """Tokens that the prompt's images and videos take up."""
    return sum(media[m].tokens for m in prompt.media)
