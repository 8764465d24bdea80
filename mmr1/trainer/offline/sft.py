"""``mmr1 sft``: supervised fine-tuning, loss on the assistant's tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmr1.config import Config
from mmr1.data.responses import assistant_text, demonstration
from mmr1.trainer.forward.micro_batches import ProcessGroup
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.models.learner import PolicyLearner
from mmr1.trainer.models.load_model import LoadModel, load_here
from mmr1.trainer.models.nll import add_nll_gradient
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.state import WriteCheckpoint
from mmr1.trainer.offline.learner import itself, learning, policy_learner
from mmr1.trainer.offline.training import OfflineTask, load_training_records, run_offline
from mmr1.trainer.run import Steps, to_the_end, with_epochs
from mmr1.types import RolloutGroup, Sample, StepStats
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache


def run_sft(config: Config, *, resume: bool = False) -> Path:
    """Fine-tune for ``trainer.max_steps`` batches of ``data.train_batch_size`` demonstrations.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    return to_the_end(sft_steps(config, resume=resume))


def sft_steps(config: Config, *, resume: bool = False) -> Steps:
    """The run of :func:`run_sft`, step by step."""
    records = load_training_records(config, assistant_text, resume=resume)
    config = with_epochs(config, records.count, config.data.train_batch_size)
    family = records.family
    with learning(config, family, records.media, build_sft, itself) as learner:

        def step(batch: Sequence[Sample]) -> StepStats:
            media = records.media
            return learner.step([demonstration(family, records.render(s), media) for s in batch])

        def snapshot(number: int) -> WriteCheckpoint:
            return learner.snapshot(config.trainer.async_save)

        task = OfflineTask(learner, config.data.train_batch_size, step, snapshot)
        return (yield from run_offline(config, records, task))


def build_sft(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> PolicyLearner[RolloutGroup]:
    """What learns from demonstrations."""
    return policy_learner(config, family, media, process_group, load, sft_step)


def sft_step(
    packed_model: PackedModel, optimizer: Optimizer, groups: Sequence[RolloutGroup]
) -> StepStats:
    """One optimizer step on the mean negative log-likelihood of the batch's tokens, in nats.

    With several ranks ``groups`` are this one's share of the batch, as in all such steps.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    packed_model.model.train()
    loss = add_nll_gradient(packed_model, groups)
    own = {"tokens": float(completion_mask(groups).sum())}
    lr = optimizer.lr
    return {
        "loss": loss,
        "grad_norm": optimizer.step(),
        "lr": lr,
        "tokens/completion": int(packed_model.process_group.total(own)["tokens"]),
    }
