"""``mmr1 explain``: what the gain of a run is made of.

Both models answer the same held-out rows greedily, and a row counts 1 if its answer is right:

====  ==============================================================================
S     in the run's format, within the run's length: what the run is measured by
L     in any form that the accuracy function reads, within the run's length
T     the same, within four times that length
B     as T, with grey pictures: what the question and habit give
====  ==============================================================================

``S = B + (T - B) + (L - T) + (S - L)`` for each model, so the gain is, without a rest, the sum of
the differences of these four: prior, picture, length and format. Beside the sum: how often the
answer under another row's picture is the gold answer of that picture. A grey picture is nothing
that the model was trained on; that one is, but it misleads a model that sees.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mmr1.config import Config
from mmr1.evaluation.benchmarks import evaluation_engine
from mmr1.progress import report_activity
from mmr1.rewards import build_composite_reward
from mmr1.rollout.protocol import Engine, complete, requests_for
from mmr1.trainer.inputs import Inputs, check_inputs
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.sampling.views import under
from mmr1.trainer.validation.evaluate import BATCH_SIZE, accuracy_function
from mmr1.types import Prompt, Reward, RolloutGroup, Sample
from mmr1.vision.views import view_options

LONGER = 4
"""Times the run's length in which an answer may end after all."""
DRAWS = 2000
"""Bootstrap draws of an interval."""
FORMAT = "format"
Right = Mapping[str, np.ndarray]
"""1 for each right answer, ``[N]``, by S, L, T, B and ``other``; NaN where there is none."""
PARTS: Mapping[str, Mapping[str, int]] = {
    "gain": {"S": 1},
    "prior": {"B": 1},
    "picture": {"T": 1, "B": -1},
    "length": {"L": 1, "T": -1},
    "format": {"S": 1, "L": -1},
    "follows another picture": {"other": 1},
}
"""Parts as sums of the differences between the models."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the gain.

    Attributes:
        value: Mean over rows, after less before.
        low, high: 95% interval, by a bootstrap over pictures.
        rows: Rows in which the two models differ in this.
    """

    name: str
    value: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True, slots=True)
class Gain:
    """A gain and its parts.

    Attributes:
        rows: Number of held-out rows.
        pictures: Number of different media among them.
        before, after: Accuracy of the models, as S.
        parts: The gain first.
    """

    rows: int
    pictures: int
    before: float
    after: float
    parts: Sequence[Part]


def explain_gain(config: Config, before: str, after: str) -> Gain:
    """Measure what the gain between two models is made of, on ``trainer.validation.data``.

    Args:
        config: The run's, for ``mmr1 eval``; ``eval.limit`` bounds the rows.
        before, after: Folders of the models.

    Raises:
        ValueError: If there are no held-out rows, or the models cannot be evaluated.
    """
    if config.eval_records is None:
        raise ValueError("the run has no held-out rows; name some: trainer.validation.data=PATH")
    measured, longest = {}, LONGER * config.rollout.max_response_length
    for model in (before, after):
        with ExitStack() as stack:
            reward = stack.enter_context(build_composite_reward(config.rewards, config.scoring))
            changed = {"model.path": model, "rollout.max_response_length": longest}
            own = config.changed(changed)
            inputs = check_inputs(own, reward, train=False)
            log = Path(stack.enter_context(TemporaryDirectory())) / "engine.log"
            engine, _ = stack.enter_context(evaluation_engine(own, inputs, log))
            manager = RewardManager(
                reward, inputs.media, config.scoring.max_invalid_fraction, inputs.family.coordinates
            )
            samples = inputs.held_out[: config.eval.limit]
            with report_activity(f"answers of {model}"):
                measured[model] = _answers(config, engine, inputs, manager, samples)
    return parts_of_gain([sample.shown for sample in samples], measured[before], measured[after])


def _answers(
    config: Config,
    engine: Engine,
    inputs: Inputs,
    manager: RewardManager,
    samples: Sequence[Sample],
) -> Right:
    prompts = [inputs.render(sample) for sample in samples]
    donors = donors_of(samples)
    grey = [under(prompt, view_options("blank", 1, 0)) for prompt in prompts]
    swapped = [
        prompt if donor is None else replace(prompt, shown=donor.shown)
        for prompt, donor in zip(prompts, donors, strict=True)
    ]
    name = accuracy_function(config.rewards, config.eval.accuracy_function)
    short = config.rollout.max_response_length
    rewards = {
        "L": _rewards(config, engine, manager, prompts, short, samples),
        "T": _rewards(config, engine, manager, prompts, LONGER * short, samples),
        "B": _rewards(config, engine, manager, grey, LONGER * short, samples),
        "other": _rewards(config, engine, manager, swapped, LONGER * short, donors),
    }
    right = {view: np.array([_component(r, name) for r in own]) for view, own in rewards.items()}
    formats = np.array([_component(r, FORMAT, 1.0) for r in rewards["L"]])
    return {**right, "S": right["L"] * formats}


