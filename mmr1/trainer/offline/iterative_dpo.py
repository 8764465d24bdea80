"""``mmr1 dpo`` with ``dpo.rounds``: iterative reasoning preference optimisation (arXiv 2404.19733).

A round samples completions, scores them with the rewards, pairs right ones with wrong ones and
learns from the pairs by DPO. The reference is the policy at the start of the round. The next round
samples with the new weights.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

from mmr1.config import Config
from mmr1.data.sampler import Sampler
from mmr1.rewards import build_composite_reward
from mmr1.rewards.accounting import reward_stats
from mmr1.rollout.build import build_engine
from mmr1.rollout.engine import RolloutEngine, request_seed, requests_for
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.inputs import Inputs, check_inputs
from mmr1.trainer.models.loading import build_packed_model, feature_cache, load_trainable
from mmr1.trainer.models.lora import plain_weights
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.state import WriteCheckpoint, model_snapshot
from mmr1.trainer.offline.dpo import Pair, dpo_step, with_reference_logprobs
from mmr1.trainer.runs.display import Display
from mmr1.trainer.runs.existing import check_directory
from mmr1.trainer.runs.output import RunDirectory
from mmr1.trainer.runs.phase_timer import PhaseTimer
from mmr1.trainer.runs.step import Step
from mmr1.trainer.runs.take_steps import run_steps
from mmr1.trainer.sampling.reward_models import reward_models
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.train import parity_summary
from mmr1.trainer.validation.evaluate import (
    accuracy_function,
    evaluate,
    is_right,
    summary_line,
    write_evaluation,
)
from mmr1.types import Completion, RolloutGroup, ScoredGroup


class NoPairsError(RuntimeError):
    """The completions of a round gave no pair to learn from."""


def run_iterative_dpo(config: Config) -> Path:
    """``dpo.rounds`` rounds, ``trainer.max_steps`` steps in all.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        NoPairsError: No prompt of a round had both a right and a wrong completion.
    """
    check_directory(config, resume=False)
    with build_composite_reward(config.rewards, reward_models(config)) as rewards:
        inputs = check_inputs(config, rewards, train=True)
        model = load_trainable(config.model)
        reward_manager = RewardManager(rewards, inputs.media, config.rewards.max_invalid_fraction)
        with closing(RunDirectory(config)) as directory:
            return _train(config, inputs, reward_manager, model, directory)


def _train(
    config: Config,
    inputs: Inputs,
    reward_manager: RewardManager,
    model: Any,
    directory: RunDirectory,
) -> Path:
    temperature, features = config.rollout.sampling.temperature, feature_cache(config)
    model_inputs = ModelInputs(inputs.family, inputs.media)
    packed_model = build_packed_model(config, model, model_inputs, temperature, features)
    optimizer = Optimizer(model, config.optimizer, config.trainer.max_steps)
    display = Display(config.trainer, directory)
    display.say("starting the rollout engine")
    log = directory.path / "engine.log"
    engine = build_engine(config, inputs.family, inputs.media, log, model, features)
    with closing(engine):
        display.say(parity_summary(config, inputs, engine, packed_model))
        directory.begin()
        directory.log_dropped(inputs.dropped)

        def record(step: Step) -> None:
            directory.log(step.stats)
            display.show(step.stats)
            if step.scored:
                directory.log_rollouts(step.number, step.scored, inputs.media)

        def snapshot(number: int) -> WriteCheckpoint:
            copy = config.trainer.async_save
            return model_snapshot(model, inputs.family.processor, optimizer, copy)

        with display:
            steps = rounds(config, inputs, engine, reward_manager, packed_model, optimizer)
            checkpoint = run_steps(config.trainer, steps, record, snapshot, directory.checkpoints)
        if inputs.held_out:
            result = evaluate(config, engine, inputs.render, reward_manager, inputs.held_out)
            write_evaluation(directory.path / "eval", result)
            display.say(summary_line(result))
    display.say(f"checkpoint: {checkpoint}")
    return checkpoint


def rounds(
    config: Config,
    inputs: Inputs,
    engine: RolloutEngine,
    reward_manager: RewardManager,
    packed_model: PackedModel,
    optimizer: Optimizer,
) -> Iterator[Step]:
    """Yields each finished step; the first step of a round carries the round's completions.

    Raises:
        NoPairsError: A round gave no pair.
    """
    sampler = Sampler(inputs.sources, config.seed, inputs.weights)
    accuracy_name = accuracy_function(config.rewards, config.eval.accuracy_function)
    step = 0
    for number in range(1, config.dpo.rounds + 1):
        timer = PhaseTimer(f"step {step + 1}")
        with timer("rollout"):
            prompts = [inputs.render(s) for s in sampler.next(config.dpo.prompts_per_round)]
            requests = requests_for(prompts, config.rollout.n, config.seed, number)
            groups = engine.generate(requests, config.rollout.sampling)
        with timer("reward"):
            scored = reward_manager.score(groups)
        rng = random.Random(request_seed(config.seed, number, "pairs"))
        pair_groups = [
            pair
            for s in scored
            for pair in pairs_of(s, accuracy_name, config.dpo.pairs_per_prompt, rng)
        ]
        if not pair_groups:
            raise NoPairsError(_no_pairs(scored, accuracy_name, number))
        with timer("reference"):
            pairs = with_reference_logprobs(packed_model, pair_groups)
        stats = {**reward_stats([r for s in scored for r in s.rewards]), "dpo/pairs": len(pairs)}
        sampled = scored
        for batch in _batches(pairs, config.dpo.batch_size, rng):
            if step == config.trainer.max_steps * number // config.dpo.rounds:
                break
            step += 1
            with timer("update"):
                stats |= dpo_step(packed_model, optimizer, batch, config.dpo)
            times = {f"time/{name}": spent for name, spent in timer.seconds().items()}
            yield Step(step, {"step": step, "dpo/round": number, **stats, **times}, sampled)
            timer, stats, sampled = PhaseTimer(f"step {step + 1}"), {}, []
        engine.load_weights(plain_weights(packed_model.model), number)


def pairs_of(
    scored: ScoredGroup, accuracy_name: str, limit: int, rng: random.Random
) -> list[RolloutGroup]:
    """Up to ``limit`` random pairs of a right and a wrong completion, the right one first.

    Only right completions with the highest reward are used, so that the format counts too. Equal
    completions count once. Completions without a valid reward are left out.
    """
    valid = [
        (completion, reward)
        for completion, reward in zip(scored.group.completions, scored.rewards, strict=True)
        if reward.valid
    ]
    right = [(c, r) for c, r in valid if is_right(r, accuracy_name)]
    best_reward = max((r.value for _, r in right if r.value is not None), default=None)
    winners = _distinct(c for c, r in right if r.value == best_reward)
    losers = _distinct(c for c, r in valid if not is_right(r, accuracy_name))
    combinations = list(product(winners, losers))
    rng.shuffle(combinations)
    return [RolloutGroup(scored.group.prompt, pair) for pair in combinations[:limit]]


def _distinct(completions: Iterable[Completion]) -> list[Completion]:
    return list({c.token_ids.tobytes(): c for c in completions}.values())


def _batches(pairs: Sequence[Pair], size: int, rng: random.Random) -> Iterator[list[Pair]]:
    """Endless batches; each pass over the pairs has a new random order."""
    shuffled: list[Pair] = []
    while True:
        while len(shuffled) < size:
            shuffled += rng.sample(pairs, len(pairs))
        batch, shuffled = shuffled[:size], shuffled[size:]
        yield batch


def _no_pairs(scored: Sequence[ScoredGroup], accuracy_name: str, number: int) -> str:
    rewards = [r for s in scored for r in s.rewards]
    right = sum(is_right(r, accuracy_name) for r in rewards)
    return (
        f"round {number}: no prompt of {len(scored)} has both a right and a wrong completion "
        f"({right} of {len(rewards)} completions are right by reward function "
        f"'{accuracy_name}'): begin with supervised training, choose other data, or raise "
        "rollout.n, dpo.prompts_per_round or the temperature"
    )
