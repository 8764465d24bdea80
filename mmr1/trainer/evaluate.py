"""Held-out accuracy of a model: greedy, and sampled as in training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from mmr1.config import Config, RewardsConfig
from mmr1.rewards.accounting import reward_stats
from mmr1.rollout.engine import Request, RolloutEngine, request_seed
from mmr1.trainer.build import greedy
from mmr1.trainer.output import append_json
from mmr1.trainer.scoring import GroupScorer
from mmr1.types import Prompt, Reward, Sample, ScoredGroup


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of decoding.

    Attributes:
        accuracy: Share of completions whose accuracy part is 1, among those with a valid reward.
        invalid: Completions without a valid reward; they are not in ``accuracy``.
        parts: Mean of every part of the reward.
    """

    accuracy: float
    completions: int
    invalid: int
    length_mean: float
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of one evaluation: ``modes`` are ``greedy`` and, if asked for, ``sampled``."""

    prompts: int
    modes: dict[str, Mode]
    rows: list[dict[str, Any]] = field(repr=False)


def evaluate(
    config: Config,
    engine: RolloutEngine,
    render: Callable[[Sample], Prompt],
    scorer: GroupScorer,
    samples: Sequence[Sample],
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Sample and score completions of every record; ``progress`` is told of each batch done."""
    samples = samples[: config.eval.limit]
    part = accuracy_part(config.rewards, config.eval.accuracy)
    decodings = {"greedy": (1, greedy(config.rollout.sampling))}
    if config.eval.samples:
        sampling = config.rollout.sampling.model_copy(
            update={"temperature": config.eval.temperature}
        )
        decodings["sampled"] = (config.eval.samples, sampling)
    modes, rows = {}, []
    for name, (n, sampling) in decodings.items():
        scored: list[ScoredGroup] = []
        for batch in _batches(samples, config.eval.batch_size):
            requests = [Request(render(s), n, request_seed(config.seed, 0, s.id)) for s in batch]
            scored += scorer.score(engine.generate(requests, sampling))
            progress(len(batch))
        modes[name] = _mode(scored, part)
        rows += [_row(name, s, i, part) for s in scored for i in range(n)]
    return Evaluation(len(samples), modes, rows)


def accuracy_part(rewards: RewardsConfig, wanted: str | None) -> str:
    """The reward part that decides whether an answer is right.

    Raises:
        ValueError: ``eval.accuracy`` names no part.
    """
    names = list(rewards.parts)
    if wanted is None:
        return next((n for n in names if n != "format"), names[0])
    if wanted not in names:
        raise ValueError(f"eval.accuracy '{wanted}' is no part of rewards.parts ({names})")
    return wanted


def write_evaluation(folder: Path, result: Evaluation) -> None:
    """``result.json`` and ``completions.jsonl``, replacing those of an earlier evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    modes = {name: asdict(mode) for name, mode in result.modes.items()}
    text = json.dumps({"prompts": result.prompts, **modes}, indent=2)
    (folder / "result.json").write_text(text + "\n")
    (folder / "completions.jsonl").unlink(missing_ok=True)
    append_json(folder / "completions.jsonl", result.rows)


def _batches(samples: Sequence[Sample], size: int) -> Iterator[Sequence[Sample]]:
    for start in range(0, len(samples), size):
        yield samples[start : start + size]


def _mode(scored: Sequence[ScoredGroup], part: str) -> Mode:
    rewards = [r for s in scored for r in s.rewards]
    valid = [r for r in rewards if r.valid]
    stats = reward_stats(rewards)
    lengths = [len(c.token_ids) for s in scored for c in s.group.completions]
    return Mode(
        accuracy=fmean(is_right(r, part) for r in valid) if valid else 0.0,
        completions=len(rewards),
        invalid=len(rewards) - len(valid),
        length_mean=fmean(lengths),
        parts={name: stats.get(f"reward/{name}", 0.0) for name in rewards[0].parts},
    )


def is_right(reward: Reward, part: str) -> bool:
    """Is the accuracy part 1?"""
    value = reward.parts.get(part)
    return value is not None and value >= 1.0


def _row(mode: str, scored: ScoredGroup, index: int, part: str) -> dict[str, Any]:
    sample, reward = scored.group.prompt.sample, scored.rewards[index]
    return {
        "mode": mode,
        "id": sample.id,
        "answer": sample.answer,
        "completion": scored.group.completions[index].text,
        "right": is_right(reward, part) if reward.valid else None,
        "reward": reward.value,
        "parts": dict(reward.parts),
        "status": str(reward.status),
    }
