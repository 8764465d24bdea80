"""On-policy distillation: a teacher scores the tokens that the student sampled.

Each token's advantage is the log-prob of ``algorithm.advantage.teacher`` less the student's: minus
the one-sample estimate of the reverse KL at that token (GKD, arXiv 2306.13649, with the student's
samples alone; MiniLLM, arXiv 2306.08543). A token answers for itself only: the KL of later tokens
is not added. GRPO's advantage of the rewards is added, so that rewards by rule can be mixed in. It
is 0 where the rewards of a group are equal.

The exact KL over the vocabulary in the loss is any algorithm with ``algorithm.kl.type: full``.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mmr1.algorithms import RewardAdvantage, advantage, preset
from mmr1.algorithms.baselines import grpo
from mmr1.algorithms.interface import Advantage, AdvantageInputs
from mmr1.lazy import torch
from mmr1.section import Coefficient, Need, Section, Url


class ServedModel(Section):
    """A model behind a vLLM server."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("algorithm.kl.reference.type", "rollout.temperature"),
            lambda c: c.algorithm.reference_is_served and c.rollout.temperature != 1,
            "a server gives log-probs at temperature 1; set rollout.temperature=1, or name a model "
            "directory",
            (
                "algorithm.kl.coef=1",
                "algorithm.kl.reference.type=server",
                "algorithm.kl.reference.url=http://a",
                "rollout.temperature=0.7",
            ),
        ),
        Need(
            ("algorithm.kl.reference.type", "rollout.top_p"),
            lambda c: c.algorithm.reference_is_served and c.rollout.cuts,
            "a server gives log-probs over all tokens, and the policy's are over those that top_p, "
            "top_k and min_p keep; leave these out, or name a model directory",
            (
                "algorithm.kl.coef=1",
                "algorithm.kl.reference.type=server",
                "algorithm.kl.reference.url=http://a",
                "rollout.top_p=0.9",
            ),
        ),
    )

    type: Literal["server"] = "server"
    url: Url = Field(description="Its address; it gives log-probs of sampled tokens only")


class TeacherModel(Section):
    """A teacher that this run loads."""

    type: Literal["model"] = "model"
    path: str = Field(description="Model directory, or name on the Hub")
    offload: bool = Field(
        False, description="Keep it in main memory except while it computes log-probs"
    )


Teacher = Annotated[TeacherModel | ServedModel, Field(discriminator="type")]


class DistillationAdvantage(RewardAdvantage):
    """coef (log p_teacher − log p) of each token, and GRPO's advantage of the rewards."""

    type: Literal["distillation"] = "distillation"
    coef: Coefficient = Field(1.0, description="Coefficient of log p_teacher − log p")
    teacher: Teacher = Field(description="The model whose log-probs are learned")


@advantage(
    "distillation",
    paper=("2306.13649", "2306.08543"),
    section=DistillationAdvantage,
    example={
        "settings": {"teacher": {"path": "teacher"}},
        "rewards": [1, 1],
        "kl_penalty": [[0.1], [0.2]],
        "advantages": [-0.1, -0.2],
    },
    needs=(
        Need(
            ("algorithm.advantage.type", "algorithm.kl"),
            lambda c: c.algorithm.kl is not None,
            "the teacher is the one reference model that can be loaded; leave algorithm.kl out",
            ("algorithm.advantage.teacher={path: t}", "algorithm.kl.coef=1"),
        ),
    ),
)
def build(section: DistillationAdvantage) -> Advantage:
    """The advantage of distillation; ``section.coef`` is in the penalty that the loop gives."""
    return Advantage(_of_tokens)


def _of_tokens(x: AdvantageInputs) -> torch.Tensor:
    return (grpo(x.rewards, x.valid).flatten()[:, None] - x.kl_penalty) * x.mask


preset(
    "on_policy_distillation",
    "a stronger model of the same vocabulary is at hand",
    advantage="distillation",
)
