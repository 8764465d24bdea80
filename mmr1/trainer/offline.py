"""The training loop of runs that learn from answers in the data and sample nothing, such as SFT."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from mmr1.config import Config
from mmr1.data.sampler import SampleLoader
from mmr1.progress import report_activity
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.distributed.cluster import learner_on_ray
from mmr1.trainer.distributed.rank_actor import Build
from mmr1.trainer.forward.micro_batches import ProcessGroup
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.inputs import Inputs
from mmr1.trainer.models.learner import Learner, PolicyLearner
from mmr1.trainer.models.loading import LoadModel, build_packed_model
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.state import HasState, WriteCheckpoint, load_progress, progress
from mmr1.trainer.run import Steps, open_run, with_state
from mmr1.trainer.runs.step import PhaseTimer, Step
from mmr1.types import RolloutGroup, Sample, StepStats
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache


def run_offline(
    config: Config,
    records: Inputs,
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
    with open_run(config, records) as run:
        loader = records.loader(config.seed)
        stateful: dict[str, HasState] = {"optimizer": learner, "sampler": loader}
        steps_done = 0
        if checkpoint_before := run.directory.last_checkpoint(warn=run.display.say):
            learner.load_snapshot(checkpoint_before)
            steps_done = load_progress(checkpoint_before, stateful)
            run.display.continue_after(steps_done)
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
    packed_model = build_packed_model(config, model, inputs, None, features, process_group)
    optimizer = Optimizer(model, config.optimizer, config.trainer.steps)
    sampled = Distribution.of(config.rollout.sampling, family.forbidden_ids)
    return PolicyLearner(packed_model, optimizer, learn, sampled)


def same_group(group: RolloutGroup) -> RolloutGroup:
    """The group itself: the example is no more than a prompt and completions."""
    return group


@contextmanager
def learning(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    build: Build[Any],
    group_of: Callable[[Any], RolloutGroup],
) -> Iterator[Any]:
    """The learner that ``build`` builds, here or on ``resources.ranks`` ranks.

    Args:
        group_of: The prompt and completions of an example.
    """
    if config.resources.ranks == 1:
        with report_activity("loading the model"):
            learner = build(config, family, media)
        yield learner
        return
    with learner_on_ray(config, build, group_of) as (learner, _):
        yield learner
