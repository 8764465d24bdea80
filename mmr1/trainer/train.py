"""``mmr1 train``: build the components of a run, train, and write what the run produces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from mmr1.config import Config, OwnEnvironment
from mmr1.config.rewards import weights_of
from mmr1.progress import WAIT_S, report_activity
from mmr1.rewards import CompositeReward, RewardFunction, build_composite_reward
from mmr1.rollout.build import build_engine, with_conversations
from mmr1.rollout.conversations import Conversing, Player
from mmr1.rollout.distribution import SUPPORT_LIMIT
from mmr1.rollout.engines import samples_together
from mmr1.rollout.protocol import Engine
from mmr1.rollout.two_turns import two_turns
from mmr1.runtime import heap_frozen
from mmr1.trainer.algorithm import Algorithm, build_algorithm
from mmr1.trainer.coefficients import Coefficients
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.distributed.cluster import on_ray
from mmr1.trainer.distributed.reward_ranks import reward_model_values
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.inputs import Inputs, check_inputs
from mmr1.trainer.loop import train
from mmr1.trainer.models.critic import Critic
from mmr1.trainer.models.policy import Policy
from mmr1.trainer.models.reference import Reference
from mmr1.trainer.models.training_models import build_training_models
from mmr1.trainer.run import (
    Run,
    Steps,
    already_finished,
    open_run,
    restore,
    snapshot,
    to_the_end,
    with_epochs,
)
from mmr1.trainer.runs.step import PhaseTimer, Step, Traceable
from mmr1.trainer.runs.step_file import StepFiles
from mmr1.trainer.sampler import refuse_without_media
from mmr1.trainer.sampling.dynamic_sampling import group_filter
from mmr1.trainer.sampling.experience import SupportsLogprobs
from mmr1.trainer.sampling.open_groups import OpenGroups
from mmr1.trainer.sampling.other_views import by_own_view
from mmr1.trainer.sampling.parity import PARITY_TOKENS, check_parity, first_of_each_kind
from mmr1.trainer.sampling.plan import planner
from mmr1.trainer.sampling.replay import KeptGroups, Replay, prompt_finder
from mmr1.trainer.sampling.reward_models import reward_models
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.sampling.step_rewards import StepRewards, build_step_rewards
from mmr1.trainer.validation.evaluate import Scored, Validation, evaluate
from mmr1.vision.build import seen_media


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
    return to_the_end(training_steps(config, resume=resume))


def training_steps(
    config: Config,
    *,
    resume: bool = False,
    functions: Mapping[str, RewardFunction] = MappingProxyType({}),
) -> Steps:
    """The run of :func:`run_training`, step by step.

    Args:
        functions: Reward functions of this process, in place of those of their names in
            ``rewards``.
    """
    config = config.for_command("train")
    if last := already_finished(config, resume=resume):
        return last
    timer = PhaseTimer("start", WAIT_S)
    with ExitStack() as stack:
        values = stack.enter_context(reward_model_values(config))
        own = {**reward_models(config, values), **functions}
        rewards = stack.enter_context(build_composite_reward(config.rewards, config.scoring, own))
        with timer("reading the data"):
            inputs = check_inputs(config, rewards, train=True)
        config = with_epochs(config, inputs.count, config.data.train_batch_size)
        build_algorithm(config.algorithm)  # one's own may be wrong
        refuse_without_media(config, inputs.sources.values())
        steps = build_step_rewards(config, inputs.family, values)
        workers = stack.enter_context(_workers(config, inputs))
        start = started(config, inputs, rewards, workers.engine, timer, config.rewards)
        sampling = stack.enter_context(start)
        run, components = sampling.run, _components(config, inputs, steps, workers, sampling)
        done = _weights_and_state(components, run)
        if config.rollout.streams:
            run.display.say(f"streaming: no token is older than {config.max_staleness} steps")
        sampling.make_ready(config, inputs, workers.policy, timer)
        with run.display, heap_frozen():
            validation = components.validation
            if validation and config.trainer.validates_before and done == 0:
                run.record(Step(0, {"step": 0, **validation(0)}))
            steps_of_run = train(config, components, done)
            checkpoint = yield from run.take(steps_of_run, partial(snapshot, config, components))
        if validation:
            if validation.last is None or validation.last[0] != config.trainer.steps:
                run.display.say("evaluating the last weights")
                validation(config.trainer.steps)
            assert validation.last is not None
            run.record_evaluation(validation.last[1])
        run.display.say(f"checkpoint: {checkpoint}")
        return checkpoint


@dataclass(frozen=True, slots=True)
class Workers:
    """The models and the engine, here or on a cluster; ``engine(log)`` starts the generation."""

    policy: Policy
    reference: Reference | None
    critic: Critic | None
    engine: Callable[[Path], Engine]
    ranks: Traceable | None = None


@contextmanager
def _workers(config: Config, inputs: Inputs) -> Iterator[Workers]:
    """The workers in this process, or as many as ``resources`` asks for on Ray."""
    if config.distributed:
        with on_ray(config) as cluster:

            def on_cluster(log: Path) -> Engine:
                return with_conversations(config, cluster.engines, inputs.family, inputs.media)

            yield Workers(
                cluster.policy, cluster.reference, cluster.critic, on_cluster, cluster.ranks
            )
        return
    with report_activity("loading the model", "start"):
        own = build_training_models(config, inputs.family, inputs.media)

    def engine(log: Path) -> Engine:
        return build_engine(config, inputs.family, inputs.media, log, own.model, own.features)

    yield Workers(own.policy, own.reference, own.critic, engine)


@dataclass(frozen=True, slots=True)
class SamplingRun:
    """A started run, and what it samples and scores with."""

    run: Run
    engine: Engine
    rewards: RewardManager

    def make_ready(
        self,
        config: Config,
        inputs: Inputs,
        policy: SupportsLogprobs,
        timer: PhaseTimer,
    ) -> None:
        """Check that the engine, which has the policy's weights, agrees with it, and begin.

        Once more when colocated engines have slept and woken up: with damaged weights they would go
        on without an error.
        """
        if config.rollout.cuts and config.rollout.top_k == 0:
            self.run.display.say(
                "rollout.top_p and min_p: the ids that are kept travel with each token, at most "
                f"the {SUPPORT_LIMIT} most probable ones (rollout.top_k={SUPPORT_LIMIT})"
            )
        with timer("comparing log-probs of engine and trainer"):
            for _ in range(2 if config.rollout.colocated else 1):
                self.run.display.say(parity_summary(config, inputs, self.engine, policy))
        self.run.begin()


@contextmanager
def started(
    config: Config,
    inputs: Inputs,
    composite_reward: CompositeReward,
    engine: Callable[[Path], Engine],
    timer: PhaseTimer,
    functions: Iterable[str] = (),
    log_completions_steps: int | None = None,
) -> Iterator[SamplingRun]:
    """The start of every run that samples: its folder, the rollout engine, its trackers.

    Args:
        engine: Starts the engine, which logs into the file that it is given.
        functions: The reward functions whose means are shown.
        log_completions_steps: See :class:`Run`; default: ``trainer.log_completions_steps``.
    """
    seen = seen_media(inputs.family, config, inputs.media)
    step_files = StepFiles(config, ModelInputs(inputs.family, seen), inputs.place)
    shown = (functions, log_completions_steps, step_files)
    with open_run(config, inputs, *shown) as run:
        composite_reward.begin()
        with timer("starting the rollout engine"):
            own = engine(run.directory.path / "engine.log")
        with closing(own):
            max_invalid = config.scoring.max_invalid_fraction
            manager = RewardManager(
                composite_reward, inputs.media, max_invalid, inputs.family.coordinates
            )
            yield SamplingRun(run, own, manager)


def _components(
    config: Config,
    inputs: Inputs,
    steps: StepRewards | None,
    workers: Workers,
    sampling: SamplingRun,
) -> TrainerComponents:
    rollout, views = config.rollout, config.rollout.views
    own_views = by_own_view if views is not None and views.loss == "own" else None
    algorithm = build_algorithm(
        config.algorithm, rollout.max_response_length, weights_of(config.rewards), own_views
    )
    kept = _kept(config, inputs)
    return TrainerComponents(
        loader=inputs.loader(config.seed, config.data.curriculum),
        render=inputs.render,
        engine=sampling.engine,
        rewards=sampling.rewards,
        algorithm=algorithm,
        policy=workers.policy,
        reference=workers.reference,
        coefficients=Coefficients(config.algorithm),
        media=inputs.media,
        steps=steps,
        critic=workers.critic,
        demonstrations=inputs.demonstrations,
        validation=_validation(config, inputs, sampling, workers.policy),
        kept=kept,
        replay=_replay(config, algorithm, kept),
        open_groups=_open_groups(config, inputs, algorithm),
        ranks=workers.ranks,
        completion_text=inputs.family.chat.completion_text,
    )


def _weights_and_state(components: TrainerComponents, run: Run) -> int:
    """Restore the last checkpoint, if there is one; returns the number of finished steps.

    The engine has the policy's weights then, as after each update: so the check that follows is one
    of the transfer too.
    """
    if before := run.directory.last_checkpoint(warn=run.display.say):
        done = restore(before, components)
        run.display.continue_after(done)
        if components.open_groups is not None:
            run.display.say(components.open_groups.resumed())
        return done
    policy = components.policy
    components.engine.load(policy.weights(copy=True), policy.version)
    return 0


def _kept(config: Config, inputs: Inputs) -> KeptGroups | None:
    """The store of groups for later steps; None where ``algorithm.filter_groups`` keeps none."""
    if not config.algorithm.learns_from_earlier:
        return None
    return KeptGroups(prompt_finder(inputs.sources, inputs.render))


def _open_groups(config: Config, inputs: Inputs, algorithm: Algorithm) -> OpenGroups | None:
    """The groups on their way to the trainer; None where steps are sampled in turn."""
    if not config.rollout.streams:
        return None
    plan = planner(config, algorithm.advantage.greedy_baseline)
    return OpenGroups(prompt_finder(inputs.sources, inputs.render), plan)


def _replay(config: Config, algorithm: Algorithm, kept: KeptGroups | None) -> Replay | None:
    """The replay of earlier groups; None without ``algorithm.filter_groups=replay``."""
    if config.algorithm.replay is None:
        return None
    assert kept is not None, "replay learns from earlier groups"
    functions = list(weights_of(config.rewards))
    has_signal = group_filter(config.algorithm, algorithm.advantage.step_supervision, functions)
    return Replay(config.algorithm.replay, config.seed, has_signal, kept)


def _validation(
    config: Config, inputs: Inputs, sampling: SamplingRun, policy: SupportsLogprobs
) -> Validation | None:
    """The evaluation of ``trainer.validation.data``, in the run and at its end; None without it."""
    if not inputs.held_out:
        return None
    of_held_out = partial(
        evaluate,
        config,
        sampling.engine,
        inputs.render,
        sampling.rewards,
        inputs.held_out,
        inputs.check_held_out,
        policy=policy,
    )

    def record(step: int, scored: Scored) -> None:
        sampling.run.directory.log_validation(step, scored, inputs.media)

    return Validation(lambda keep: of_held_out(keep=keep), record)


def parity_summary(config: Config, inputs: Inputs, engine: Engine, policy: SupportsLogprobs) -> str:
    """Check on a prompt of each kind that engine and trainer agree and that the policy sees.

    Returns what was measured, for the log.
    """
    kinds = first_of_each_kind(inputs.sources, inputs.check.usable)
    sampling, max_tokens = config.rollout.sampling, PARITY_TOKENS
    if isinstance(engine, Conversing):  # two short turns, in place of one
        limits = OwnEnvironment(type="two turns", max_tokens_per_turn=max_tokens)
        shows = "image" in inputs.family.placeholder_kinds.values()
        engine, max_tokens = (
            Player(
                engine.turns,
                two_turns(shows),
                limits,
                inputs.family,
                inputs.media,
                samples_together(config),
                ends_when_cut=False,
            ),
            sampling.max_tokens,
        )
    parity = check_parity(
        engine,
        policy,
        inputs.family,
        inputs.media,
        [inputs.render(s) for s in kinds.values()],
        sampling,
        config.parity_tolerance,
        config.rounds_logprobs,
        max_tokens,
    )
    seen = (
        "no prompt has a picture, so whether the policy sees is not checked"
        if parity.sight is None
        else f"the policy sees: other pictures move a log-prob by {parity.sight:.1e}"
    )
    return (
        f"engine and trainer agree on {parity.prompts} kind{'s'[: parity.prompts != 1]} of prompt "
        f"(log-prob gap {parity.mean_gap:.1e} on average, {parity.max_gap:.1e} at most); {seen}"
    )
