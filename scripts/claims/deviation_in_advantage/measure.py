"""Shares of the gradient of easy, middling and hard questions, with and without the deviation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mmr1.config import Config
from mmr1.config.file import load_config
from mmr1.data.record import read_records
from mmr1.data.rendering import renderer
from mmr1.files import atomic
from mmr1.rewards import build_composite_reward
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.protocol import Engine, complete, requests_for
from mmr1.runtime import set_up_torch
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import build_packed_model, load_model
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.types import Prompt, ScoredGroup
from mmr1.vision.build import family_of, media_cache
from mmr1_contrib.lab.claims.claim import read_claim
from mmr1_contrib.lab.compare.trials import Trial
from scripts.claims.start.start import prepared
from scripts.claims.training import newest

RL = Path(__file__).with_name("rl.yaml")
QUESTIONS, QUICK_QUESTIONS = 160, 32
DIFFICULTY_SAMPLES = 16
"""Completions that tell how difficult a question is; the advantages come from others."""
AT_ONCE = 8
BANDS = ("0", "to 1/4", "to 1/2", "to 3/4", "below 1", "1")


@dataclass(frozen=True, slots=True)
class Question:
    """One question: its pass rate, and what its group's update weighs.

    Attributes:
        weight: Sum of the absolute advantages of its completions.
        norm: Norm of the gradient of its group alone.
    """

    rate: float
    weight: float
    norm: float


def trials(arms: Sequence[str], seeds: Sequence[int], output: Path, quick: bool) -> list[Trial]:
    """The trials of both arms, computed from the same completions."""
    found = []
    for seed in seeds:
        kept = output / f"seed{seed}/deviation_in_advantage/questions.json"
        if not kept.is_file():
            ask(seed, prepared(output / f"seed{seed}/start", seed), kept, quick)
        of_arms = json.loads(kept.read_text())
        for arm in arms:
            numbers, curve = shares([Question(*row) for row in of_arms[arm]])
            found.append(Trial(arm, seed, numbers, {"weight": curve}))
    return found


def ask(seed: int, start: Path, kept: Path, quick: bool) -> None:
    """Write the questions of each arm."""
    own = [
        *(f"model.path={newest(start / 'sft')}", f"data.train={start / 'rl.jsonl'}"),
        *(f"data.media_root={start / 'data'}", f"trainer.output_dir={kept.parent}"),
        f"seed={seed}",
    ]
    arms = read_claim(RL.parent).comparison.arms.items()
    configs = {arm: load_config(RL, [*own, *map(str, overrides)]) for arm, overrides in arms}
    of_arms = asked(configs, QUICK_QUESTIONS if quick else QUESTIONS)
    rows = {arm: [astuple(q) for q in questions] for arm, questions in of_arms.items()}
    kept.parent.mkdir(parents=True, exist_ok=True)
    with atomic(kept) as file:
        file.write(json.dumps(rows))


def shares(questions: Sequence[Question]) -> tuple[dict[str, float], tuple[float, ...]]:
    """The numbers, and the share of weights by difficulty.

    Of the questions at either end: at most 1 in 8 answers are right, or at least 7 in 8.
    """
    ends = [q for q in questions if q.rate <= 1 / 8 or q.rate >= 7 / 8]
    return (
        {
            "questions": len(ends) / len(questions),
            "weight": share(ends, questions, "weight"),
            "norm": share(ends, questions, "norm"),
            "rate": fmean(q.rate for q in questions),
        },
        tuple(
            share([q for q in questions if band(q.rate) == number], questions, "weight")
            for number in range(len(BANDS))
        ),
    )


def share(some: Sequence[Question], questions: Sequence[Question], of: str) -> float:
    return sum(getattr(q, of) for q in some) / sum(getattr(q, of) for q in questions)


def band(rate: float) -> int:
    """The index of a pass rate in :data:`BANDS`.

    >>> [band(rate) for rate in (0.0, 0.25, 0.3, 0.75, 0.9, 1.0)]
    [0, 1, 2, 3, 4, 5]
    """
    if rate in (0.0, 1.0):
        return 0 if rate == 0.0 else len(BANDS) - 1
    return 1 + sum(rate > end for end in (0.25, 0.5, 0.75))


def asked(configs: Mapping[str, Config], count: int) -> dict[str, list[Question]]:
    """Sample each of the first questions twice: for its difficulty, and for its gradient."""
    config = next(iter(configs.values()))  # they differ in the advantage alone
    set_up_torch(config.seed, config.trainer.threads)
    model, family = load_model(config.model), family_of(config)
    media, render = media_cache(family, config), renderer(family, config)
    packed = build_packed_model(config, model, ModelInputs(family, media))
    records = read_records(Path(str(config.data.train)), Path(str(config.data.media_root)))
    prompts = [render(sample) for sample in records[:count]]
    with (
        build_composite_reward(config.rewards, config.scoring) as scorer,
        closing(HfEngine(model, family, media)) as engine,
    ):
        rewards = RewardManager(scorer, media, max_invalid_fraction=0.0)
        known = sampled(config, engine, rewards, prompts, DIFFICULTY_SAMPLES, batch=1)
        groups = sampled(config, engine, rewards, prompts, config.rollout.n, batch=2)
    rates = [fmean(reward.value or 0.0 for reward in group.rewards) for group in known]
    return {arm: weighed(of_arm, model, packed, groups, rates) for arm, of_arm in configs.items()}


def weighed(
    config: Config,
    model: Any,
    packed: PackedModel,
    groups: Sequence[ScoredGroup],
    rates: Sequence[float],
) -> list[Question]:
    """Each group's advantages and the norm of its own gradient, with one advantage."""
    algorithm = build_algorithm(config.algorithm)
    optimizer = Optimizer(model, config.optimizer, len(groups))
    policy = LocalPolicy(packed, algorithm, optimizer, passes=1)
    questions = []
    for rate, group in zip(rates, groups, strict=True):
        experience = build_experience([group], algorithm, Models(policy))
        weight = float(experience.tokens.advantages[:, 0].abs().sum())  # equal over a completion
        questions.append(Question(rate, weight, policy.update(experience)["grad_norm"]))
    return questions


def sampled(
    config: Config,
    engine: Engine,
    rewards: RewardManager,
    prompts: Sequence[Prompt],
    n: int,
    batch: int,
) -> list[ScoredGroup]:
    """``n`` scored completions of each prompt."""
    scored: list[ScoredGroup] = []
    for first in range(0, len(prompts), AT_ONCE):
        own = prompts[first : first + AT_ONCE]
        requests = requests_for(own, n, config.rollout.sampling, config.seed, batch)
        scored += rewards.score(complete(engine, requests))
    return scored
