"""The training loop that SFT, DPO and reward models share: no rollouts, answers from the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from mmr1.config import Config, TrainerConfig
from mmr1.data.loader import MediaCheck, SampleLoader
from mmr1.data.quarantine import Quarantine
from mmr1.data.rendering import renderer
from mmr1.data.sampler import Sampler
from mmr1.data.sources import load_mixture
from mmr1.environments.schemas import tool_schemas
from mmr1.progress import doing
from mmr1.runtime import set_up_torch, warn_of_emulated_bfloat16
from mmr1.trainer.distributed.cluster import learner_on_ray
from mmr1.trainer.distributed.rank_actor import Build
from mmr1.trainer.forward.micro_batches import ProcessGroup
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.learner import Learner, PolicyLearner, ScalarLearner
from mmr1.trainer.models.loading import LoadModel, build_packed_model, feature_cache
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.scalar_model import PackedScalarModel, Supervision
from mmr1.trainer.models.state import HasState, WriteCheckpoint, load_progress, progress
from mmr1.trainer.run import Steps, open_run, with_state
from mmr1.trainer.runs.existing import check_directory
from mmr1.trainer.runs.step import PhaseTimer, Step
from mmr1.trainer.runs.tracking import check_trackers
from mmr1.types import Prompt, RolloutGroup, Sample, StepStats
from mmr1.vision.build import checked_media, family_of, media_cache
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class Records:
    """The checked training records of a run, and the function that renders them."""

    sources: dict[str, Sequence[Sample]]
    shares: dict[str, float]
    quarantine: Quarantine
    check: MediaCheck
    family: ModelFamily
    media: MediaCache
    render: Callable[[Sample], Prompt]

    @property
    def count(self) -> int:
        """How many there are, of all datasets together."""
        return sum(map(len, self.sources.values()))

    def loader(self, seed: int) -> SampleLoader:
        """A new loader at its start; equal seeds give equal orders."""
        return SampleLoader(Sampler(self.sources, seed, self.shares), self.check)

    def distinct_samples(self, seed: int, count: int) -> list[Sample]:
        """The distinct samples among the loader's first ``count``."""
        drawn = self.loader(seed).draw(count)
        return list({(dataset, sample.id): sample for dataset, sample in drawn}.values())


@doing("reading the data")
def load_training_records(
    config: Config, check: Callable[[Sample], object], *, resume: bool
) -> Records:
    """Read ``data.train``; ``check`` raises ValueError for a sample that cannot be used.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
    """
    check_directory(config, resume=resume)
    refuse_keys_of_train(config.trainer)
    check_trackers(config.trainer.trackers)
    set_up_torch(
        config.seed, config.trainer.threads, config.full_determinism, expandable_segments=True
    )
    warn_of_emulated_bfloat16({"model.dtype": config.model.dtype})
    quarantine = Quarantine(config.data.max_bad_fraction)
    sources, shares = load_mixture(config.data, quarantine)
    for sample in chain.from_iterable(sources.values()):
        try:
            check(sample)
        except ValueError as error:
            raise ValueError(f"data.train: {error}") from None
    family = family_of(config, tool_schemas(config.environment))
    render = renderer(family, config)
    on_ranks = config.resources.ranks > 1
    media = (checked_media if on_ranks else media_cache)(family, config)
    return Records(
        sources, shares, quarantine, MediaCheck(media, quarantine), family, media, render
    )


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


def run_offline(
    config: Config,
    records: Records,
    learner: Learner[Any],
    learn: Callable[[Sequence[Sample]], StepStats],
    before_save: Callable[[int], None] | None = None,
) -> Steps:
    """Train up to step ``trainer.max_steps``, from the latest checkpoint if there is one.

    Args:
        learner: The trained model and its optimizer.
        learn: Learns from one batch; returns the metrics.
        before_save: Called with the step's number before the learner is saved.

    Raises:
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    with open_run(config, records.media, [records.quarantine]) as run:
        loader = records.loader(config.seed)
        stateful: dict[str, HasState] = {"optimizer": learner, "sampler": loader}
        steps_done = 0
        if checkpoint_before := run.directory.last_checkpoint(warn=run.display.say):
            learner.load_snapshot(checkpoint_before)
            steps_done = load_progress(checkpoint_before, stateful)
            run.display.say(f"continuing after step {steps_done}")
        run.begin()

        def snapshot(step: Step) -> WriteCheckpoint:
            if before_save is not None:
                before_save(step.number)
            write = learner.snapshot(config.trainer.async_save)
            return with_state([write], progress(step.number, stateful))

        with run.display:
            checkpoint = yield from run.take(_steps(config, learn, loader, steps_done), snapshot)
        run.display.say(f"checkpoint: {checkpoint}")
    return checkpoint


def _steps(
    config: Config,
    learn: Callable[[Sequence[Sample]], StepStats],
    loader: SampleLoader,
    steps_done: int,
) -> Iterator[Step]:
    size = config.data.train_batch_size
    for number in range(steps_done + 1, config.trainer.steps + 1):
        timer = PhaseTimer(f"step {number}")
        samples = loader.next(size)
        loader.prefetch(size)
        with timer("update"):
            stats = learn(samples)
        seconds = {f"time/{name}": value for name, value in timer.seconds().items()}
        yield Step(number, {"step": number, **stats, **seconds})


Example = TypeVar("Example")


def policy_learner(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None,
    load: LoadModel,
    learn: Callable[[PackedModel, Optimizer, Sequence[Example]], StepStats],
    features: FeatureCache | None = None,
) -> PolicyLearner[Example]:
    """The policy of ``model.path``, for ``trainer.max_steps`` steps."""
    model = load(config.model, True, "model.path", lr_of_parts=config.optimizer.lr_of_parts)
    inputs = ModelInputs(family, media)
    packed_model = build_packed_model(config, model, inputs, 1.0, features, process_group)
    optimizer = Optimizer(model, config.optimizer, config.trainer.steps)
    return PolicyLearner(packed_model, optimizer, learn, config.rollout.sampling.temperature)


def scalar_learner(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None,
    load: LoadModel,
    learn: Callable[[PackedScalarModel, Optimizer, Sequence[Example]], StepStats],
    supervision: Supervision,
) -> ScalarLearner[Example]:
    """The reward model of ``model.path``, for ``trainer.max_steps`` steps."""
    rates = config.optimizer.lr_of_parts
    model = load(config.model, True, "model.path", head=True, lr_of_parts=rates)
    inputs, features = ModelInputs(family, media), feature_cache(config)
    backbone = build_packed_model(config, model.backbone, inputs, 1.0, features, process_group)
    optimizer = Optimizer(model, config.optimizer, config.trainer.steps)
    return ScalarLearner(PackedScalarModel(model, backbone, "at"), optimizer, learn, supervision)


def itself(group: RolloutGroup) -> RolloutGroup:
    """The prompt and completions of an example that is nothing more."""
    return group


@contextmanager
def learning(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    build: Build[Any],
    group_of: Callable[[Any], RolloutGroup],
) -> Iterator[Any]:
    """What ``build`` builds, here or on ``resources.ranks`` ranks.

    Args:
        group_of: The prompt and completions of an example.
    """
    if config.resources.ranks == 1:
        with doing("loading the model"):
            learner = build(config, family, media)
        yield learner
        return
    with learner_on_ray(config, build, group_of) as (learner, _):
        yield learner
