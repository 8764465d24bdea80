"""``mmr1 dpo`` with ``dpo.rounds``: iterative preference optimisation (arXiv 2404.19733).

A round samples completions, scores them with the rewards, takes preferences from the scores and
learns from them. The reference is the policy at the start of the round. The next round samples with
the new weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType

from mmr1.config import Config
from mmr1.progress import WAIT_S, report_activity
from mmr1.rewards import RewardFunction, build_composite_reward
from mmr1.rollout.build import build_engine
from mmr1.rollout.engine import RolloutEngine
from mmr1.trainer.distributed.cluster import learner_on_ray
from mmr1.trainer.distributed.ray_policy import RayLearner
from mmr1.trainer.distributed.reward_ranks import reward_model_values
from mmr1.trainer.inputs import Inputs, check_inputs, refuse_keys_of_train
from mmr1.trainer.models.learner import PolicyLearner
from mmr1.trainer.models.state import WriteCheckpoint, load_progress, progress
from mmr1.trainer.offline.dpo import Preference, build_dpo, check_loss
from mmr1.trainer.offline.rounds import Rounds
from mmr1.trainer.run import Steps, already_finished, to_the_end, with_state
from mmr1.trainer.runs.step import PhaseTimer, Step
from mmr1.trainer.sampling.reward_models import reward_models
from mmr1.trainer.train import SamplingRun, started
from mmr1.trainer.validation.evaluate import evaluate


def run_iterative_dpo(config: Config, *, resume: bool = False) -> Path:
    """``dpo.rounds.count`` rounds, ``trainer.max_steps`` steps in all.

    With ``resume`` a run in ``trainer.output_dir`` continues from its latest valid checkpoint, in
    the middle of a round too. Its results are the same as without the interruption.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        NoPreferencesError: The completions of a round gave nothing to learn from.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    return to_the_end(iterative_dpo_steps(config, resume=resume))


def iterative_dpo_steps(
    config: Config,
    *,
    resume: bool = False,
    functions: Mapping[str, RewardFunction] = MappingProxyType({}),
) -> Steps:
    """The run of :func:`run_iterative_dpo`, step by step; ``functions`` as in ``train``."""
    config = config.for_command("dpo")
    refuse_keys_of_train(config.trainer)
    if last := already_finished(config, resume=resume):
        return last
    check_loss(config.dpo)
    timer = PhaseTimer("start", WAIT_S)
    with ExitStack() as stack:
        values = stack.enter_context(reward_model_values(config))
        own = {**reward_models(config, values), **functions}
        rewards = stack.enter_context(build_composite_reward(config.rewards, own))
        with timer("reading the data"):
            inputs = check_inputs(config, rewards, train=True)
        workers = stack.enter_context(_workers(config, inputs))
        # A round's completions are logged with its first step, whichever that is.
        start = started(config, inputs, rewards, workers.engine, timer, log_completions_steps=1)
        with start as sampling:
            return (yield from _train(config, inputs, sampling, workers.learner, timer))


@dataclass(frozen=True, slots=True)
class Workers:
    """The learner and the engine, here or on a cluster; ``engine(log)`` starts the sampling."""

    learner: PolicyLearner[Preference] | RayLearner[Preference]
    engine: Callable[[Path], RolloutEngine]


@contextmanager
def _workers(config: Config, inputs: Inputs) -> Iterator[Workers]:
    if config.distributed:
        group_of, engines = attrgetter("group"), config.engines
        with learner_on_ray(config, build_dpo, group_of, engines) as (on_ranks, on_ray):
            yield Workers(on_ranks, lambda log: on_ray)
        return
    with report_activity("loading the model", "start"):
        learner = build_dpo(config, inputs.family, inputs.media)
    own = learner.packed_model

    def engine(log: Path) -> RolloutEngine:
        return build_engine(config, inputs.family, inputs.media, log, own.model, own.features)

    yield Workers(learner, engine)


def _train(
    config: Config,
    inputs: Inputs,
    sampling: SamplingRun,
    learner: PolicyLearner[Preference] | RayLearner[Preference],
    timer: PhaseTimer,
) -> Steps:
    run, engine = sampling.run, sampling.engine
    rounds = Rounds(config, inputs, engine, sampling.rewards, learner)
    before = run.directory.last_checkpoint(warn=run.display.say)
    done = 0
    if before:
        done = _restore(rounds, before)
        run.display.continue_after(done)
    else:  # as after each round: so the check below is one of the transfer too
        engine.load_weights(learner.weights(), 0)
    sampling.make_ready(config, inputs, learner, timer)
    with run.display:
        checkpoint = yield from run.take(rounds.steps(done), partial(_snapshot, rounds))
    if inputs.held_out:
        engine.load_weights(learner.weights(), rounds.count)
        result = evaluate(
            config,
            engine,
            inputs.render,
            sampling.rewards,
            inputs.held_out,
            inputs.check_held_out,
        )
        run.record_evaluation(result)
    run.display.say(f"checkpoint: {checkpoint}")
    return checkpoint


def _snapshot(rounds: Rounds, step: Step) -> WriteCheckpoint:
    """A function that writes the present state of the run."""
    write = rounds.learner.snapshot(rounds.config.trainer.async_save)
    return with_state(
        [write], progress(step.number, {"optimizer": rounds.learner, "rounds": rounds})
    )


def _restore(rounds: Rounds, checkpoint: Path) -> int:
    """Restore the run from a checkpoint; returns the last step that is done."""
    rounds.learner.load_snapshot(checkpoint)
    done = load_progress(checkpoint, {"optimizer": rounds.learner, "rounds": rounds})
    rounds.engine.load_weights(rounds.learner.weights(), 0)
    return done
