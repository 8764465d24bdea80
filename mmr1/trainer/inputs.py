"""The data of a command: read and checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

from mmr1.config import Config, CurriculumConfig, EnvironmentConfig, TrainerConfig
from mmr1.data.quarantine import Quarantine
from mmr1.data.rendering import renderer
from mmr1.data.rows import kinds_of
from mmr1.data.sampler import Curriculum, MediaCheck, SampleLoader, Sampler
from mmr1.data.sources import keep_fitting, load_held_out, load_mixture
from mmr1.environments.schemas import described, tool_schemas
from mmr1.progress import report_activity
from mmr1.rewards import CompositeReward
from mmr1.rollout.build import check_gpus
from mmr1.rollout.engines import check_engine, hands_over_gpu_memory
from mmr1.runtime import set_up_torch, warn_of_emulated_bfloat16
from mmr1.trainer.contract import SHOWN, Assumptions, find_assumptions, say_assumptions
from mmr1.trainer.runs.existing import check_output_dir, refuse_changed
from mmr1.trainer.runs.fingerprints import Fingerprints, contents, fingerprints
from mmr1.trainer.runs.tracking import check_trackers
from mmr1.trainer.sampling.ptx import Demonstrations, build_demonstrations
from mmr1.trainer.sampling.scoring import keep_readable
from mmr1.trainer.sampling.views import check_changed
from mmr1.types import Prompt, Sample
from mmr1.vision.build import checked_media, family_of, media_cache
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class Inputs:
    """The data of a command, read and checked.

    Attributes:
        asked: The configuration that they were read for, as it was asked for.
        sources: Training samples by source; empty for an evaluation.
        weights: Share of each source.
        held_out: Samples of ``trainer.validation.data``.
        check: Decides whether the media of a training sample can be decoded.
        quarantines: Quarantines of ``data.train``, ``trainer.validation.data`` and
            ``algorithm.ptx.data``, by ``train``, ``eval`` and ``ptx``.
        render: Turns a sample into the model's prompt.
        demonstrations: Demonstrations of the PTX term; None without one.
        fingerprints: Fingerprints of all that a run was read from; empty for an evaluation.
    """

    asked: Config
    sources: dict[str, Sequence[Sample]]
    weights: dict[str, float]
    held_out: Sequence[Sample]
    check: MediaCheck
    quarantines: dict[str, Quarantine]
    family: ModelFamily
    media: MediaCache
    render: Callable[[Sample], Prompt]
    demonstrations: Demonstrations | None = None
    fingerprints: Fingerprints = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of training samples, of all datasets together."""
        return sum(map(len, self.sources.values()))

    @property
    def dropped(self) -> list[dict[str, str]]:
        """The rows left out so far, with their reasons."""
        return [entry for rows in self.quarantines.values() for entry in rows.dropped]

    @property
    def check_held_out(self) -> MediaCheck:
        """A check whether the media of a sample of ``trainer.validation.data`` can be decoded."""
        return MediaCheck(self.media, self.quarantines["eval"])

    def place(self, sample: Sample) -> str | None:
        """Return the file and line of a training sample; None if they are unknown or ambiguous."""
        train = self.quarantines["train"]
        places = {train.place(spec, sample.id) for spec in self.sources} - {None}
        return places.pop() if len(places) == 1 else None

    def loader(self, seed: int, curriculum: CurriculumConfig | None = None) -> SampleLoader:
        """A new loader of the training samples at its start; equal seeds give equal orders."""
        chosen = None if curriculum is None else Curriculum(curriculum, seed)
        return SampleLoader(Sampler(self.sources, seed, self.weights), self.check, chosen)


def check_inputs(
    config: Config,
    composite_reward: CompositeReward,
    *,
    train: bool,
    say: Callable[[Assumptions], None] = say_assumptions,
) -> Inputs:
    """Read the data and check them, before anything is written.

    Args:
        train: Read ``data.train`` too; an evaluation needs ``trainer.validation.data`` alone.
        say: Tells the user what of the contract was mended or assumed.

    Raises:
        ValueError: The configuration or the data cannot be used.
    """
    check_engine(config)
    check_gpus(config)
    set_up_torch(
        config.seed,
        config.trainer.threads,
        config.full_determinism,
        expandable_segments=not hands_over_gpu_memory(config),
    )
    warn_of_emulated_bfloat16(config.dtypes)
    rows = {key: Quarantine(config.data.max_bad_fraction) for key in ("train", "eval", "ptx")}
    sources, weights = load_mixture(config.data, rows["train"]) if train else ({}, {})
    with_eval = config.eval_records is not None or not train
    held_out = load_held_out(config, rows["eval"]) if with_eval else []
    if config.eval_records is not None:
        asked = [("eval.views", view) for view in config.eval.views]
        if config.eval.vision_use:
            asked.append(("eval.vision_use", "blank"))
        for key, view in asked:
            check_changed(key, view, config.eval_records, kinds_of(held_out))
    _refuse_unseen_pictures(config)
    family = family_of(config, tool_schemas(config.environment))
    render = renderer(family, config)

    def fitting(spec: str, samples: Sequence[Sample], quarantine: Quarantine) -> Sequence[Sample]:
        facts = gold_facts(config)
        return keep_fitting(
            spec,
            keep_readable(composite_reward, spec, samples, quarantine, facts),
            lambda sample: family.prompt_length(render(sample)),
            config.rollout.max_prompt_length,
            quarantine,
            length_facts(config),
        )

    on_cluster = config.distributed
    media = (checked_media if on_cluster else media_cache)(family, config)
    demonstrations = (
        build_demonstrations(config, family, render, MediaCheck(media, rows["ptx"]))
        if train
        else None
    )
    fit = {spec: fitting(spec, samples, rows["train"]) for spec, samples in sources.items()}
    evaluated = fitting(config.eval_records, held_out, rows["eval"]) if config.eval_records else []
    say(find_assumptions(config, family, list(islice(chain(*fit.values(), evaluated), SHOWN))))
    return Inputs(
        config,
        fit,
        weights,
        evaluated,
        MediaCheck(media, rows["train"]),
        rows,
        family,
        media,
        render,
        demonstrations,
        _checked_fingerprints(config, fit, evaluated) if train else {},
    )


