"""What of a run goes into a checkpoint, and how it comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from mmr1.config import Config
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.models.state import (
    TRAINING,
    HasState,
    copies,
    load_progress,
    load_tensors,
    progress,
    save_progress,
    save_tensors,
)


def snapshot(config: Config, parts: TrainerComponents, step: int) -> Callable[[Path], None]:
    """What writes the run as it is after ``step`` into a checkpoint's folder."""
    in_background = config.trainer.save_in_background
    policy = parts.policy.snapshot(copy=in_background)
    critic = parts.critic and parts.critic.snapshot(copy=in_background)
    state = progress(step, _carried(parts))
    # A reference that is not refreshed is the model that the run was started with.
    reference: Mapping[str, torch.Tensor] = {}
    if parts.reference is not None and config.algorithm.reference_refresh > 0:
        reference = parts.reference.weights()
        if in_background:
            reference = copies(reference)

    def fill(folder: Path) -> None:
        policy(folder)
        if critic:
            critic(folder)
        save_progress(folder, state)
        if reference:
            save_tensors(folder / TRAINING / "reference", reference)

    return fill


def restore(checkpoint: Path, parts: TrainerComponents) -> int:
    """Put every part back to where it was; the step after which that was.

    Raises:
        ValueError: The model or the data are others than those of the checkpoint.
    """
    parts.policy.load_snapshot(checkpoint)
    if parts.critic:
        parts.critic.load_snapshot(checkpoint)
    step = load_progress(checkpoint, _carried(parts))
    reference = checkpoint / TRAINING / "reference"
    if parts.reference is not None and reference.exists():
        weights = dict(parts.reference.weights())
        load_tensors(reference, weights)
        parts.reference.load_weights(weights)
    parts.rollout.load_weights(parts.policy.weights(), parts.policy.version)
    return step


def _carried(parts: TrainerComponents) -> dict[str, HasState]:
    carried: dict[str, HasState] = {
        "policy": parts.policy,
        "sampler": parts.sampler,
        "coefficients": parts.coefficients,
        "algorithm": parts.algorithm,
    }
    return {**carried, "critic": parts.critic} if parts.critic else carried
