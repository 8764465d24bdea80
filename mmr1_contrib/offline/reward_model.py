"""``mmr1 rm``: reward models of whole answers (arXiv 2203.02155, section 3.5) and of steps
(arXiv 2305.20050).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from mmr1.config import Config
from mmr1.data.quarantine import Quarantine
from mmr1.data.responses import group_of_responses
from mmr1.data.sampler import MediaCheck
from mmr1.data.sources import load_held_out
from mmr1.rewards import RewardFunction
from mmr1.trainer.distributed.rank_actor import Build
from mmr1.trainer.forward.micro_batches import MicroBatch, ProcessGroup
from mmr1.trainer.inputs import Inputs, check_records
from mmr1.trainer.models.learner import Learner
from mmr1.trainer.models.loading import LoadModel, load_here
from mmr1.trainer.models.optimizer import Optimizer, check_finite
from mmr1.trainer.models.scalar_model import (
    OUTCOME,
    PackedScalarModel,
    Supervision,
    at_index,
    at_the_end,
)
from mmr1.trainer.offline import (
    learning,
    run_offline,
    same_group,
)
from mmr1.trainer.run import Steps, to_the_end, with_epochs
from mmr1.trainer.sampling.reward_models import step_ends, token_at
from mmr1.types import RolloutGroup, Sample, StepStats
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache
from mmr1_contrib.offline.preferences import distinct_samples, labelled_steps, ranking_of
from mmr1_contrib.offline.scalar_learner import ScalarLearner, build_scalar_learner, shift
from mmr1_contrib.offline.sections import ProcessConfig, RewardModelConfig

Example = TypeVar("Example")


@dataclass(frozen=True, slots=True)
class RewardTask(Generic[Example]):
    """The task of a reward model: the order of answers, or which steps are right.

    Attributes:
        check: Reads what a record teaches, or raises ValueError.
        build: Makes what learns; see ``learning``.
        group_of: The prompt and the answers of an example.
        example: An example from a record.
        centred: Only differences of its rewards are learnt, so it is shifted before a checkpoint.
        evaluate: Function that returns ``eval/result.json`` of held-out examples.
        summary: Function that says it in a line.
    """

    check: Callable[[Sample], object]
    build: Build
    group_of: Callable[[Example], RolloutGroup]
    example: Callable[[Inputs, Sample], Example]
    centred: bool
    evaluate: Callable[[Learner[Example], Sequence[Example]], dict[str, Any]]
    summary: Callable[[dict[str, Any], int], str]


def run_reward_model(config: Config, *, resume: bool = False) -> Path:
    """Train for ``trainer.max_steps`` batches of ``data.train_batch_size`` records.

    By ``rm.type`` these are pairs or rankings, or answers with labelled steps. A model of
    whole answers is shifted before a checkpoint so that those it was trained on have a mean reward
    of 0. ``trainer.validation.data``, if set, holds such records too. ``eval/result.json`` then has
    the share of their pairs that are ranked right; or of their steps that are judged right at 0.5,
    and of the answers whose first wrong step, or none, is found.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    return to_the_end(reward_model_steps(config, resume=resume))