@report_activity("reading the data")
def check_records(config: Config, check: Callable[[Sample], object], *, resume: bool) -> Inputs:
    """Read and check the data of a command that samples nothing: ``data.train`` alone.

    Args:
        check: Raises ValueError for a sample that cannot be used.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
    """
    check_output_dir(config, resume=resume)
    refuse_keys_of_train(config.trainer)
    check_trackers(config.trainer.trackers)
    threads, determinism = config.trainer.threads, config.full_determinism
    set_up_torch(config.seed, threads, determinism, expandable_segments=True)
    warn_of_emulated_bfloat16({"model.dtype": config.model.dtype})
    rows = Quarantine(config.data.max_bad_fraction)
    sources, weights = load_mixture(config.data, rows)
    for sample in chain.from_iterable(sources.values()):
        try:
            check(sample)
        except ValueError as error:
            raise ValueError(f"data.train: {error}") from None
    family = family_of(config, tool_schemas(config.environment))
    media = (checked_media if config.resources.ranks > 1 else media_cache)(family, config)
    say_assumptions(find_assumptions(config, family))
    render, usable = renderer(family, config), MediaCheck(media, rows)
    found = _checked_fingerprints(config, sources, ())
    quarantines = {"train": rows}
    return Inputs(
        config, sources, weights, [], usable, quarantines, family, media, render, None, found
    )


def _checked_fingerprints(
    config: Config, sources: Mapping[str, Sequence[Sample]], held_out: Sequence[Sample]
) -> Fingerprints:
    """The fingerprints of a run whose data is read; raises ValueError if its media changed."""
    spread = {spec: _spread(samples) for spec, samples in sources.items()}
    validated = {} if config.eval_records is None else {config.eval_records: held_out}
    found = fingerprints(Path(config.trainer.output_dir), config, {**spread, **validated})
    refuse_changed(config, found)
    return found


def refuse_keys_of_train(config: TrainerConfig) -> None:
    """Raises ValueError for checkpoints of the model alone and for traces of steps, which only
    ``mmr1 train`` writes.
    """
    if config.save_only_model:
        raise ValueError(
            "trainer.save_only_model: only mmr1 train writes checkpoints of the model alone; leave "
            "it out"
        )
    if config.profile_steps:
        raise ValueError(
            f"trainer.profile_steps={config.profile_steps}: only mmr1 train writes traces of "
            "steps; leave it out"
        )


def _refuse_unseen_pictures(config: Config) -> None:
    """Refuse environments with pictures: a reference behind a server gets the prompt's alone."""
    environment = config.environment
    if environment is None or not config.algorithm.reference_is_served:
        return
    if not isinstance(environment, EnvironmentConfig):
        raise ValueError(
            "environment: a reference behind a server (algorithm.kl.reference.path) does not see "
            "what this type shows; name a model directory there"
        )
    shows = [tool.name for tool in described(environment) if tool.shows]
    if shows:
        raise ValueError(
            f"environment.tools: {', '.join(shows)} return pictures, which a reference behind a "
            "server (algorithm.kl.reference.path) does not see; name a model directory there, or "
            "tools that return text"
        )


def length_facts(config: Config) -> dict[str, Any]:
    """The settings that a prompt's length depends on: the model's files, template and format."""
    data = config.data.model_dump(mode="json", exclude={"train", "train_batch_size"})
    return {
        "model": config.model.model_dump(mode="json"),
        "files": [*contents("model", config.model.path), *contents("format", data)],
        "data": data,
        "transformers": version("transformers"),
    }


def gold_facts(config: Config) -> dict[str, Any]:
    """The settings that the check of a gold answer depends on: reward functions and their files.

    A format of the user's own makes the gold answer, so its file is one of them.
    """
    rewards = {name: reward.model_dump(mode="json") for name, reward in config.rewards.items()}
    return {
        "rewards": rewards,
        "files": [*contents("rewards", rewards), *contents("format", config.data.format_name)],
        "math-verify": version("math-verify"),
    }


MEDIA_OF_A_DATASET = 1000
"""Training samples, spread over a dataset, whose media must be those of the start."""


def _spread(samples: Sequence[Sample]) -> Sequence[Sample]:
    return samples[:: max(1, len(samples) // MEDIA_OF_A_DATASET)]
