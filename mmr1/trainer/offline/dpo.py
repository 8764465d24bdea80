"""``mmr1 dpo``: learning from the preferences of the records, by the loss of ``dpo.loss_type``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mmr1.config import Config, DpoConfig
from mmr1.config.dpo import load_preference_loss
from mmr1.data.preferences import labelled_answers, ranking_of
from mmr1.data.responses import group_of_responses
from mmr1.trainer.models.loading import build_packed_model, feature_cache, load_trainable
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.state import model_snapshot
from mmr1.trainer.offline.preferences import PAIR, Preference, pair_step, preferences_of
from mmr1.trainer.offline.training import OfflineTask, Records, load_training_records, run_offline
from mmr1.trainer.offline.unpaired import kto_step, with_unrelated
from mmr1.trainer.runs.epochs import with_epochs
from mmr1.types import Sample, StepStats


def run_dpo(config: Config, *, resume: bool = False) -> Path:
    """Train for ``trainer.max_steps`` batches of ``dpo.batch_size`` pairs, or records for KTO.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    load_preference_loss(config.dpo.loss_type)  # a file of one's own that is wrong is told now
    paired = config.dpo.loss_spec.paired
    check = partial(ranking_of, pairs_only=True) if paired else labelled_answers
    records = load_training_records(config, check, resume=resume)
    config = with_epochs(config, records.count, config.dpo.batch_size)
    model = load_trainable(config.model)
    features = feature_cache(config)
    packed_model = build_packed_model(config, model, records.inputs, 1.0, features)
    optimizer = Optimizer(model, config.optimizer, config.trainer.max_steps)
    preferences = _preferences(config, records, packed_model)

    def step(batch: Sequence[Sample]) -> StepStats:
        own = [preferences[id(sample)] for sample in batch]
        return preference_step(packed_model, optimizer, own, config.dpo)

    copy = config.trainer.async_save
    write = partial(model_snapshot, model, records.family.processor, optimizer, copy)
    task = OfflineTask(optimizer, config.dpo.batch_size, step, lambda number: write())
    return run_offline(config, records, task)


def preference_step(
    packed_model: PackedModel,
    optimizer: Optimizer,
    preferences: Sequence[Preference],
    config: DpoConfig,
) -> StepStats:
    """One optimizer step by the loss of ``dpo.loss_type``; see ``pair_step`` and ``kto_step``."""
    step = pair_step if config.loss_spec.paired else kto_step
    return step(packed_model, optimizer, preferences, config)


def _preferences(
    config: Config, records: Records, packed_model: PackedModel
) -> dict[int, Preference]:
    """The preferences that the run will use, by the identity of their samples."""
    samples = records.distinct_samples(
        config.seed, config.trainer.max_steps * config.dpo.batch_size
    )
    answers = [
        tuple(zip(ranking_of(s), PAIR, strict=True))
        if config.dpo.loss_spec.paired
        else labelled_answers(s)
        for s in samples
    ]
    groups = [
        group_of_responses(records.family, records.render(sample), [text for text, _ in labelled])
        for sample, labelled in zip(samples, answers, strict=True)
    ]
    if not config.dpo.loss_spec.paired:
        groups = with_unrelated(groups)
    desirable = [tuple(wanted for _, wanted in labelled) for labelled in answers]
    preferences = preferences_of(groups, desirable, packed_model, config.dpo)
    return dict(zip(map(id, samples), preferences, strict=True))
