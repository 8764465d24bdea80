"""``mmr1 rm``: a reward model from pairs and rankings (arXiv 2203.02155, section 3.5)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from mmr1.config import Config
from mmr1.data.loader import MediaCheck
from mmr1.data.preferences import ranking_of
from mmr1.data.quarantine import Quarantine
from mmr1.data.responses import group_of_responses
from mmr1.data.sources import load_held_out
from mmr1.trainer.forward.process_group import ProcessGroup
from mmr1.trainer.models.load_model import LoadModel, load_here
from mmr1.trainer.models.optimizer import Optimizer, check_finite
from mmr1.trainer.models.scalar_model import (
    OUTCOME,
    PackedScalarModel,
    at_index,
    at_the_end,
)
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.trainer.offline.learner import (
    Learner,
    ScalarLearner,
    itself,
    learning,
    scalar_learner,
)
from mmr1.trainer.offline.losses.bradley_terry import bradley_terry
from mmr1.trainer.offline.training import OfflineTask, Records, load_training_records, run_offline
from mmr1.trainer.run import with_epochs
from mmr1.types import RolloutGroup, Sample, StepStats
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache


def run_reward_model(config: Config, *, resume: bool = False) -> Path:
    """Train for ``trainer.max_steps`` batches of ``rm.batch_size`` pairs or rankings.

    Before a checkpoint the model is shifted so that the answers it was trained on have a mean
    reward of 0. ``data.eval``, if set, holds rankings too; ``eval/result.json`` has the share of
    their pairs that are ranked right.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    records = load_training_records(config, ranking_of, resume=resume)
    config = with_epochs(config, records.count, config.rm.batch_size)
    eval_rows = Quarantine(config.data.max_bad_fraction)
    held_out = load_held_out(config, eval_rows) if config.data.eval is not None else []
    for sample in held_out:
        ranking_of(sample)
    with learning(config, records.family, records.media, build_reward_model, itself) as learner:

        def step(batch: Sequence[Sample]) -> StepStats:
            return learner.step([_group(records, sample) for sample in batch])

        def snapshot(number: int) -> WriteCheckpoint:
            learnt_from = records.distinct_samples(config.seed, number * config.rm.batch_size)
            rewards = rewards_by(learner, [_group(records, sample) for sample in learnt_from])
            # The loss depends on differences only, so it leaves the mean arbitrary; RL would read
            # that as a reward.
            learner.shift(-float(rewards.mean()))
            return learner.snapshot(config.trainer.async_save)

        task = OfflineTask(learner, config.rm.batch_size, step, snapshot)
        checkpoint = run_offline(config, records, task)
        if held_out:
            check, dataset = MediaCheck(records.media, eval_rows), str(config.data.eval)
            usable = [_group(records, s) for s in held_out if check.usable(dataset, s)]
            accuracy, pairs = ranking_accuracy(rewards_by(learner, usable), usable)
    if held_out:
        folder = Path(config.trainer.output_dir) / "eval"
        folder.mkdir(exist_ok=True)
        result = {"pairs": pairs, "accuracy": accuracy}
        (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        print(f"held out: {accuracy:.3f} of {pairs} pairs ranked right")
    return checkpoint


def build_reward_model(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> ScalarLearner[RolloutGroup]:
    """What learns from rankings."""
    return scalar_learner(config, family, media, process_group, load, reward_model_step, OUTCOME)


def _group(records: Records, sample: Sample) -> RolloutGroup:
    return group_of_responses(records.family, records.render(sample), ranking_of(sample))


def reward_model_step(
    scalar_model: PackedScalarModel, optimizer: Optimizer, groups: Sequence[RolloutGroup]
) -> StepStats:
    """One optimizer step on the mean loss of rankings, of all ranks; best completions come first.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    scalar_model.model.train()
    packed_model = scalar_model.packed_model
    total = packed_model.process_group.total
    count = total({"groups": len(groups)})["groups"]
    sums: dict[str, float] = defaultdict(float)
    for batch in packed_model.batches(groups, whole=True):
        values = scalar_model.values(batch)
        if not batch.groups:
            packed_model.backward(values.sum())
            continue
        last = torch.tensor([len(row) - 1 for g in batch.groups for row in g.completions])
        rewards = at_index(values, last)
        rankings = rewards.split([len(g.completions) for g in batch.groups])
        loss = torch.stack([bradley_terry(r) for r in rankings]).sum() / count
        packed_model.backward(loss)
        sums["loss"] += float(loss.detach())
        right = sum(float(pairs_right(r.detach()).float().mean()) for r in rankings)
        sums["rm/accuracy"] += right / count
    stats = total(sums)
    check_finite(stats["loss"])
    lr = optimizer.lr
    return {**stats, "grad_norm": optimizer.step(), "lr": lr}


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
    """Is each of the K (K - 1) / 2 pairs of a ranking ``[K]``, best first, in order? Bool."""
    better, worse = torch.triu_indices(len(rewards), len(rewards), 1)
    return rewards[better] > rewards[worse]
