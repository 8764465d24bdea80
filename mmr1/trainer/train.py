"""``mmr1 train``: build the components of a run, train, and write what the run produces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mmr1.config import Config
from mmr1.rewards import CompositeReward, build_composite_reward
from mmr1.rollout.build import build_engine, with_conversations
from mmr1.rollout.conversations import ConversationEngine
from mmr1.rollout.engine import RolloutEngine
from mmr1.rollout.rehearsal import RehearsalEngine
from mmr1.runtime import heap_frozen
from mmr1.trainer.algorithms import Algorithm, build_algorithm
from mmr1.trainer.algorithms.coefficients import Coefficients
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.distributed.cluster import on_ray
from mmr1.trainer.distributed.scorers import scored_where_sampled
from mmr1.trainer.inputs import Inputs, check_inputs
from mmr1.trainer.loop import train
from mmr1.trainer.models.critic import Critic
from mmr1.trainer.models.policy import Policy
from mmr1.trainer.models.reference import Reference
from mmr1.trainer.models.training_models import build_training_models
from mmr1.trainer.resume import restore, snapshot
from mmr1.trainer.runs.checkpoint import step_of
from mmr1.trainer.runs.display import Display
from mmr1.trainer.runs.epochs import with_epochs
from mmr1.trainer.runs.existing import check_directory
from mmr1.trainer.runs.output import RunDirectory, finished
from mmr1.trainer.runs.profiling import Recorded
from mmr1.trainer.runs.step import FailedStepError, PhaseTimer, Step
from mmr1.trainer.runs.take_steps import run_steps
from mmr1.trainer.runs.tracking import Trackers, check_trackers
from mmr1.trainer.sampling.dynamic_sampling import group_filter
from mmr1.trainer.sampling.experience import SupportsLogprobs
from mmr1.trainer.sampling.parity import ProbedEngine, check_parity, first_of_each_kind
from mmr1.trainer.sampling.replay import Replay, prompt_finder
from mmr1.trainer.sampling.reward_models import reward_models
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.sampling.shuffled_frames import refuse_without_videos
from mmr1.trainer.sampling.step_rewards import StepRewards, build_step_reward_manager
from mmr1.trainer.validation.evaluate import evaluate, summary_line, write_evaluation
from mmr1.trainer.validation.validate import Scored, Validation
from mmr1.vision.prepare import MediaCache


def run_training(config: Config, *, resume: bool = False) -> Path:
    """Train; returns the directory of the last checkpoint.

    With ``resume`` a run in ``trainer.output_dir`` continues from its latest valid checkpoint. Its
    results are the same as without the interruption. With rollouts ahead
    (``rollout.max_off_policy_steps``) that is so from a checkpoint that was due. After a signal the
    same prompts come, but the steps that were sampled ahead are sampled again, with newer weights.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; the last finished step is saved.
    """
    check_directory(config, resume=resume)
    if resume and (last := finished(config)):
        print(f"all {step_of(last)} steps are done; checkpoint: {last}")
        return last
    check_trackers(config.trainer.trackers)
    timer = PhaseTimer("start")
    with build_composite_reward(config.rewards, reward_models(config)) as composite_reward:
        with timer("data"):
            inputs = check_inputs(config, composite_reward, train=True)
        samples = sum(map(len, inputs.sources.values()))
        config = with_epochs(config, samples, config.rollout.batch_size)
        if build_algorithm(config.algorithm).shuffled_frames:
            refuse_without_videos(inputs.sources.values())
        steps = build_step_reward_manager(config, inputs.family, inputs.media)
        with ExitStack() as stack:
            with timer("models"):
                workers = stack.enter_context(_workers(config, inputs, composite_reward))
            directory = stack.enter_context(RunDirectory(config))
            return _train(config, inputs, composite_reward, steps, workers, directory, timer)


@dataclass(frozen=True, slots=True)
class Workers:
    """Who trains and generates, here or on a cluster; ``engine(log)`` starts the generation."""

    policy: Policy
    reference: Reference | None
    critic: Critic | None
    engine: Callable[[Path], RolloutEngine]
    ranks: Recorded | None = None


@contextmanager
def _workers(
    config: Config, inputs: Inputs, composite_reward: CompositeReward
) -> Iterator[Workers]:
    """In this process, or as many as ``resources`` asks for on Ray."""
    if config.resources.distributed:
        with (
            on_ray(config) as cluster,
            scored_where_sampled(composite_reward, config, cluster.engines.machines),
        ):
            engines = cluster.engines

            def on_cluster(log: Path) -> RolloutEngine:
                return with_conversations(config, engines, engines, inputs.family, inputs.media)

            yield Workers(
                cluster.policy, cluster.reference, cluster.critic, on_cluster, cluster.ranks
            )
        return
    own = build_training_models(config, inputs.family, inputs.media)

    def engine(log: Path) -> RolloutEngine:
        return build_engine(config, inputs.family, inputs.media, log, own.model, own.features)

    yield Workers(own.policy, own.reference, own.critic, engine)


def _train(
    config: Config,
    inputs: Inputs,
    composite_reward: CompositeReward,
    steps: StepRewards | None,
    workers: Workers,
    directory: RunDirectory,
    timer: PhaseTimer,
) -> Path:
    display = Display(config.trainer, directory, config.rewards.functions)
    display.say("starting the rollout engine")
    composite_reward.begin()
    with timer("engine"):
        engine = workers.engine(directory.path / "engine.log")
    with closing(engine), Trackers(config, directory.path) as trackers:
        rewards = RewardManager(composite_reward, inputs.media, config.rewards.max_invalid_fraction)
        validation = _validation(config, inputs, engine, rewards, directory)
        algorithm = build_algorithm(config.algorithm)
        components = TrainerComponents(
            loader=inputs.loader(config.seed, config.data.curriculum),
            render=inputs.render,
            rollout=engine,
            rewards=rewards,
            algorithm=algorithm,
            policy=workers.policy,
            reference=workers.reference,
            coefficients=Coefficients(config.algorithm),
            media=inputs.media,
            steps=steps,
            critic=workers.critic,
            demonstrations=inputs.demonstrations,
            validation=validation,
            replay=_replay(config, inputs, algorithm),
            ranks=workers.ranks,
        )
        done = 0
        if before := directory.last_checkpoint(warn=display.say):
            done = restore(before, components)
            display.say(f"continuing after step {done}")
        elif config.model.lora is not None and config.model.lora.starts_apart:
            # The engine has read the files.
            engine.load_weights(workers.policy.weights(copy=True), workers.policy.version)
        with timer("parity check"):
            check_agreement(config, inputs, engine, workers.policy, display.say)
        directory.begin()
        directory.log_dropped(inputs.dropped)

        def keep(step: Step) -> None:
            _log(config, directory, trackers, step, inputs.media)
            directory.log_dropped(inputs.dropped)
            display.show(step.stats)

        with display, _failed_batch_kept(directory, inputs.media), heap_frozen():
            if validation and config.trainer.val_before_train and done == 0:
                keep(Step(0, {"step": 0, **validation(0)}))
            checkpoint = run_steps(
                config.trainer,
                train(config, components, done),
                keep,
                partial(snapshot, config, components),
                directory.checkpoints,
            )
        if validation:
            if validation.last is None or validation.last[0] != config.trainer.max_steps:
                with PhaseTimer("end")("evaluation"):
                    result = validation.evaluate(lambda mode, groups: None)
            else:
                _, result = validation.last
            write_evaluation(directory.path / "eval", result)
            directory.log_dropped(inputs.dropped)
            display.say(summary_line(result))
    display.say(f"checkpoint: {checkpoint}")
    return checkpoint


def _replay(config: Config, inputs: Inputs, algorithm: Algorithm) -> Replay | None:
    """The earlier groups that ``algorithm.replay`` keeps; None without it."""
    if config.algorithm.replay is None:
        return None
    functions = list(config.rewards.weights)
    has_signal = group_filter(config.algorithm, algorithm.step_supervision, functions)
    find = prompt_finder(inputs.sources, inputs.render)
    return Replay(config.algorithm.replay, config.seed, has_signal, find)


def _validation(
    config: Config,
    inputs: Inputs,
    engine: RolloutEngine,
    rewards: RewardManager,
    directory: RunDirectory,
) -> Validation | None:
    """How ``data.eval`` is evaluated, in the run and at its end; None without it."""
    if not inputs.held_out:
        return None
    check = inputs.check_held_out
    of_held_out = partial(evaluate, config, engine, inputs.render, rewards, inputs.held_out, check)

    def record(step: int, scored: Scored) -> None:
        for mode, groups in scored.items():
            directory.log_rollouts(step, groups, inputs.media, mode=mode)

    return Validation(lambda keep: of_held_out(keep=keep), record)


@contextmanager
def _failed_batch_kept(directory: RunDirectory, media: MediaCache) -> Iterator[None]:
    """Write down what a step that failed on its numbers was to learn from."""
    try:
        yield
    except FailedStepError as error:
        step = error.step
        file = directory.log_rollouts(step.number, step.scored, media, step.advantages)
        error.args = (f"step {step.number}: {error}. Its batch is in {file}",)
        raise


def check_agreement(
    config: Config,
    inputs: Inputs,
    engine: ProbedEngine,
    policy: SupportsLogprobs,
    say: Callable[[str], None],
) -> None:
    """Check that engine and trainer agree, before a run begins.

    Once more when colocated engines have slept and woken up: with damaged weights they would go on
    without an error.
    """
    for _ in range(2 if config.resources.colocate else 1):
        say(parity_summary(config, inputs, engine, policy))


def parity_summary(
    config: Config, inputs: Inputs, engine: ProbedEngine, policy: SupportsLogprobs
) -> str:
    """Check that engine and trainer agree on a prompt of each kind; says how well they do."""
    kinds = first_of_each_kind(inputs.sources, inputs.check.usable)
    if isinstance(engine, ConversationEngine):
        engine = RehearsalEngine(engine, config.rollout.sampling.max_tokens)
    parity = check_parity(
        engine,
        policy,
        inputs.family,
        inputs.media,
        [inputs.render(s) for s in kinds.values()],
        config.rollout.sampling,
        config.parity_tolerance,
        config.uses_bf16,
    )
    return (
        f"engine and trainer agree on {parity.prompts} kinds of prompt "
        f"(log-prob gap {parity.mean_gap:.1e} on average, {parity.max_gap:.1e} at most)"
    )


def _log(
    config: Config, directory: RunDirectory, trackers: Trackers, step: Step, media: MediaCache
) -> None:
    directory.log(step.stats)
    trackers.log(step.stats)
    every = config.trainer.log_completions_steps
    if step.number > 0 and (
        step.number % every == 0 or step.number in (1, config.trainer.max_steps)
    ):
        directory.log_rollouts(step.number, step.scored, media, step.advantages)
        trackers.log_rollouts(step.number, step.scored, step.advantages)
