"""``mmr1 dpo``: learning from the preferences of the records, by the loss of ``dpo.loss_type``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path

from mmr1.config import Config, DpoConfig
from mmr1.config.dpo import load_preference_loss
from mmr1.data.preferences import labelled_answers, ranking_of
from mmr1.data.responses import group_of_responses
from mmr1.trainer.forward.process_group import ProcessGroup
from mmr1.trainer.models.load_model import LoadModel, load_here
from mmr1.trainer.models.loading import feature_cache
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.trainer.offline.learner import Learner, PolicyLearner, learning, policy_learner
from mmr1.trainer.offline.preferences import PAIR, Preference, pair_step, preferences_of
from mmr1.trainer.offline.training import OfflineTask, Records, load_training_records, run_offline
from mmr1.trainer.offline.unpaired import kto_step, with_unrelated
from mmr1.trainer.run import with_epochs
from mmr1.types import Sample, StepStats
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache


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
    group_of = attrgetter("group")
    with learning(config, records.family, records.media, build_dpo, group_of) as learner:
        preferences = _preferences(config, records, learner)

        def step(batch: Sequence[Sample]) -> StepStats:
            return learner.step([preferences[id(sample)] for sample in batch])

        def snapshot(number: int) -> WriteCheckpoint:
            return learner.snapshot(config.trainer.async_save)

        task = OfflineTask(learner, config.dpo.batch_size, step, snapshot)
        return run_offline(config, records, task)


def build_dpo(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> PolicyLearner[Preference]:
    """What learns from preferences."""
    learn, features = partial(preference_step, config=config.dpo), feature_cache(config)
    return policy_learner(config, family, media, process_group, load, learn, features)


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
    config: Config, records: Records, learner: Learner[Preference]
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
    preferences = preferences_of(groups, desirable, learner.by_token, config.dpo)
    return dict(zip(map(id, samples), preferences, strict=True))
