"""The data of ``mmr1 train``, ``dpo`` and ``eval``: read and checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from mmr1.config import Config
from mmr1.data.quarantine import Quarantine
from mmr1.data.rendering import renderer
from mmr1.data.sources import keep_fitting, load_held_out, load_mixture
from mmr1.rewards import CompositeReward
from mmr1.rollout.build import check_gpus
from mmr1.rollout.installed import check_engine
from mmr1.runtime import set_up_torch
from mmr1.trainer.sampling.ptx import Demonstrations, build_demonstrations
from mmr1.trainer.sampling.scoring import check_gold
from mmr1.types import Prompt, Sample
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class Inputs:
    """The data of a command, read and checked.

    Attributes:
        sources: Training samples by source; empty for an evaluation.
        weights: Share of each source.
        held_out: Samples of ``data.eval``.
        dropped: Rows left out, with their reasons.
        render: Turns a sample into the model's prompt.
        demonstrations: For the PTX term; None without one.
    """

    sources: dict[str, list[Sample]]
    weights: dict[str, float]
    held_out: list[Sample]
    dropped: list[dict[str, str]]
    family: ModelFamily
    media: MediaCache
    render: Callable[[Sample], Prompt]
    demonstrations: Demonstrations | None = None


def check_inputs(config: Config, composite_reward: CompositeReward, *, train: bool) -> Inputs:
    """Read the data and check them, before anything is written.

    Args:
        train: Read ``data.train`` too; an evaluation needs ``data.eval`` alone.

    Raises:
        ValueError: The configuration or the data cannot be used.
    """
    check_engine(config)
    check_gpus(config)
    set_up_torch(config.seed, config.trainer.threads)
    quarantine = Quarantine(config.data.max_bad_fraction)
    sources, weights = load_mixture(config.data, quarantine) if train else ({}, {})
    with_eval = config.data.eval is not None or not train
    held_out = load_held_out(config) if with_eval else []
    family = family_of(config)
    render = renderer(family, config)
    check_gold(composite_reward, [*chain.from_iterable(sources.values()), *held_out])

    def fitting(samples: list[Sample]) -> list[Sample]:
        return keep_fitting(
            samples,
            lambda sample: family.prompt_length(render(sample)),
            config.max_prompt_tokens,
            quarantine,
        )

    return Inputs(
        {name: fitting(samples) for name, samples in sources.items()},
        weights,
        fitting(held_out),
        quarantine.dropped,
        family,
        media_cache(family, config),
        render,
        build_demonstrations(config, family, render) if train else None,
    )
