"""``algorithm.kl``: the KL to a reference policy, and that reference."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mmr1.config.advantages import ServedModel, TeacherModel
from mmr1.config.section import Coefficient, Fraction, Positive, Section, Share

Estimator = Literal["k1", "k2", "k3", "absolute", "k1_forward", "k3_forward"]
OFFLOAD = "Keep the reference in main memory except while it computes log-probs"
SYNC = "Copy the policy to the reference after every so many steps"
MIXUP = "Share of the policy in that copy; below 1 the reference moves part of the way"


class InitialReference(Section):
    """The policy at the start."""

    type: Literal["initial"] = "initial"
    offload: bool = Field(False, description=OFFLOAD)


class MovingReference(Section):
    """The policy, copied now and then."""

    type: Literal["moving"] = "moving"
    sync_steps: Positive = Field(description=SYNC)
    mixup_alpha: Share = Field(1.0, description=MIXUP)
    offload: bool = Field(False, description=OFFLOAD)


class NearInitialReference(Section):
    """The policy at the start, which stays beside the policy."""

    type: Literal["initial"] = "initial"
    offload: ClassVar[bool] = False


class NearModelReference(Section):
    """A model that stays beside the policy, such as a teacher."""

    type: Literal["model"] = "model"
    path: str = Field(description="Model directory, or name on the Hub")
    offload: ClassVar[bool] = False


class NearMovingReference(Section):
    """The policy, copied now and then, which stays beside the policy."""

    type: Literal["moving"] = "moving"
    sync_steps: Positive = Field(description=SYNC)
    mixup_alpha: Share = Field(1.0, description=MIXUP)
    offload: ClassVar[bool] = False


Reference = Annotated[
    InitialReference | TeacherModel | MovingReference | ServedModel, Field(discriminator="type")
]
NearReference = Annotated[
    NearInitialReference | NearModelReference | NearMovingReference, Field(discriminator="type")
]


class KlConfig(Section):
    """The KL to a reference policy."""

    coef: Coefficient = Field(description="Coefficient, above 0; algorithm.kl=null is off")
    target: Coefficient | None = Field(
        None, description="Adapt coef to this KL per token; null: it is fixed"
    )


class KlLoss(KlConfig):
    """A term of the loss."""

    type: Literal["loss"] = "loss"
    estimator: Estimator = Field("k3", description="Estimator of the sampled tokens")
    use_bias_correction_kl: bool = Field(
        False, description="Multiply the term by the ratio to the policy that sampled (as in TRL)"
    )
    reference: Reference = Field(
        default_factory=InitialReference, description="What the policy is compared with"
    )


class KlReward(KlConfig):
    """A penalty in the reward."""

    type: Literal["reward"] = "reward"
    estimator: Estimator = Field("k1", description="Estimator of the sampled tokens")
    reference: Reference = Field(
        default_factory=InitialReference, description="What the policy is compared with"
    )


class KlFull(KlConfig):
    """The exact divergence over the whole vocabulary, a term of the loss."""

    type: Literal["full"] = "full"
    jsd_beta: Fraction = Field(
        1.0,
        description="GKD's divergence: 1 KL(policy || reference), 0 KL(reference || policy), "
        "between them the generalized Jensen-Shannon divergence (TRL: beta of GKD)",
    )
    reference: NearReference = Field(
        default_factory=NearInitialReference, description="What the policy is compared with"
    )


Kl = Annotated[KlLoss | KlReward | KlFull, Field(discriminator="type")]
