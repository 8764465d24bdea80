"""``mmr1 dpo``: direct preference optimisation (arXiv 2305.18290) on the pairs of the records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from mmr1.config import Config, DpoConfig
from mmr1.data.preferences import ranking_of
from mmr1.data.responses import group_of_responses
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.models.loading import build_packed_model, feature_cache, load_trainable
from mmr1.trainer.models.optimizer import Optimizer, check_finite
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.state import model_snapshot
from mmr1.trainer.offline.preference_losses import dpo, implicit_rewards
from mmr1.trainer.offline.training import OfflineTask, Records, load_training_records, run_offline
from mmr1.types import RolloutGroup, Sample, StepStats


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with its chosen and its rejected completion, in this order.

    Attributes:
        reference: Log-probs of both under the reference, summed over their tokens.
    """

    group: RolloutGroup
    reference: tuple[float, float]


def run_dpo(config: Config, *, resume: bool = False) -> Path:
    """Train for ``trainer.max_steps`` batches of ``dpo.batch_size`` pairs.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    records = load_training_records(config, partial(ranking_of, pairs_only=True), resume=resume)
    model = load_trainable(config.model)
    features = feature_cache(config)
    packed_model = build_packed_model(config, model, records.inputs, 1.0, features)
    optimizer = Optimizer(model, config.optimizer, config.trainer.max_steps)
    pairs = _pairs(config, records, packed_model)

    def step(batch: Sequence[Sample]) -> StepStats:
        own_pairs = [pairs[id(sample)] for sample in batch]
        return dpo_step(packed_model, optimizer, own_pairs, config.dpo)

    copy = config.trainer.async_save
    write = partial(model_snapshot, model, records.family.processor, optimizer, copy)
    task = OfflineTask(optimizer, config.dpo.batch_size, step, lambda number: write())
    return run_offline(config, records, task)


def _pairs(config: Config, records: Records, packed_model: PackedModel) -> dict[int, Pair]:
    """The pairs that the run will use, by the identity of their samples."""
    samples = records.distinct_samples(
        config.seed, config.trainer.max_steps * config.dpo.batch_size
    )
    groups = [
        group_of_responses(records.family, records.render(sample), ranking_of(sample))
        for sample in samples
    ]
    return dict(zip(map(id, samples), with_reference_logprobs(packed_model, groups), strict=True))


def with_reference_logprobs(
    packed_model: PackedModel, groups: Sequence[RolloutGroup]
) -> list[Pair]:
    """Take the model as it is now as the reference: no second one is ever needed."""
    sums = _sums(packed_model.logprobs(groups)).tolist()
    return [Pair(group, tuple(both)) for group, both in zip(groups, sums, strict=True)]


def dpo_step(
    packed_model: PackedModel, optimizer: Optimizer, pairs: Sequence[Pair], config: DpoConfig
) -> StepStats:
    """One optimizer step on the mean loss of the pairs.

    With ``dpo.nll_coef`` the chosen completion's mean negative log-likelihood per token is added
    (arXiv 2404.19733, equation 1), so that training does not lower its probability too.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    packed_model.model.train()
    groups = [pair.group for pair in pairs]
    lengths = completion_mask(groups).sum(-1).view(-1, 2)  # [P, 2]
    reference = torch.tensor([pair.reference for pair in pairs])
    totals: dict[str, float] = defaultdict(float)
    for batch in packed_model.batches(groups, whole=True):
        sums = _sums(packed_model.token_scores(batch).logprobs)
        pair_indices = batch.rows[::2] // 2  # of this micro-batch
        ref_logprobs = reference[pair_indices].to(sums)
        chosen_length = lengths[pair_indices, 0].to(sums)
        preference = dpo(sums, ref_logprobs, config.beta)
        nll = -sums[:, 0] / chosen_length
        loss = (preference + config.nll_coef * nll).sum() / len(pairs)
        loss.backward()
        totals["loss"] += float(loss.detach())
        rewards = implicit_rewards(sums.detach(), ref_logprobs, config.beta)
        for name, values in {
            "dpo/loss": preference,
            "dpo/nll": nll,
            "dpo/chosen": rewards[:, 0],
            "dpo/rejected": rewards[:, 1],
            "dpo/accuracy": rewards[:, 0] > rewards[:, 1],
        }.items():
            totals[name] += float(values.detach().float().sum()) / len(pairs)
    check_finite(totals["loss"])
    lr = optimizer.lr
    return {
        **totals,
        "grad_norm": optimizer.step(),
        "lr": lr,
        "tokens/completion": float(lengths.sum()),
    }


def _sums(logprobs: torch.Tensor) -> torch.Tensor:
    """Log-probs of tokens ``[2 P, R]``, 0 in padding, summed to ``[P, 2]`` for completions."""
    return logprobs.sum(-1).view(-1, 2)
