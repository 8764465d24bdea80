"""The checkpoint of a whole run: what goes into it, and how a run resumes from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from mmr1.config import Config
from mmr1.trainer.components import TrainerComponents
from mmr1.trainer.models.digests import Digests
from mmr1.trainer.models.state import (
    TRAINING,
    HasState,
    WriteCheckpoint,
    copy_to_cpu,
    load_progress,
    load_tensors,
    progress,
    save_progress,
    save_tensors,
)
from mmr1.trainer.runs.step import Step


def snapshot(config: Config, components: TrainerComponents, step: Step) -> WriteCheckpoint:
    """A function that writes the state after ``step`` into a checkpoint's folder."""
    in_background = config.trainer.async_save
    if config.trainer.save_only_model:
        return components.policy.snapshot(copy=in_background, only_model=True)
    policy = components.policy.snapshot(copy=in_background)
    critic = components.critic.snapshot(copy=in_background) if components.critic else None
    state = {**progress(step.number, _of_updates(components)), **step.rollout_state()}
    # A reference that is not refreshed is the model that the run was started with.
    reference: Mapping[str, torch.Tensor] = {}
    if components.reference is not None and config.algorithm.ref_model_sync_steps > 0:
        reference = components.reference.weights()
        if in_background:
            reference = copy_to_cpu(reference)

    def write_files(folder: Path) -> Digests:
        digests = policy(folder)
        if critic:
            digests |= critic(folder)
        save_progress(folder, state)
        if reference:
            save_tensors(folder / TRAINING / "reference", reference)
        return digests

    return write_files


def restore(checkpoint: Path, components: TrainerComponents) -> int:
    """Restore every component; returns the step after which the checkpoint was written.

    Raises:
        ValueError: The model or the data are others than those of the checkpoint, or it is a model
            alone.
    """
    if not (checkpoint / TRAINING).is_dir():
        raise ValueError(
            f"{checkpoint} is a model alone (trainer.save_only_model), from which no run can "
            "resume; start a new run with it as model.path"
        )
    components.policy.load_snapshot(checkpoint)
    if components.critic:
        components.critic.load_snapshot(checkpoint)
    step = load_progress(checkpoint, _of_updates(components) | _of_rollouts(components))
    reference = checkpoint / TRAINING / "reference"
    if components.reference is not None and reference.exists():
        weights = dict(components.reference.weights())
        load_tensors(reference, weights)
        components.reference.load_weights(weights)
    # A copy: an engine that is replaced while the ranks learn gets the weights that it had.
    components.rollout.load_weights(components.policy.weights(copy=True), components.policy.version)
    return step


def _of_updates(components: TrainerComponents) -> dict[str, HasState]:
    """What a step's update moves on."""
    carried: dict[str, HasState] = {
        "policy": components.policy,
        "coefficients": components.coefficients,
        "algorithm": components.algorithm,
    }
    if components.critic:
        carried["critic"] = components.critic
    if components.demonstrations:
        carried["demonstrations"] = components.demonstrations
    return carried


def _of_rollouts(components: TrainerComponents) -> dict[str, HasState]:
    """What rollouts move on, which may be ahead of the update; see ``loop.rollout_state``."""
    carried: dict[str, HasState] = {"sampler": components.loader}
    if components.replay:
        carried["replay"] = components.replay
    return carried
