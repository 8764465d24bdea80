"""Prompt lengths of a run: measured on its data, or the longest that it allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmr1.config import Config
from mmr1.data.readers.classes import NoSuchDatasetError
from mmr1.data.rendering import renderer
from mmr1.data.sources import load_mixture
from mmr1.estimate.shapes import read_shapes
from mmr1.vision.build import family_of


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens of a prompt (vision included), its vision tokens, and tokens of a completion."""

    prompt: int
    vision: int
    completion: int


def measured_or_longest(config: Config) -> tuple[Load, NoSuchDatasetError | None]:
    """The load of the training data; the longest, and why, if they do not exist yet.

    Raises:
        ValueError: The records cannot be read.
    """
    try:
        return measured_load(config), None
    except NoSuchDatasetError as error:
        return longest_load(config), error


def measured_load(config: Config, samples: int = 500) -> Load:
    """The 95th percentile of the training prompts' tokens, from the headers of their media.

    Prompts that training leaves out do not count: those that are too long, or cannot be read.

    Raises:
        NoSuchDatasetError: A dataset of ``data.train`` is not there, or none is named.
        ValueError: The records cannot be read.
    """
    sources, _ = load_mixture(config.data)
    family = family_of(config)
    render = renderer(family, config)
    lengths, vision = [], []
    for sample in (s for source in sources.values() for s in source[:samples]):
        try:
            prompt = render(sample)
            of_prompt = family.prompt_length(prompt), sum(map(family.media_tokens, prompt.media))
        except ValueError:
            continue  # training drops the row, or says what is wrong with it
        if of_prompt[0] <= config.rollout.max_prompt_length:
            lengths.append(of_prompt[0])
            vision.append(of_prompt[1])
    if not lengths:
        return longest_load(config)
    return Load(
        int(np.percentile(lengths, 95)),
        int(np.percentile(vision, 95)),
        config.rollout.sampling.max_tokens,
    )


def longest_load(config: Config) -> Load:
    """The longest prompt and completion of a configuration; the prompt is all vision if it can be.

    Raises:
        ValueError: The model's configuration cannot be read.
    """
    prompt, completion = config.rollout.max_prompt_length, config.rollout.sampling.max_tokens
    sees = read_shapes(config).model.tower is not None
    return Load(prompt, prompt if sees else 0, completion)
