"""``mmr1 dpo`` with ``dpo.rounds``: iterative preference optimisation (arXiv 2404.19733).

A round samples completions, scores them with the rewards, takes preferences from the scores and
learns from them. The reference is the policy at the start of the round. The next round samples with
the new weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from mmr1.config import Config
from mmr1.config.dpo import load_preference_loss
from mmr1.rewards import build_composite_reward
from mmr1.rollout.build import build_engine
from mmr1.rollout.engine import RolloutEngine
from mmr1.trainer.distributed.cluster import learner_on_ray
from mmr1.trainer.distributed.ray_policy import RayLearner
from mmr1.trainer.inputs import Inputs, check_inputs
from mmr1.trainer.models.digests import Digests
from mmr1.trainer.models.learner import PolicyLearner
from mmr1.trainer.models.state import (
    WriteCheckpoint,
    load_progress,
    progress,
    save_progress,
)
from mmr1.trainer.offline.dpo import Preference, build_dpo
from mmr1.trainer.offline.rounds import Rounds
from mmr1.trainer.offline.training import refuse_keys_of_train
from mmr1.trainer.runs.display import Display
from mmr1.trainer.runs.existing import check_directory
from mmr1.trainer.runs.output import RunDirectory, finished
from mmr1.trainer.runs.step import Step
from mmr1.trainer.runs.take_steps import run_steps
from mmr1.trainer.runs.tracking import Trackers, check_trackers
from mmr1.trainer.sampling.reward_models import reward_models
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.train import check_agreement
from mmr1.trainer.validation.evaluate import evaluate, summary_line, write_evaluation


def run_iterative_dpo(config: Config, *, resume: bool = False) -> Path:
    """``dpo.rounds`` rounds, ``trainer.max_steps`` steps in all.

    With ``resume`` a run in ``trainer.output_dir`` continues from its latest valid checkpoint, in
    the middle of a round too. Its results are the same as without the interruption.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        NoPreferencesError: The completions of a round gave nothing to learn from.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    refuse_keys_of_train(config.trainer)
    check_directory(config, resume=resume)
    if resume and (last := finished(config)):
        print(f"all {config.trainer.max_steps} steps are done; checkpoint: {last}")
        return last
    check_trackers(config.trainer.trackers)
    load_preference_loss(config.dpo.loss_type)  # a file of one's own that is wrong is told now
    with ExitStack() as stack:
        rewards = stack.enter_context(build_composite_reward(config.rewards, reward_models(config)))
        inputs = check_inputs(config, rewards, train=True)
        workers = stack.enter_context(_workers(config, inputs))
        reward_manager = RewardManager(rewards, inputs.media, config.rewards.max_invalid_fraction)
        directory = stack.enter_context(RunDirectory(config))
        return _train(config, inputs, reward_manager, workers, directory)


@dataclass(frozen=True, slots=True)
class Workers:
    """What learns and samples, here or on a cluster; ``engine(log)`` starts the sampling."""

    learner: PolicyLearner[Preference] | RayLearner[Preference]
    engine: Callable[[Path], RolloutEngine]


@contextmanager
def _workers(config: Config, inputs: Inputs) -> Iterator[Workers]:
    if config.resources.distributed:
        group_of, engines = attrgetter("group"), config.resources.engines
        with learner_on_ray(config, build_dpo, group_of, engines) as (on_ranks, on_ray):
            yield Workers(on_ranks, lambda log: on_ray)
        return
    learner = build_dpo(config, inputs.family, inputs.media)
    own = learner.packed_model

    def engine(log: Path) -> RolloutEngine:
        return build_engine(config, inputs.family, inputs.media, log, own.model, own.features)

    yield Workers(learner, engine)


def _train(
    config: Config,
    inputs: Inputs,
    reward_manager: RewardManager,
    workers: Workers,
    directory: RunDirectory,
) -> Path:
    display = Display(config.trainer, directory)
    display.say("starting the rollout engine")
    with (
        closing(workers.engine(directory.path / "engine.log")) as engine,
        Trackers(config, directory.path) as trackers,
    ):
        rounds = Rounds(config, inputs, engine, reward_manager, workers.learner)
        done = _restore(rounds, directory, display.say)
        if not done and config.model.lora is not None and config.model.lora.starts_apart:
            # The engine has read the files.
            engine.load_weights(workers.learner.weights(), 0)
        check_agreement(config, inputs, engine, workers.learner, display.say)
        directory.begin()
        directory.log_dropped(inputs.dropped)

        def record(step: Step) -> None:
            directory.log(step.stats)
            trackers.log(step.stats)
            directory.log_dropped(inputs.dropped)
            display.show(step.stats)
            if step.scored:
                directory.log_rollouts(step.number, step.scored, inputs.media)
                trackers.log_rollouts(step.number, step.scored)

        def snapshot(step: Step) -> WriteCheckpoint:
            return _snapshot(rounds, step.number)

        with display:
            checkpoint = run_steps(
                config.trainer, rounds.steps(done), record, snapshot, directory.checkpoints
            )
        if inputs.held_out:
            engine.load_weights(workers.learner.weights(), config.dpo.rounds)
            result = evaluate(
                config,
                engine,
                inputs.render,
                reward_manager,
                inputs.held_out,
                inputs.check_held_out,
            )
            write_evaluation(directory.path / "eval", result)
            directory.log_dropped(inputs.dropped)
            display.say(summary_line(result))
    display.say(f"checkpoint: {checkpoint}")
    return checkpoint


def _snapshot(rounds: Rounds, number: int) -> WriteCheckpoint:
    """A function that writes the run as it is now."""
    write = rounds.learner.snapshot(rounds.config.trainer.async_save)
    state = progress(number, {"optimizer": rounds.learner, "rounds": rounds})

    def write_files(folder: Path) -> Digests:
        save_progress(folder, state)
        return write(folder)

    return write_files


def _restore(rounds: Rounds, directory: RunDirectory, say: Callable[[str], None]) -> int:
    """Put the run back to its latest checkpoint; the step after which that was, or 0."""
    if not (before := directory.last_checkpoint(warn=say)):
        return 0
    rounds.learner.load_snapshot(before)
    done = load_progress(before, {"optimizer": rounds.learner, "rounds": rounds})
    rounds.engine.load_weights(rounds.learner.weights(), 0)
    say(f"continuing after step {done}")
    return done
