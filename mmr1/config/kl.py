"""``algorithm.kl``: the KL to a reference policy, and that reference."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mmr1.algorithms.advantages.distillation import ServedModel, TeacherModel
from mmr1.section import Coefficient, Fraction, Need, Positive, Section, Share

Estimator = Literal["k1", "k2", "k3", "absolute", "k1_forward", "k3_forward"]


class _Apart(Section):
    offload: bool = Field(
        False, description="Keep the reference in main memory except while it computes log-probs"
    )


class InitialReference(_Apart):
    """The policy at the start."""

    type: Literal["initial"] = "initial"


class MovingReference(_Apart):
    """The policy, copied now and then."""

    type: Literal["moving"] = "moving"
    sync_steps: Positive = Field(description="Copy the policy to it after every so many steps")
    mixup_alpha: Share = Field(
        1.0,
        description="Share of the policy in that copy; below 1 the reference moves part of the way",
    )


Reference = Annotated[
    InitialReference | TeacherModel | MovingReference | ServedModel, Field(discriminator="type")
]


class KlConfig(Section):
    """The KL to a reference policy."""

    coef: Coefficient = Field(description="Coefficient, above 0; algorithm.kl=null is off")
    target: Coefficient | None = Field(
        None, description="Adapt coef to this KL per token; null: it is fixed"
    )
    reference: Reference = Field(
        default_factory=InitialReference, description="What the policy is compared with"
    )


def _biased_kl(c: Any) -> bool:
    kl = c.algorithm.kl
    return isinstance(kl, KlLoss) and kl.estimator == "k1" and not kl.use_bias_correction_kl


class KlLoss(KlConfig):
    """A term of the loss."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("algorithm.kl.type", "algorithm.kl.estimator"),
            _biased_kl,
            "in the loss the expected gradient of k1 is 0; set estimator to k2 or k3, or "
            "kl.type=reward",
            ("algorithm.kl.coef=0.1", "algorithm.kl.estimator=k1"),
            warns=True,
        ),
    )

    type: Literal["loss"] = "loss"
    estimator: Estimator = Field("k3", description="Estimator of the sampled tokens")
    use_bias_correction_kl: bool = Field(
        False, description="Multiply the term by the ratio to the policy that sampled (as in TRL)"
    )


class KlReward(KlConfig):
    """A penalty in the reward."""

    type: Literal["reward"] = "reward"
    estimator: Estimator = Field("k1", description="Estimator of the sampled tokens")


class KlFull(KlConfig):
    """The exact divergence over the whole vocabulary, a term of the loss."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("algorithm.kl.type", "algorithm.kl.reference.type"),
            lambda c: isinstance(c.algorithm.kl, KlFull) and c.algorithm.reference_is_served,
            "a server gives log-probs of sampled tokens only, and the divergence needs those of "
            "the whole vocabulary; set kl.type=loss, or load the reference",
            ("algorithm.kl={type: full, coef: 1, reference: {type: server, url: 'http://a'}}",),
        ),
        Need(
            ("algorithm.kl.type", "algorithm.kl.reference.offload"),
            lambda c: (
                isinstance(c.algorithm.kl, KlFull)
                and getattr(c.algorithm.reference, "offload", False)
            ),
            "its reference is asked in each pass of the policy, and stays beside it; leave offload "
            "out",
            ("algorithm.kl={type: full, coef: 1, reference: {offload: true}}",),
        ),
    )

    type: Literal["full"] = "full"
    jsd_beta: Fraction = Field(
        1.0,
        description="GKD's divergence (TRL: beta of GKD). 1: KL(policy || reference), 0: "
        "KL(reference || policy), between: the generalized Jensen-Shannon divergence",
    )


Kl = Annotated[KlLoss | KlReward | KlFull, Field(discriminator="type")]
