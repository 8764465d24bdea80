"""``mmr1 rm`` with ``rm.supervision=process``: a reward model of steps (arXiv 2305.20050)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from mmr1.config import Config
from mmr1.data.loader import MediaCheck
from mmr1.data.quarantine import Quarantine
from mmr1.data.responses import group_of_responses
from mmr1.data.sources import load_held_out
from mmr1.data.steps import labelled_steps
from mmr1.trainer.forward.process_group import ProcessGroup
from mmr1.trainer.models.load_model import LoadModel, load_here
from mmr1.trainer.models.optimizer import Optimizer, check_finite
from mmr1.trainer.models.scalar_model import (
    PackedScalarModel,
    Supervision,
)
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.trainer.offline.learner import Learner, ScalarLearner, learning, scalar_learner
from mmr1.trainer.offline.training import OfflineTask, Records, load_training_records, run_offline
from mmr1.trainer.run import with_epochs
from mmr1.trainer.sampling.step_ends import step_ends, token_at
from mmr1.types import RolloutGroup, Sample, StepStats
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache


@dataclass(frozen=True, slots=True)
class LabelledSteps:
    """An answer and what its steps are worth.

    Attributes:
        group: The prompt and the answer, its one completion.
        tokens: The token that ends each step.
        labels: From 0, wrong, to 1, right.
    """

    group: RolloutGroup
    tokens: tuple[int, ...]
    labels: tuple[float, ...]


def run_process_reward_model(config: Config, *, resume: bool = False) -> Path:
    """Train for ``trainer.max_steps`` batches of ``rm.batch_size`` answers with labelled steps.

    ``data.eval``, if set, holds such answers too; ``eval/result.json`` has the share of their steps
    that are judged right at 0.5, and of the answers whose first wrong step, or none, is found.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    records = load_training_records(config, labelled_steps, resume=resume)
    config = with_epochs(config, records.count, config.rm.batch_size)
    eval_rows = Quarantine(config.data.max_bad_fraction)
    held_out = load_held_out(config, eval_rows) if config.data.eval is not None else []
    for sample in held_out:
        labelled_steps(sample)
    example, group_of = partial(_example, records, config.rm.step_separator), attrgetter("group")
    build = build_process_reward_model
    with learning(config, records.family, records.media, build, group_of) as learner:

        def step(batch: Sequence[Sample]) -> StepStats:
            return learner.step([example(sample) for sample in batch])

        def snapshot(number: int) -> WriteCheckpoint:
            return learner.snapshot(config.trainer.async_save)

        task = OfflineTask(learner, config.rm.batch_size, step, snapshot)
        checkpoint = run_offline(config, records, task)
        if held_out:
            check, dataset = MediaCheck(records.media, eval_rows), str(config.data.eval)
            usable = [example(sample) for sample in held_out if check.usable(dataset, sample)]
            result = step_accuracy(learner, usable)
    if held_out:
        folder = Path(config.trainer.output_dir) / "eval"
        folder.mkdir(exist_ok=True)
        (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        print(
            f"held out: {result['accuracy']:.3f} of {result['steps']} steps judged right, first "
            f"wrong step found in {result['first_error']:.3f} of {len(usable)} answers"
        )
    return checkpoint


def build_process_reward_model(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> ScalarLearner[LabelledSteps]:
    """What learns from labelled steps."""
    supervision = Supervision("process", config.rm.step_separator)
    return scalar_learner(config, family, media, process_group, load, process_step, supervision)


def _example(records: Records, separator: str, sample: Sample) -> LabelledSteps:
    steps = labelled_steps(sample)
    text = separator.join(step for step, _ in steps)
    group = group_of_responses(records.family, records.render(sample), [text])
    decode = partial(records.family.tokenizer.decode, skip_special_tokens=True)
    ends = step_ends(text, separator)
    if len(ends) != len(steps):
        raise ValueError(
            f"sample '{sample.id}' has a step that holds rm.step_separator ({separator!r}); choose "
            "a separator that stands in no step"
        )
    tokens = tuple(token_at(group.completions[0], end, decode) for end in ends)
    return LabelledSteps(group, tokens, tuple(label for _, label in steps))


def process_step(
    scalar_model: PackedScalarModel, optimizer: Optimizer, examples: Sequence[LabelledSteps]
) -> StepStats:
    """One optimizer step on the mean cross-entropy of all steps' labels, of all ranks.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    scalar_model.model.train()
    packed_model = scalar_model.packed_model
    total = packed_model.process_group.total
    count = total({"steps": sum(len(example.labels) for example in examples)})["steps"]
    sums = {"loss": 0.0, "right": 0.0}
    for batch in packed_model.batches([e.group for e in examples]):
        of_batch = [examples[row] for row in batch.rows.tolist()]
        logits, labels = _of_steps(scalar_model.values(batch), of_batch)
        loss = binary_cross_entropy_with_logits(logits, labels, reduction="sum") / count
        packed_model.backward(loss)
        sums["loss"] += float(loss.detach())
        sums["right"] += int(((logits > 0) == (labels > 0.5)).sum())
    sums = total(sums)
    check_finite(sums["loss"])
    lr = optimizer.lr
    return {
        "loss": sums["loss"],
        "rm/accuracy": sums["right"] / count,
        "grad_norm": optimizer.step(),
        "lr": lr,
    }


def _of_steps(
    values: torch.Tensor, examples: Sequence[LabelledSteps]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels ``[steps]`` of the rows ``[b, R]``."""
    rows = [row for row, example in enumerate(examples) for _ in example.tokens]
    tokens = [token for example in examples for token in example.tokens]
    labels = [label for example in examples for label in example.labels]
    return values[rows, tokens], torch.tensor(labels, dtype=torch.float32, device=values.device)


def step_accuracy(
    learner: Learner[LabelledSteps], examples: Sequence[LabelledSteps]
) -> dict[str, Any]:
    """Steps judged right at 0.5, and answers whose first wrong step, or none, was found."""
    values = learner.by_token([example.group for example in examples])
    verdicts = [
        (values[row, list(example.tokens)] > 0).tolist() for row, example in enumerate(examples)
    ]
    truth = [[label > 0.5 for label in example.labels] for example in examples]
    right = [
        v == t for vs, ts in zip(verdicts, truth, strict=True) for v, t in zip(vs, ts, strict=True)
    ]
    first = [_first_wrong(v) == _first_wrong(t) for v, t in zip(verdicts, truth, strict=True)]
    return {
        "steps": len(right),
        "accuracy": sum(right) / len(right),
        "first_error": sum(first) / len(first),
    }


def _first_wrong(verdicts: Sequence[bool]) -> int:
    return verdicts.index(False) if False in verdicts else len(verdicts)
