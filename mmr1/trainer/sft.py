"""``mmr1 sft``: supervised fine-tuning, loss on the assistant's tokens only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from mmr1.config import Config
from mmr1.data.quarantine import Quarantine
from mmr1.data.sampler import Sampler
from mmr1.data.sources import load_mixture
from mmr1.trainer.build import (
    family_of,
    load_model,
    media_cache,
    renderer,
    set_up,
    token_scorer,
)
from mmr1.trainer.checkpoint import Fill
from mmr1.trainer.display import Display
from mmr1.trainer.loop import Step
from mmr1.trainer.losses import token_weights
from mmr1.trainer.optimizer import Optimizer, check_finite
from mmr1.trainer.output import RunDirectory, check_directory
from mmr1.trainer.policy import Scorer
from mmr1.trainer.running import run_steps
from mmr1.trainer.sequences import completion_mask
from mmr1.trainer.state import (
    HasState,
    load_progress,
    load_snapshot,
    model_snapshot,
    progress,
    save_progress,
)
from mmr1.trainer.tracking import Trackers, check_trackers
from mmr1.types import Completion, Prompt, RolloutGroup, Sample, StepStats
from mmr1.vision.families.qwen2_5_vl import Family


def run_sft(config: Config, *, resume: bool = False) -> Path:
    """Fine-tune for ``trainer.max_steps`` batches of ``sft.batch_size`` demonstrations.

    Raises:
        ValueError: Something the user can mend; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    check_directory(config, resume=resume)
    check_trackers(config.trainer.trackers)
    set_up(config)
    quarantine = Quarantine(None, config.data.max_bad_fraction)
    sources, shares = load_mixture(config.data, quarantine)
    for sample in chain.from_iterable(sources.values()):
        _assistant_text(sample)
    family = family_of(config)
    model = load_model(config.model)
    tuning = Tuning(
        scorer=token_scorer(config, model, family, media_cache(family), temperature=1.0),
        optimizer=Optimizer(model, config.optimizer, config.trainer.max_steps),
        sampler=Sampler(sources, config.seed, shares),
        render=renderer(family, config),
    )
    with (
        closing(RunDirectory(config)) as directory,
        Trackers(config, directory.path) as trackers,
    ):
        directory.log_dropped(quarantine.dropped)
        return _tune(config, tuning, directory, trackers)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a supervised run is put together from."""

    scorer: Scorer
    optimizer: Optimizer
    sampler: Sampler
    render: Callable[[Sample], Prompt]

    def carried(self) -> dict[str, HasState]:
        return {"optimizer": self.optimizer, "sampler": self.sampler}


def _tune(config: Config, tuning: Tuning, directory: RunDirectory, trackers: Trackers) -> Path:
    display = Display(config.trainer, directory)
    done = 0
    if before := directory.last_checkpoint(warn=display.say):
        load_snapshot(before, tuning.optimizer)
        done = load_progress(before, tuning.carried())
        display.say(f"continuing after step {done}")

    def keep(step: Step) -> None:
        directory.log(step.stats)
        trackers.log(step.stats)
        display.show(step.stats)

    with display:
        checkpoint = run_steps(
            config.trainer,
            _steps(config, tuning, done),
            keep,
            partial(_snapshot, tuning, config.trainer.save_in_background),
            directory.checkpoints,
        )
    display.say(f"checkpoint: {checkpoint}")
    return checkpoint


def _steps(config: Config, tuning: Tuning, done: int) -> Iterator[Step]:
    tuning.scorer.model.train()
    for number in range(done + 1, config.trainer.max_steps + 1):
        start = time.perf_counter()
        batch = [tuning.render(s) for s in tuning.sampler.next(config.sft.batch_size)]
        groups = [demonstration(tuning.scorer.family, prompt) for prompt in batch]
        stats = sft_step(tuning.scorer, tuning.optimizer, groups)
        seconds = time.perf_counter() - start
        yield Step(number, {"step": number, **stats, "time/step": seconds})


def _snapshot(tuning: Tuning, copy: bool, step: int) -> Fill:
    scorer = tuning.scorer
    write = model_snapshot(scorer.model, scorer.family.processor, tuning.optimizer, copy)
    state = progress(step, tuning.carried())

    def fill(folder: Path) -> None:
        write(folder)
        save_progress(folder, state)

    return fill


def demonstration(family: Family, prompt: Prompt) -> RolloutGroup:
    """A demonstration as a group of one: the assistant's text and the end of its turn."""
    text = _assistant_text(prompt.sample)
    ids = family.tokenizer(text, add_special_tokens=False)["input_ids"]
    tokens = np.array([*ids, family.tokenizer.eos_token_id], dtype=np.int64)
    empty = np.zeros(len(tokens), dtype=np.float32)
    return RolloutGroup(prompt, (Completion(tokens, empty, text, False, 0),))


def sft_step(scorer: Scorer, optimizer: Optimizer, groups: Sequence[RolloutGroup]) -> StepStats:
    """One optimizer step on the mean negative log-likelihood of the batch's tokens, in nats.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    mask = completion_mask(groups)
    weights = token_weights(mask, "token")
    total = 0.0
    for turn in scorer.turns(groups):
        assert turn.batch is not None, "supervised training runs in one process"
        logprobs = scorer.scores(turn).logprobs
        own_weights = weights[turn.batch.rows, : logprobs.shape[1]].to(logprobs)
        loss = -(own_weights * logprobs).sum()
        loss.backward()
        total += float(loss.detach())
    check_finite(total)
    lr = optimizer.lr
    return {
        "loss": total,
        "grad_norm": optimizer.step(),
        "lr": lr,
        "tokens/completion": int(mask.sum()),
    }


def _assistant_text(sample: Sample) -> str:
    last = sample.messages[-1]
    if last.role != "assistant" or not last.text:
        raise ValueError(
            f"data.train: sample '{sample.id}' has no assistant message at its end; "
            "supervised fine-tuning needs a demonstration in every record"
        )
    return last.text
