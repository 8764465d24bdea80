"""``mmr1 sft``: supervised fine-tuning, loss on the assistant's tokens only."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
from mmr1.trainer.display import Display
from mmr1.trainer.losses import token_weights
from mmr1.trainer.optimizer import Optimizer, check_finite
from mmr1.trainer.output import RunDirectory, refuse_existing_run
from mmr1.trainer.policy import Scorer
from mmr1.trainer.sequences import completion_mask
from mmr1.types import Completion, Prompt, RolloutGroup, Sample, StepStats
from mmr1.vision.families.qwen2_5_vl import Family


def run_sft(config: Config) -> Path:
    """Fine-tune for ``trainer.max_steps`` batches of ``sft.batch_size`` demonstrations.

    Raises:
        ValueError: Something the user can mend; nothing has been written yet.
    """
    refuse_existing_run(config.trainer.output_dir)
    set_up(config)
    quarantine = Quarantine(None, config.data.max_bad_fraction)
    sources, shares = load_mixture(config.data, quarantine)
    for sample in chain.from_iterable(sources.values()):
        _assistant_text(sample)
    family = family_of(config)
    media = media_cache(family)
    render = renderer(family, config)
    model = load_model(config.model)
    directory = RunDirectory(config.trainer.output_dir, config)
    directory.log_dropped(quarantine.dropped)
    display = Display(config.trainer, directory)

    scorer = token_scorer(config, model, family, media, temperature=1.0)
    optimizer = Optimizer(model, config.optimizer, config.trainer.max_steps)
    sampler = Sampler(sources, config.seed, shares)
    model.train()
    with display:
        for step in range(1, config.trainer.max_steps + 1):
            start = time.perf_counter()
            batch = sampler.next(config.sft.batch_size)
            stats = sft_step(scorer, optimizer, [demonstration(family, render(s)) for s in batch])
            stats = {"step": step, **stats, "time/step": time.perf_counter() - start}
            directory.log(stats)
            display.show(stats)
    checkpoint = directory.save_model(model, family, config.trainer.max_steps)
    display.say(f"checkpoint: {checkpoint}")
    return checkpoint


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
    for batch in scorer.batches(groups):
        logprobs = scorer.scores(batch).logprobs
        own_weights = weights[batch.rows, : logprobs.shape[1]].to(logprobs)
        loss = -(own_weights * logprobs).sum()
        total += check_finite(loss)
        loss.backward()
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
