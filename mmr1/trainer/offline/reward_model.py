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
from mmr1.trainer.models.loading import build_packed_model, feature_cache
from mmr1.trainer.models.optimizer import Optimizer, check_finite
from mmr1.trainer.models.scalar_model import (
    PackedScalarModel,
    at_index,
    load_scalar_model,
    rewards_of,
    scalar_snapshot,
)
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.trainer.offline.losses.bradley_terry import bradley_terry
from mmr1.trainer.offline.training import OfflineTask, Records, load_training_records, run_offline
from mmr1.trainer.runs.epochs import with_epochs
from mmr1.types import RolloutGroup, Sample, StepStats


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
    family = records.family
    model = load_scalar_model(config.model, "model.path")
    features = feature_cache(config)
    backbone = build_packed_model(config, model.backbone, records.inputs, 1.0, features)
    scalar_model = PackedScalarModel(model, backbone, read="at")
    optimizer = Optimizer(model, config.optimizer, config.trainer.max_steps)

    def step(batch: Sequence[Sample]) -> StepStats:
        return reward_model_step(scalar_model, optimizer, [_group(records, s) for s in batch])

    def snapshot(number: int) -> WriteCheckpoint:
        learnt_from = records.distinct_samples(config.seed, number * config.rm.batch_size)
        shift_to_zero_mean(scalar_model, [_group(records, sample) for sample in learnt_from])
        return scalar_snapshot(model, family.processor, optimizer, config.trainer.async_save)

    task = OfflineTask(optimizer, config.rm.batch_size, step, snapshot)
    checkpoint = run_offline(config, records, task)
    if held_out:
        check, dataset = MediaCheck(records.media, eval_rows), str(config.data.eval)
        usable = [sample for sample in held_out if check.usable(dataset, sample)]
        accuracy, pairs = ranking_accuracy(scalar_model, [_group(records, s) for s in usable])
        folder = Path(config.trainer.output_dir) / "eval"
        folder.mkdir(exist_ok=True)
        result = {"pairs": pairs, "accuracy": accuracy}
        (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        print(f"held out: {accuracy:.3f} of {pairs} pairs ranked right")
    return checkpoint


def _group(records: Records, sample: Sample) -> RolloutGroup:
    return group_of_responses(records.family, records.render(sample), ranking_of(sample))


def reward_model_step(
    scalar_model: PackedScalarModel, optimizer: Optimizer, groups: Sequence[RolloutGroup]
) -> StepStats:
    """One optimizer step on the mean loss of rankings; each group's completions come best first.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    scalar_model.model.train()
    totals: dict[str, float] = defaultdict(float)
    for batch in scalar_model.packed_model.batches(groups, whole=True):
        last = torch.tensor([len(row) - 1 for g in batch.groups for row in g.completions])
        rewards = at_index(scalar_model.values(batch), last)
        rankings = rewards.split([len(g.completions) for g in batch.groups])
        loss = torch.stack([bradley_terry(r) for r in rankings]).sum() / len(groups)
        loss.backward()
        totals["loss"] += float(loss.detach())
        right = sum(float(pairs_right(r.detach()).float().mean()) for r in rankings)
        totals["rm/accuracy"] += right / len(groups)
    check_finite(totals["loss"])
    lr = optimizer.lr
    return {**totals, "grad_norm": optimizer.step(), "lr": lr}


@torch.no_grad()
def shift_to_zero_mean(scalar_model: PackedScalarModel, groups: Sequence[RolloutGroup]) -> None:
    """Shift the head so that these completions have a mean reward of 0.

    The loss depends on differences only, so it leaves the mean arbitrary; RL would read that as a
    reward.
    """
    bias = scalar_model.model.head.bias
    bias.sub_(rewards_of(scalar_model, groups).mean().to(bias))


def ranking_accuracy(
    scalar_model: PackedScalarModel, groups: Sequence[RolloutGroup]
) -> tuple[float, int]:
    """The share of pairs whose better completion has the higher reward, and their number."""
    rankings = rewards_of(scalar_model, groups).split([len(group.completions) for group in groups])
    verdicts = torch.cat([pairs_right(ranking) for ranking in rankings])
    return float(verdicts.float().mean()), len(verdicts)


def pairs_right(rewards: torch.Tensor) -> torch.Tensor:
    """Is each of the K (K - 1) / 2 pairs of a ranking ``[K]``, best first, in order? Bool."""
    better, worse = torch.triu_indices(len(rewards), len(rewards), 1)
    return rewards[better] > rewards[worse]