def reward_model_steps(
    config: Config,
    *,
    resume: bool = False,
    functions: Mapping[str, RewardFunction] = MappingProxyType({}),
) -> Steps:
    """Return the run of :func:`run_reward_model`, step by step. It needs no ``functions``."""
    config = config.for_command("rm")
    settings = config.section(RewardModelConfig)
    task: RewardTask[Any] = _steps(settings) if isinstance(settings, ProcessConfig) else _RANKINGS
    records = check_records(config, task.check, resume=resume)
    config = with_epochs(config, records.count, config.data.train_batch_size)
    eval_rows = Quarantine(config.data.max_bad_fraction)
    held_out = load_held_out(config, eval_rows) if config.eval_records is not None else []
    for sample in held_out:
        task.check(sample)
    example = partial(task.example, records)
    with learning(config, records.family, records.media, task.build, task.group_of) as learner:

        def step(batch: Sequence[Sample]) -> StepStats:
            return learner.step([example(sample) for sample in batch])

        def centre(number: int) -> None:
            """Shift the rewards to mean 0: the loss leaves it arbitrary, and RL would see it."""
            count = number * config.data.train_batch_size
            learnt_from = distinct_samples(records, config.seed, count)
            rewards = rewards_by(learner, [example(sample) for sample in learnt_from])
            shift(learner, -float(rewards.mean()))

        before_save = centre if task.centred else None
        checkpoint = yield from run_offline(config, records, learner, step, before_save)
        if held_out:
            check, dataset = MediaCheck(records.media, eval_rows), str(config.eval_records)
            usable = [example(sample) for sample in held_out if check.usable(dataset, sample)]
            result = task.evaluate(learner, usable)
    if held_out:
        folder = Path(config.trainer.output_dir) / "eval"
        folder.mkdir(exist_ok=True)
        (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        print(f"held out: {task.summary(result, len(usable))}")
    return checkpoint


def build_reward_model(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> ScalarLearner[RolloutGroup]:
    """The reward model that learns from rankings."""
    return build_scalar_learner(
        config, family, media, process_group, load, reward_model_step, OUTCOME
    )


def _group(records: Inputs, sample: Sample) -> RolloutGroup:
    return group_of_responses(records.family, records.render(sample), ranking_of(sample))


def reward_model_step(
    scalar_model: PackedScalarModel, optimizer: Optimizer, groups: Sequence[RolloutGroup]
) -> StepStats:
    """One optimizer step on the mean loss of rankings, of all ranks; best completions come first.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """

    def of_batch(batch: MicroBatch, values: torch.Tensor) -> tuple[torch.Tensor, float]:
        last = torch.tensor([len(row) - 1 for g in batch.groups for row in g.completions])
        rankings = at_index(values, last).split([len(g.completions) for g in batch.groups])
        right = sum(float(pairs_right(r.detach()).float().mean()) for r in rankings)
        return torch.stack([bradley_terry(r) for r in rankings]).sum(), right

    return _learn(scalar_model, optimizer, groups, len(groups), of_batch, whole=True)


def _learn(
    scalar_model: PackedScalarModel,
    optimizer: Optimizer,
    groups: Sequence[RolloutGroup],
    count: int,
    of_batch: Callable[[MicroBatch, torch.Tensor], tuple[torch.Tensor, float]],
    whole: bool = False,
) -> StepStats:
    """One optimizer step on a mean loss over all ranks.

    Args:
        count: Terms of the mean, of this rank.
        of_batch: Function from a micro-batch and the values ``[b, R]`` of its completions to the
            sum of the loss and the number of terms that are right.
        whole: Never cut a group.
    """
    scalar_model.model.train()
    packed_model = scalar_model.packed_model
    total = packed_model.process_group.total
    every = total({"count": count})["count"]
    sums = {"loss": 0.0, "rm/accuracy": 0.0}
    for batch in packed_model.batches(groups, whole=whole):
        values = scalar_model.values(batch)
        if not batch.groups:
            packed_model.backward(values.sum())
            continue
        summed, right = of_batch(batch, values)
        loss = summed / every
        packed_model.backward(loss)
        sums["loss"] += float(loss.detach())
        sums["rm/accuracy"] += right / every
    stats = total(sums)
    check_finite(stats["loss"])
    return {**stats, **optimizer.step()}


def bradley_terry(rewards: torch.Tensor) -> torch.Tensor:
    """Pairwise loss of a ranking (arXiv 2203.02155, equation 1): a number.

    ``-mean of log sigmoid(r_i - r_j)`` over the K (K - 1) / 2 pairs in which i ranks above j. For
    K = 2 it is the Bradley-Terry loss. The mean gives every ranking the same weight.

    Args:
        rewards: ``[K]``, the best first.
    """
    better, worse = torch.triu_indices(len(rewards), len(rewards), 1, device=rewards.device)
    return -logsigmoid(rewards[better] - rewards[worse]).mean()


def rewards_by(learner: Learner[RolloutGroup], groups: Sequence[RolloutGroup]) -> torch.Tensor:
    """``[B]``: the rewards of the completions."""
    return at_the_end(learner.by_token(groups), groups)


def ranking_accuracy(rewards: torch.Tensor, groups: Sequence[RolloutGroup]) -> tuple[float, int]:
    """The share of pairs whose better completion has the higher reward, and their number.

    Args:
        rewards: ``[B]``, of the groups' completions, which come best first.
    """
    rankings = rewards.split([len(group.completions) for group in groups])
    verdicts = torch.cat([pairs_right(ranking) for ranking in rankings])
    return float(verdicts.float().mean()), len(verdicts)


def pairs_right(rewards: torch.Tensor) -> torch.Tensor:
    """True for each of the K (K - 1) / 2 pairs of a ranking ``[K]``, best first, in order."""
    better, worse = torch.triu_indices(len(rewards), len(rewards), 1)
    return rewards[better] > rewards[worse]


def _ranked(learner: Learner[RolloutGroup], groups: Sequence[RolloutGroup]) -> dict[str, Any]:
    accuracy, pairs = ranking_accuracy(rewards_by(learner, groups), groups)
    return {"pairs": pairs, "accuracy": accuracy}


def _ranked_line(result: dict[str, Any], answers: int) -> str:
    return f"{result['accuracy']:.3f} of {result['pairs']} pairs ranked right"


_RANKINGS: RewardTask[RolloutGroup] = RewardTask(
    ranking_of, build_reward_model, same_group, _group, True, _ranked, _ranked_line
)


@dataclass(frozen=True, slots=True)
class LabelledSteps:
    """An answer and the labels of its steps.

    Attributes:
        group: The prompt and the answer, its one completion.
        tokens: The token that ends each step.
        labels: Labels from 0, wrong, to 1, right.
    """

    group: RolloutGroup
    tokens: tuple[int, ...]
    labels: tuple[float, ...]


def build_process_reward_model(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> ScalarLearner[LabelledSteps]:
    """The reward model that learns from labelled steps."""
    settings = config.section(RewardModelConfig)
    assert isinstance(settings, ProcessConfig), "else rankings are learnt from"
    supervision = Supervision("process", settings.step_separator)
    return build_scalar_learner(
        config, family, media, process_group, load, process_step, supervision
    )


def _example(config: ProcessConfig, records: Inputs, sample: Sample) -> LabelledSteps:
    steps, separator = labelled_steps(sample), config.step_separator
    text = separator.join(step for step, _ in steps)
    group = group_of_responses(records.family, records.render(sample), [text])
    decode = records.family.chat.completion_text
    ends = step_ends(text, separator)
    if len(ends) != len(steps):
        raise ValueError(
            f"sample '{sample.id}' has a step that holds rm.step_separator ({separator!r}); choose "
            "a separator that stands in no step"
        )
    tokens = tuple(token_at(group.completions[0], end, decode) for end in ends)
    labels = tuple(label for _, label in steps)
    if (least := config.hard_labels_above) is not None:
        labels = tuple(float(label > least) for label in labels)
    return LabelledSteps(group, tokens, labels)


def process_step(
    scalar_model: PackedScalarModel, optimizer: Optimizer, examples: Sequence[LabelledSteps]
) -> StepStats:
    """One optimizer step on the mean cross-entropy of all steps' labels, of all ranks.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """

    def of_batch(batch: MicroBatch, values: torch.Tensor) -> tuple[torch.Tensor, float]:
        logits, labels = _of_steps(values, [examples[row] for row in batch.rows.tolist()])
        right = int(((logits > 0) == (labels > 0.5)).sum())
        return binary_cross_entropy_with_logits(logits, labels, reduction="sum"), right

    count = sum(len(example.labels) for example in examples)
    return _learn(scalar_model, optimizer, [e.group for e in examples], count, of_batch)


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
    """The shares of steps judged right at 0.5, and of answers whose first wrong step was found."""
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


def _steps_line(result: dict[str, Any], answers: int) -> str:
    return (
        f"{result['accuracy']:.3f} of {result['steps']} steps judged right, first wrong step "
        f"found in {result['first_error']:.3f} of {answers} answers"
    )


def _steps(config: ProcessConfig) -> RewardTask[LabelledSteps]:
    return RewardTask(
        labelled_steps,
        build_process_reward_model,
        attrgetter("group"),
        partial(_example, config),
        False,
        step_accuracy,
        _steps_line,
    )
