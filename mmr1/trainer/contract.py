"""The contract: what model, tokenizer, template, family and settings promise each other.

Every command asks :func:`find_assumptions` before it samples or learns anything. A promise that is
broken is mended where mending is certain, and refused otherwise; what was mended is said.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformers import AutoConfig

from mmr1.config import Config, EnvironmentConfig, VllmConfig
from mmr1.environments.schemas import described
from mmr1.rewards.builtin.auto import AutoRewardConfig
from mmr1.rewards.kind import reward_of_task
from mmr1.trainer.models.quantization import loads_in_4_bits, stored_quantization
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.families.family import ModelFamily, is_packed
from mmr1.vision.families.model_path import dropout_rates, from_pretrained
from mmr1.vision.families.stopping import declared_stops
from mmr1.vision.images import image_size

logger = logging.getLogger(__name__)

SHOWN = 1000
"""Samples that are looked at."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The parties of a contract.

    Attributes:
        settings: ``config.json`` of the model, as transformers reads it.
        samples: Samples that the command trains on or evaluates, ``SHOWN`` at most.
    """

    config: Config
    family: ModelFamily
    settings: Any
    samples: Sequence[Sample]

    def token(self, token: int) -> str:
        """Return the text of a token, for messages."""
        return repr(self.family.tokenizer.convert_ids_to_tokens(token))


Found = Iterator[str]
Assumptions = Mapping[str, Sequence[str]]
"""What was mended or assumed, by the name of the promise."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise of the contract.

    Attributes:
        name: Promise in a few words.
        checked: How it is checked.
        broken: Consequence if it is broken.
        when: Files of the model and records, the loaded weights, or the started engine.
        find: Says what was mended or assumed; raises ValueError where it refuses. None where the
            owner of the question refuses itself, as it loads.
    """

    name: str
    checked: str
    broken: str
    when: Literal["files", "weights", "engine"]
    find: Callable[[Subject], Found] | None = None


def _end_of_turn(subject: Subject) -> Found:
    family, path = subject.family, subject.config.model.path
    end = family.chat.turn.end
    if end is not None and end not in declared_stops(path, subject.settings, family.tokenizer):
        yield (
            f"the chat template ends a turn with {subject.token(end)}, which no file of the model "
            "names as a stop token; completions end there too"
        )
    rows = family.chat.rows
    for token in family.stop_ids:
        if rows is not None and token >= rows:
            yield f"stop token {subject.token(token)} is never sampled: the model has {rows} rows"
    if rows is not None and min(family.stop_ids) >= rows:
        raise ValueError(
            f"model.path '{path}': no stop token is among the model's {rows} embeddings, so no "
            "completion would end; copy the tokenizer of the model beside it"
        )


def _stop_texts(subject: Subject) -> Found:
    added = subject.family.tokenizer.get_added_vocab()
    for text in subject.config.rollout.stop:
        inside = [token for token in added if token in text and token != text]
        if text not in added and inside:
            raise ValueError(
                f"rollout.stop {text!r} has the token {inside[0]!r} and other text, which vLLM "
                "does not look for; name the token alone, or text without it"
            )
        if text in added:
            yield f"rollout.stop '{text}' is one token, which ends completions in every engine"


def _opened(subject: Subject) -> Found:
    if opened := subject.family.chat.turn.opened:
        yield (
            f"the chat template opens answers with {opened!r}; reward functions read it before "
            "the completion"
        )


def _observations(subject: Subject) -> Found:
    if subject.config.environment is not None:
        subject.family.chat.observation_text([Message("tool", (TextPart("7"),))], ended=True)
    yield from ()


def _dropout(subject: Subject) -> Found:
    parts = [subject.settings, *_nested(subject.settings)]
    rates = {name: rate for part in parts for name, rate in dropout_rates(vars(part)).items()}
    if rates:
        told = ", ".join(f"{name}={rate:g}" for name, rate in rates.items())
        yield f"the model's own dropout is switched off ({told})"


def _nested(settings: Any) -> list[Any]:
    return [value for value in vars(settings).values() if hasattr(value, "model_type")]


def _rows(subject: Subject) -> Found:
    rows, tokens = subject.family.chat.rows, len(subject.family.tokenizer)
    if rows is not None and tokens > rows:
        yield (
            f"the tokenizer has {tokens} tokens and the model {rows} embeddings; records that use "
            "the others are left out"
        )


def _quantized(subject: Subject) -> Found:
    config = subject.config
    method = stored_quantization(config.model.path)
    if method is None:
        return
    if not loads_in_4_bits(config.model):
        return  # refused, with the remedy, as the weights are loaded
    engine = config.rollout.engine
    if config.samples and (isinstance(engine, VllmConfig) or config.distributed):
        raise ValueError(
            f"model.path '{config.model.path}': its weights are quantized by {method}, and an "
            "engine beside the trainer cannot take the trained ones; set rollout.engine=hf and "
            "resources={}, or name the model that it was made from"
        )
    yield f"the weights are quantized by {method}: adapters are trained above them (QLoRA)"


def _coordinates(subject: Subject) -> Found:
    spaces = set()
    for key, space in _box_spaces(subject):
        assumed = subject.family.coordinates if space == "model" else space
        if assumed is None:
            raise ValueError(
                f"{key}: the coordinates in which a '{subject.settings.model_type}' model answers "
                f"are not known; set {key} to resized, original, 0-1000 or 0-1"
            )
        whose = ", as the model's family answers" if space == "model" else ""
        yield f"{key}: boxes are read in the space {assumed}{whose}; gold boxes are original"
        spaces.add(assumed)
    if spaces & {"resized", "original"} and is_packed(subject.family):
        pictures = [medium for sample in subject.samples for medium in _images(sample)]
        measured = map(subject.family.measure_media, pictures)
        other = sum(
            shown.pixels != image_size(medium)
            for shown, medium in zip(measured, pictures, strict=True)
        )
        yield f"{other} of {len(pictures)} pictures are shown at another size than their file's"


def _images(sample: Sample) -> list[MediaRef]:
    return [medium for medium in sample.shown if medium.kind == "image"]


def _box_spaces(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield the key and the coordinate space of each reader of boxes: rewards, and tools that are
    given pictures.
    """
    environment = subject.config.environment
    if isinstance(environment, EnvironmentConfig) and any(
        "picture" in tool.media.values() for tool in described(environment)
    ):
        yield "environment.boxes", environment.boxes
    for name, reward in subject.config.rewards.items():
        if (space := getattr(reward, "space", None)) is not None:
            yield f"rewards.{name}.space", space
        elif isinstance(reward, AutoRewardConfig) and any(
            reward_of_task(sample.task) == "iou" for sample in subject.samples
        ):
            space = reward.settings.get("iou", {}).get("space", "model")
            yield f"rewards.{name}.settings.iou.space", str(space)


