"""``trainer.max_epochs``: the length of a run in passes over the data."""

from __future__ import annotations

import math

from mmr1.config import Config


def with_epochs(config: Config, samples: int, batch_size: int) -> Config:
    """The configuration with ``trainer.max_steps`` set by ``trainer.max_epochs``.

    A run that is given both ends with whichever comes first. An epoch is as many steps as the
    batches that the samples fill, the last one perhaps not whole.

    Args:
        samples: Those of all datasets of ``data.train`` together.
        batch_size: Samples that a step takes.

    Raises:
        ValueError: The number of steps does not fit other keys.
    """
    trainer = config.trainer
    if trainer.max_epochs is None:
        return config
    steps = math.ceil(trainer.max_epochs * samples / batch_size)
    if "max_steps" in trainer.model_fields_set:
        steps = min(steps, trainer.max_steps)
    resolved = config.model_copy(
        update={"trainer": trainer.model_copy(update={"max_steps": max(1, steps)})}
    )
    resolved.check_steps()
    return resolved
