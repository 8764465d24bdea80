"""AdamW, its learning-rate schedule, and a step that refuses numbers that are not finite."""

from __future__ import annotations

import math
from typing import Any

import torch

from mmr1.config import OptimizerConfig


class NonFiniteError(RuntimeError):
    """A loss or gradient is NaN or infinite; the weights were left as they are."""


def check_finite(loss: torch.Tensor) -> float:
    """The loss as a number.

    Raises:
        NonFiniteError: It is NaN or infinite; called before the gradient is computed.
    """
    value = float(loss.detach())
    if not math.isfinite(value):
        raise NonFiniteError(
            f"the loss is {value}; the weights were not changed. Lower optimizer.lr, or look at "
            "the last rollouts for what caused it"
        )
    return value


class Optimizer:
    """AdamW over the trainable parameters of a model, for a known number of steps.

    Parameters in half precision are updated through a float32 master copy: steps of RL are often
    smaller than what bfloat16 can hold beside the weight, and would be rounded away.
    """

    def __init__(self, model: torch.nn.Module, config: OptimizerConfig, steps: int) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._masters = [
            p if p.dtype == torch.float32 else p.detach().float() for p in self._parameters
        ]
        self._max_grad_norm = config.max_grad_norm
        self.adamw = torch.optim.AdamW(
            self._masters,
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.adamw, lambda step: schedule_factor(step, steps, config)
        )

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return float(self.schedule.get_last_lr()[0])

    def step(self) -> float:
        """Clip the accumulated gradient by its global norm and step; returns that norm.

        Raises:
            NonFiniteError: The norm is not finite. Nothing was changed.
        """
        self._gradients_to_masters()
        norm = float(torch.nn.utils.clip_grad_norm_(self._masters, self._max_grad_norm))
        if not math.isfinite(norm):
            self.adamw.zero_grad()
            raise NonFiniteError(
                f"the gradient's norm is {norm}; the weights were not changed. Lower "
                "optimizer.lr, or look at the last rollouts for what caused it"
            )
        self.adamw.step()
        self.schedule.step()
        self.adamw.zero_grad()
        self._masters_to_parameters()
        return norm

    def _gradients_to_masters(self) -> None:
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter and parameter.grad is not None:
                master.grad = parameter.grad.float()
                parameter.grad = None

    @torch.no_grad()
    def _masters_to_parameters(self) -> None:
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        return {"adamw": self.adamw.state_dict(), "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["adamw"])
        self.schedule.load_state_dict(state["schedule"])


def schedule_factor(step: int, steps: int, config: OptimizerConfig) -> float:
    """Share of the full learning rate at ``step`` (from 0): linear warm-up, then the schedule.

    >>> config = OptimizerConfig(warmup_steps=2, schedule="linear")
    >>> [schedule_factor(s, 6, config) for s in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return max(0.0, 1 - progress)
