"""GRPO with process supervision (arXiv 2402.03300, section 4.1.3): each step has a reward.

The function that ``algorithm.advantage.step_rewards`` names gives the rewards of the steps. The
completion's own reward is only logged.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from mmr1.algorithms import AdvantageConfig, advantage, kl_elsewhere, preset
from mmr1.algorithms.baselines import process_supervision
from mmr1.algorithms.interface import Advantage, AdvantageInputs
from mmr1.lazy import torch
from mmr1.section import Need


class ProcessAdvantage(AdvantageConfig):
    """Sum of the normalised step rewards from t on."""

    compares_group: ClassVar[bool] = True
    per_token: ClassVar[bool] = True
    per_step: ClassVar[bool] = True
    type: Literal["process"] = "process"
    step_rewards: str = Field(
        description="What rewards the steps of a completion: file.py:function, or a reward "
        "model of steps"
    )


@advantage(
    "process",
    paper="2402.03300",
    section=ProcessAdvantage,
    example={
        "settings": {"step_rewards": "x.py:f"},
        "rewards": [0, 0],
        "step_rewards": [[1.0], [0.0]],
        "step_ends": [[True], [True]],
        "advantages": [0.70711, -0.70711],
    },
    needs=(
        kl_elsewhere(
            "this advantage reads no reward that could hold a penalty",
            "algorithm.advantage.step_rewards=a.py:f",
        ),
        Need(
            ("algorithm.advantage.type", "algorithm.loss.importance"),
            lambda c: getattr(c.algorithm.loss, "importance", "") in ("token", "sequence"),
            "process supervision has per_decision weights, by which each step's reward is "
            "weighted, or another loss such as ppo",
            (
                "algorithm.advantage.step_rewards=a.py:f",
                "algorithm.loss={type: reinforce, importance: token}",
            ),
        ),
    ),
)
def build(section: ProcessAdvantage) -> Advantage:
    return Advantage(_of_tokens, step_supervision=True)


def _of_tokens(x: AdvantageInputs) -> torch.Tensor:
    assert x.step_rewards is not None, "process supervision needs step rewards"
    assert x.step_ends is not None
    shape = (*x.rewards.shape, -1)  # [G, n, R]
    ends = (x.step_ends & x.mask).view(shape)
    return process_supervision(x.step_rewards.view(shape), ends).flatten(0, 1) * x.mask


preset("process_grpo", "steps can be judged; see below", advantage="process")
