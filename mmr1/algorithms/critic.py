"""The section of a critic, which an advantage may have."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from mmr1.section import Coefficient, Count, Need, Positive, Section


def _only_warm_up(c: Any) -> bool:
    known = c.trainer.max_steps is not None
    return known and c.policy_steps <= 0


class CriticConfig(Section):
    """The critic: a second vision-language model with a value head.

    Betas, weight decay and gradient norm of its AdamW are those of the ``optimizer`` section.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("algorithm.advantage.critic.warmup_steps", "trainer.max_steps"),
            _only_warm_up,
            "the policy would never learn; lower the first or raise the second",
            ("algorithm=ppo", "algorithm.advantage.critic.warmup_steps=100"),
        ),
    )

    path: str | None = Field(
        None,
        description="Initial weights: a model, or a reward model; null: model.path",
    )
    lr: Coefficient = Field(
        1e-5, description="Learning rate, constant after optimizer.scheduler.warmup_steps"
    )
    cliprange_value: Coefficient | None = Field(
        0.2, description="Largest change of a value per rollout; null: no clip"
    )
    ppo_epochs: Positive | None = Field(
        None, description="Its passes over a rollout; null: algorithm.ppo_epochs"
    )
    bootstrap_truncated: bool = Field(
        False,
        description="A completion that the limit cut off continues with the critic's value; else "
        "its return ends with it",
    )
    warmup_steps: Count = Field(
        0, description="First steps, in which the critic is updated and the policy is not"
    )