PROMISES = (
    Promise(
        "A turn's end is a stop token",
        "An answer rendered by the chat template is followed by a token of its own; "
        "`generation_config.json`, `config.json` and the tokenizer name the others",
        "The token becomes a stop token, which is said; none within the embeddings is refused",
        "files",
        _end_of_turn,
    ),
    Promise(
        "`rollout.stop` works in every engine",
        "Its texts are compared with the tokenizer's added tokens",
        "One that is a token becomes a stop token; one that holds a token and text is refused",
        "files",
        _stop_texts,
    ),
    Promise(
        "Rewards read what the model wrote",
        "The end of a rendered prompt is searched for a tag that stays open, such as `<think>`",
        "It is put before the completion, which is said. Special tokens stay in the text, but for "
        "those that the template writes around turns",
        "files",
        _opened,
    ),
    Promise(
        "The template writes answers of tools",
        "One is rendered after a turn, if there is an environment",
        "Refused",
        "files",
        _observations,
    ),
    Promise(
        "No dropout but that of adapters",
        "Every rate in `config.json` and in the loaded modules",
        "Switched off, which is said",
        "files",
        _dropout,
    ),
    Promise(
        "Tokens fit the embedding",
        "Every prompt and every written answer",
        "The record is left out with the token's name; a larger tokenizer alone is said",
        "files",
        _rows,
    ),
    Promise(
        "The weights can be trained",
        "`quantization_config` in `config.json`",
        "bitsandbytes in 4 bits is trained below adapters (`model.lora`) in one process; any other "
        "method is refused by its name",
        "files",
        _quantized,
    ),
    Promise(
        "Boxes are read in the model's coordinates",
        "The family's space, or the option `space`, for `iou` and tasks of `auto` about boxes; or "
        "`environment.boxes`, for tools that are given pictures",
        "The space and the number of resized pictures are said; an unknown space is refused",
        "files",
        _coordinates,
    ),
    Promise(
        "The model's files can be read",
        "As they are loaded, generation settings included",
        "Refused with the file and the reason",
        "files",
    ),
    Promise(
        "The weights are whole, and the model reads a text",
        "Names and shapes against `config.json`; one forward pass of four tokens",
        "Refused",
        "weights",
    ),
    Promise(
        "Adapters merge",
        "Fields of `adapter_config.json` against a list; log-probs with merged weights against "
        "those with the adapters",
        "Refused",
        "weights",
    ),
    Promise(
        "Engine and trainer agree",
        "Prompt tokens, grids and log-probs of a sampled prompt of each kind",
        "Refused (`rollout.parity_tolerance`)",
        "engine",
    ),
)
"""The contract, in the order in which it is checked."""


def find_assumptions(
    config: Config, family: ModelFamily, samples: Sequence[Sample] = ()
) -> Assumptions:
    """Check the promises that need no weights; return what was mended or assumed, by promise.

    Raises:
        ValueError: If a promise is broken and cannot be mended.
    """
    settings = from_pretrained(AutoConfig, config.model.path, config.model.trust_remote_code)
    subject = Subject(config, family, settings, samples)
    return {
        promise.name: [] if promise.find is None else list(promise.find(subject))
        for promise in PROMISES
        if promise.when == "files"
    }


def say_assumptions(assumptions: Assumptions) -> None:
    """Write a line to stderr and the log for everything that was mended or assumed."""
    for line in (line for lines in assumptions.values() for line in lines):
        logger.info("%s", line)
        print(f"start: {line}", file=sys.stderr)
