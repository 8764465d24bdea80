"""``mmr1 sft``: supervised fine-tuning, loss on the assistant's tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mmr1.config import Config
from mmr1.data.responses import assistant_text, demonstration
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.models.loading import build_packed_model, load_trainable
from mmr1.trainer.models.nll import add_nll_gradient
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.state import model_snapshot
from mmr1.trainer.offline.training import OfflineTask, load_training_records, run_offline
from mmr1.trainer.runs.epochs import with_epochs
from mmr1.types import RolloutGroup, Sample, StepStats


def run_sft(config: Config, *, resume: bool = False) -> Path:
    """Fine-tune for ``trainer.max_steps`` batches of ``sft.batch_size`` demonstrations.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    records = load_training_records(config, assistant_text, resume=resume)
    config = with_epochs(config, records.count, config.sft.batch_size)
    family = records.family
    model = load_trainable(config.model)
    packed_model = build_packed_model(config, model, records.inputs, temperature=1.0)
    optimizer = Optimizer(model, config.optimizer, config.trainer.max_steps)

    def step(batch: Sequence[Sample]) -> StepStats:
        groups = [demonstration(family, records.render(sample)) for sample in batch]
        return sft_step(packed_model, optimizer, groups)

    copy = config.trainer.async_save
    write = partial(model_snapshot, model, family.processor, optimizer, copy)
    task = OfflineTask(optimizer, config.sft.batch_size, step, lambda number: write())
    return run_offline(config, records, task)


def sft_step(
    packed_model: PackedModel, optimizer: Optimizer, groups: Sequence[RolloutGroup]
) -> StepStats:
    """One optimizer step on the mean negative log-likelihood of the batch's tokens, in nats.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    packed_model.model.train()
    loss = add_nll_gradient(packed_model, groups)
    lr = optimizer.lr
    return {
        "loss": loss,
        "grad_norm": optimizer.step(),
        "lr": lr,
        "tokens/completion": int(completion_mask(groups).sum()),
    }
