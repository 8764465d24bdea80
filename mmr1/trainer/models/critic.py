"""The critic of PPO: the expected return at every token, and how it learns to predict it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from mmr1.algorithms.critic import CriticConfig
from mmr1.algorithms.ratios import value_loss
from mmr1.config import Config, ModelConfig
from mmr1.trainer.forward.micro_batches import MicroBatch, ProcessGroup, mini_batch_rows
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import LoadModel, build_packed_model, feature_cache, load_here
from mmr1.trainer.models.optimizer import Optimizer, averaged, check_finite
from mmr1.trainer.models.packed_model import total_loss
from mmr1.trainer.models.scalar_model import PackedScalarModel, rewards_of
from mmr1.trainer.models.state import (
    TRAINING,
    Digests,
    WriteCheckpoint,
    copies,
    load_tensors,
    save_tensors,
    sync_and_digest,
)
from mmr1.types import CriticTargets, Experience, Metric, MiniBatch, RolloutGroup, StepStats

FOLDER = f"{TRAINING}/critic"


class Critic(Protocol):
    """The protocol of a critic, in one process or on many."""

    def values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient: the value of the state before each token."""
        ...

    def final_values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B]`` float32 without gradient: the value of the state after the last token."""
        ...

    def update(self, experience: Experience) -> StepStats:
        """Learn the batch's returns; gives what to log.

        Raises:
            NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
        """
        ...

    def snapshot(self, copy: bool = False) -> WriteCheckpoint:
        """A function that writes the present critic into a checkpoint; see ``state.py``."""
        ...

    def load_snapshot(self, checkpoint: Path) -> None:
        """Become the critic of a checkpoint, its optimizer included."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class LocalCritic:
    """A value head on a vision-language model of its own: the critic of a single process, or a
    rank's part of it.
    """

    def __init__(
        self,
        scalar_model: PackedScalarModel,
        optimizer: Optimizer,
        passes: int,
        clip: float | None,
        mini_batch_size: int | None = None,
    ) -> None:
        self._scalar_model = scalar_model
        self.optimizer = optimizer
        self._passes = passes
        self._clip = clip
        self._mini_batch_size = mini_batch_size

    def values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._scalar_model.group_values(groups)

    def final_values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return rewards_of(replace(self._scalar_model, read="at"), groups)

    def update(self, experience: Experience) -> StepStats:
        if not experience.tokens.mask.any():  # nothing to learn; a new head is fitted later
            return {}
        line = first_fit(experience) if self.steps_taken() == 0 else None
        learnt = self.learn(critic_experience(experience, self._mini_batch_size), line)
        return {**critic_stats(experience), **learnt}

    def steps_taken(self) -> int:
        """Optimizer steps so far."""
        return self.optimizer.steps_taken

    def learn(self, experience: Experience, line: tuple[float, float] | None) -> StepStats:
        """Make several passes over the batch, with an optimizer step for each mini-batch.

        Args:
            experience: Experience of :func:`of_critic`; with several ranks this one's groups.
            line: Line to put the head's values on first; from :func:`first_fit`.
        """
        self._scalar_model.model.train()
        if line is not None:
            experience = self._fit_head(experience, *line)
        groups = [scored.group for scored in experience.groups]
        mini_batches = []
        for learning in (mini_batch.learning for mini_batch in experience.mini_batches):
            batches = self._scalar_model.packed_model.batches(groups, learning)
            mini_batches.append((experience.tokens.mask & learning[:, None], batches))
        steps: list[StepStats] = []
        for _ in range(self._passes):
            for mask, batches in mini_batches:
                loss = self._accumulate(experience, mask, batches)
                steps.append({"loss": loss, **self.optimizer.step()})
        return {f"critic/{name}": value for name, value in averaged(steps).items()}

    @torch.no_grad()
    def _fit_head(self, experience: Experience, slope: float, offset: float) -> Experience:
        """Scale and shift the head; the batch with its new values, around which the update is
        clipped.
        """
        mask, head = experience.tokens.mask, self._scalar_model.model.head
        head.weight.mul_(slope)
        head.bias.mul_(slope).add_(offset)
        self.optimizer.parameters_changed()
        targets = _targets(experience)
        values = (slope * targets.values + offset) * mask
        return replace(experience, critic=replace(targets, values=values))

    def snapshot(self, copy: bool = False) -> WriteCheckpoint:
        tensors = self.optimizer.tensors()
        if copy:
            tensors = copies(tensors)
        return partial(_write_files, tensors, self._scalar_model.packed_model.process_group)

    def load_snapshot(self, checkpoint: Path) -> None:
        load_tensors(checkpoint / FOLDER, self.optimizer.tensors())
        self.optimizer.tensors_loaded()

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])

    def _accumulate(
        self, experience: Experience, mask: torch.Tensor, batches: Sequence[MicroBatch]
    ) -> float:
        """Add the gradient of the mean loss over tokens of ``mask`` ``[B, R]``; return the loss.

        Both are those of all ranks together.
        """
        targets = _targets(experience)
        packed_model = self._scalar_model.packed_model
        group = packed_model.process_group
        weights = mask / max(group.total({"tokens": float(mask.sum())})["tokens"], 1)
        losses = []
        for batch in batches:
            values = self._scalar_model.values(batch)
            own, old, returns = (
                x[batch.rows, : values.shape[1]].to(values)
                for x in (weights, targets.values, targets.returns)
            )
            loss = (own * value_loss(values, old, returns, self._clip)).sum()
            packed_model.backward(loss)
            losses.append({"loss": Metric(loss, reduce="sum")})
        mean = total_loss(group, losses)
        if not math.isfinite(mean):
            self.optimizer.zero_grad()
        check_finite(mean)
        return mean


