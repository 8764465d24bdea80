"""``mmr1 train``: put the parts together, run the loop, keep what it did."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import Progress

from mmr1.config import Config
from mmr1.data.sampler import Sampler
from mmr1.rewards import build_scorer
from mmr1.trainer.algorithms import build_algorithm
from mmr1.trainer.build import (
    build_engine,
    check_engine,
    check_window,
    feature_cache,
    load_model,
    load_split,
    media_cache,
    renderer,
    set_up,
    token_scorer,
)
from mmr1.trainer.display import Display
from mmr1.trainer.evaluate import Evaluation, evaluate, write_evaluation
from mmr1.trainer.loop import Parts, Step, train
from mmr1.trainer.optimizer import Optimizer
from mmr1.trainer.output import RunDirectory, refuse_existing_run
from mmr1.trainer.parity import check_parity
from mmr1.trainer.policy import LocalPolicy
from mmr1.trainer.scoring import GroupScorer, check_gold
from mmr1.trainer.step_rewards import build_step_scorer
from mmr1.vision.families.qwen2_5_vl import load_family


def run_training(config: Config) -> Path:
    """Train and return the last checkpoint's directory.

    Raises:
        ValueError: Something the user can mend; nothing has been written yet.
    """
    refuse_existing_run(config.trainer.output_dir)
    check_engine(config)
    set_up(config)
    algorithm = build_algorithm(config.algorithm)
    samples = load_split(config, "train")
    held_out = load_split(config, "eval") if config.data.eval else []
    family = load_family(config.model.path)
    media = media_cache(family)
    render = renderer(family, config)

    with build_scorer(config.rewards) as scorer:
        check_gold(scorer, samples + held_out)
        check_window(config, [render(s) for s in samples], family)
        model = load_model(config.model)
        directory = RunDirectory(config.trainer.output_dir, config)
        display = Display(config.trainer, directory)
        sampling = config.rollout.sampling
        features = feature_cache(config)
        own = token_scorer(config, model, family, media, sampling.temperature, features)
        policy = LocalPolicy(
            own,
            algorithm,
            Optimizer(
                model,
                config.optimizer,
                config.trainer.max_steps * config.algorithm.updates_per_rollout,
            ),
            updates=config.algorithm.updates_per_rollout,
            limit=sampling.max_tokens,
        )
        reference = None
        if config.algorithm.kl_coef > 0:
            frozen = copy.deepcopy(model).requires_grad_(False).eval()
            reference = token_scorer(config, frozen, family, media, sampling.temperature, features)

        display.say("starting the rollout engine")
        engine = build_engine(config, family, media, directory.path / "engine.log", model)
        try:
            first = [render(s) for s in samples[:4]]
            tolerance = config.rollout.parity_tolerance
            if config.model.dtype == "bfloat16":
                tolerance *= 100
            parity = check_parity(engine, policy, family, media, first, sampling, tolerance)
            display.say(
                f"engine and trainer agree on {parity.prompts} prompts "
                f"(largest log-prob gap {parity.max_gap:.1e})"
            )
            parts = Parts(
                sampler=Sampler(samples, config.seed),
                render=render,
                rollout=engine,
                rewards=GroupScorer(scorer, media, config.rewards.max_invalid_fraction),
                algorithm=algorithm,
                policy=policy,
                reference=reference,
                media=media,
                steps=build_step_scorer(config.algorithm, family),
            )
            checkpoint = None
            with display:
                for step in train(config, parts):
                    _keep(config, directory, step)
                    display.show(step.stats)
                    last = step.number == config.trainer.max_steps
                    every = config.trainer.save_every
                    if last or (every and step.number % every == 0):
                        checkpoint = directory.save_model(model, family, step.number)
            if held_out:
                result = evaluate(config, engine, render, parts.rewards, held_out)
                write_evaluation(directory.path / "eval", result)
                display.say(_summary(result))
        finally:
            engine.close()
    assert checkpoint is not None, "the last step always saves"
    display.say(f"checkpoint: {checkpoint}")
    return checkpoint


def _keep(config: Config, directory: RunDirectory, step: Step) -> None:
    directory.log(step.stats)
    every = config.trainer.log_rollouts_every
    if step.number % every == 0 or step.number in (1, config.trainer.max_steps):
        directory.log_rollouts(step.number, step.scored, step.advantages)


def _summary(result: Evaluation) -> str:
    shown = ", ".join(f"{mode} accuracy {m.accuracy:.3f}" for mode, m in result.modes.items())
    return f"held out: {shown} on {result.prompts} prompts"


def run_evaluation(config: Config) -> Evaluation:
    """``mmr1 eval``: the accuracy of ``model.path`` on ``data.eval``.

    Writes ``result.json`` and ``completions.jsonl`` into ``eval.output`` where that is set.

    Raises:
        ValueError: Something the user can mend; nothing has been written yet.
    """
    check_engine(config)
    set_up(config)
    samples = load_split(config, "eval")[: config.eval.limit]
    family = load_family(config.model.path)
    media = media_cache(family)
    render = renderer(family, config)
    with build_scorer(config.rewards) as scorer, TemporaryDirectory() as scratch:
        check_gold(scorer, samples)
        check_window(config, [render(s) for s in samples], family)
        model = load_model(config.model) if config.rollout.engine == "hf" else None
        folder = Path(config.eval.output) if config.eval.output else Path(scratch)
        engine = build_engine(config, family, media, folder / "engine.log", model)
        try:
            groups = GroupScorer(scorer, media, config.rewards.max_invalid_fraction)
            modes = 2 if config.eval.samples else 1
            with Progress(disable=not Console().is_terminal) as progress:
                task = progress.add_task("eval", total=modes * len(samples))
                result = evaluate(
                    config, engine, render, groups, samples, partial(progress.advance, task)
                )
        finally:
            engine.close()
    if config.eval.output:
        write_evaluation(folder, result)
    return result