def _rewards(
    config: Config,
    engine: Engine,
    manager: RewardManager,
    prompts: Sequence[Prompt],
    limit: int,
    asked: Sequence[Sample | None],
) -> list[Reward | None]:
    """Sample greedily and score by the answers of other samples; None where there is none."""
    sampling = config.rollout.sampling.greedy().changed(max_tokens=limit)
    found = list[Reward | None]()
    for start in range(0, len(prompts), BATCH_SIZE):
        batch, own = prompts[start : start + BATCH_SIZE], asked[start : start + BATCH_SIZE]
        groups = complete(engine, requests_for(batch, 1, sampling, config.seed, 0))
        judged = [
            RolloutGroup(
                replace(group.prompt, sample=sample or group.prompt.sample), group.completions
            )
            for group, sample in zip(groups, own, strict=True)
        ]
        scored = manager.score(judged)
        found += [s.rewards[0] if o is not None else None for s, o in zip(scored, own, strict=True)]
    return found


def _component(reward: Reward | None, name: str, default: float = np.nan) -> float:
    value = None if reward is None else reward.components.get(name, default)
    return np.nan if value is None else float(value)


def donors_of(samples: Sequence[Sample]) -> list[Sample | None]:
    """Return, for each sample, another with as many media of its kinds and another answer.

    None where there is none, or where the sample has no media.
    """
    kinds = [[medium.kind for medium in sample.shown] for sample in samples]
    rows, draw, found = list(zip(samples, kinds, strict=True)), random.Random(0), []
    for sample, own in rows:
        others = [o for o, other in rows if other == own and o.answer != sample.answer]
        found.append(draw.choice(others) if own and others else None)
    return found


def parts_of_gain(media: Sequence[Sequence[object]], before: Right, after: Right) -> Gain:
    """Split a gain into its parts, with intervals by a bootstrap over pictures.

    Rows of one picture are drawn together, and both models in the same draw.

    Args:
        media: Media of each row; rows with equal ones are one picture.
    """
    known = ~np.isnan([right[view] for right in (before, after) for view in "SLTB"]).any(0)
    names = [tuple(map(str, own)) for own in media]
    clusters = {name: number for number, name in enumerate(dict.fromkeys(names))}
    cluster = np.array([clusters[name] for name in names])
    draws = np.random.default_rng(0).multinomial(
        len(clusters), np.full(len(clusters), 1 / len(clusters)), DRAWS
    )
    parts = []
    for name, signs in PARTS.items():
        change = np.sum([sign * (after[v] - before[v]) for v, sign in signs.items()], axis=0)
        counted = known & ~np.isnan(change)
        if not counted.any():
            continue
        sums = np.bincount(cluster[counted], change[counted], len(clusters))
        sizes = np.bincount(cluster[counted], minlength=len(clusters))
        means = draws @ sums / np.maximum(draws @ sizes, 1)
        low, high = np.quantile(means, (0.025, 0.975))
        value, rows = float(change[counted].mean()), int((change[counted] != 0).sum())
        parts.append(Part(name, value, float(low), float(high), rows))
    levels = [float(right["S"][known].mean()) for right in (before, after)]
    return Gain(int(known.sum()), len(clusters), levels[0], levels[1], parts)


def print_gain(gain: Gain) -> None:
    """Print the parts of a gain, each with its interval and its share."""
    print(
        f"{gain.rows} rows of {gain.pictures} media; right, in the format: "
        f"{gain.before:.3f} -> {gain.after:.3f}"
    )
    whole = gain.parts[0].value
    for part in gain.parts:
        share = f"{part.value / whole:5.0%}" if whole and part.name in list(PARTS)[1:5] else ""
        interval = f"{part.low:+.3f} to {part.high:+.3f}"
        if part.rows == 0:
            interval = f"no row; below {3 / gain.rows:.3f}"
        print(f"  {part.name:<24} {part.value:+.3f}  {interval:<18} {share}".rstrip())