def _write_files(tensors: Mapping[str, torch.Tensor], group: ProcessGroup, folder: Path) -> Digests:
    return sync_and_digest(folder, save_tensors(folder / FOLDER, tensors, group.saving))


def build_critic(
    config: Config,
    inputs: ModelInputs,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> LocalCritic | None:
    """The critic of ``algorithm.advantage.critic``, or None; adapters where the policy has them.

    Raises:
        ValueError: If the critic's path has no model.
    """
    critic = config.algorithm.critic
    if critic is None:
        return None
    frozen = dict.fromkeys(config.optimizer.frozen_parts, 0.0)
    model = load(
        critic_model(config, critic),
        True,
        "algorithm.advantage.critic.path",
        head=True,
        lr_of_parts=frozen,
    )
    # Its tower may be another than the policy's, so it keeps features of its own.
    features = feature_cache(config)
    backbone = build_packed_model(config, model.backbone, inputs, None, features, process_group)
    warmup_steps = config.optimizer.scheduler.warmup_steps
    settings = config.optimizer.changed(
        lr=critic.lr,
        scheduler={"type": "constant", "warmup_steps": warmup_steps},
        lr_of_parts={},
    )
    passes = critic.ppo_epochs or config.algorithm.ppo_epochs
    optimizer = Optimizer(model, settings, config.trainer.steps * passes * config.mini_batches)
    return LocalCritic(
        PackedScalarModel(model, backbone, "before"),
        optimizer,
        passes,
        critic.cliprange_value,
        config.algorithm.ppo_mini_batch_size,
    )


def critic_model(config: Config, critic: CriticConfig) -> ModelConfig:
    """The model of a critic: like the policy's, with adapters where that has some."""
    lora = config.model.lora and config.model.lora.as_new()
    return config.model.changed(path=critic.path or config.model.path, lora=lora)


def critic_experience(experience: Experience, mini_batch_size: int | None) -> Experience:
    """A batch in the critic's mini-batches, of which all groups learn that have a token."""
    learning = experience.tokens.mask.any(dim=1)
    rows = mini_batch_rows(experience.groups, mini_batch_size)
    return replace(experience, mini_batches=tuple(MiniBatch(own & learning) for own in rows))


def first_fit(experience: Experience) -> tuple[float, float]:
    """Slope and offset that make a new head's values fit the returns by least squares.

    Else the whole network would learn their mean and scale first, by making its states alike: a
    head of zeros has neither, and a reward model's numbers are of a scale of their own.
    """
    mask, targets = experience.tokens.mask, _targets(experience)
    return fit_line(targets.values[mask], targets.returns[mask])


def _targets(experience: Experience) -> CriticTargets:
    assert experience.critic is not None, "an algorithm with a critic gives it targets"
    return experience.critic


def critic_stats(experience: Experience) -> StepStats:
    """How good the critic was before the update, over the tokens that count."""
    mask, targets = experience.tokens.mask, _targets(experience)
    if not mask.any():
        return {}
    values, returns = targets.values[mask], targets.returns[mask]
    stats = {"critic/value": float(values.mean()), "critic/return": float(returns.mean())}
    explained = explained_variance(values, returns)
    return stats if explained is None else {**stats, "critic/explained_variance": explained}


def fit_line(x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Slope and offset of the least-squares line ``[N] -> [N]``; slope 1 where x is constant.

    Of no points it is the identity.

    >>> fit_line(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 3.0, 5.0]))
    (2.0, 1.0)
    """
    if not len(x):
        return 1.0, 0.0
    spread = x - x.mean()
    variance = float(spread.square().mean())
    slope = float((spread * y).mean()) / variance if variance > 0 else 1.0
    return slope, float(y.mean()) - slope * float(x.mean())


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float | None:
    """``1 - Var(returns - values) / Var(returns)``; None where the returns are all equal.

    1 is a perfect critic, 0 one that is worth no more than a constant.

    >>> explained_variance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))
    0.75
    """
    variance = float(returns.var(correction=0))
    return 1 - float((returns - values).var(correction=0)) / variance if variance > 0 else None
