"""The advantages and the losses, one file for each or for a family with the same body.

Each has a function that makes an ``Advantage`` or a ``Loss`` from the section of the configuration
that it reads. The two tables below say which function is whose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mmr1.algorithms.catalog import (
    cispo,
    covariance,
    custom,
    distillation,
    gae,
    gigpo,
    group,
    ppo,
    process,
    reinforce,
    reinforce_pp,
    remax,
    sapo,
)
from mmr1.algorithms.interface import Advantage, Loss
from mmr1.config import (
    AdvantageConfig,
    CispoLoss,
    ClipCovLoss,
    CustomAdvantage,
    CustomLoss,
    DistillationAdvantage,
    GaeAdvantage,
    GdpoAdvantage,
    GigpoAdvantage,
    GpgAdvantage,
    GrpoAdvantage,
    GspoLoss,
    KlCovLoss,
    LossConfig,
    OptimalBaselineAdvantage,
    PassAtKAdvantage,
    PpoKlLoss,
    PpoLoss,
    ProcessAdvantage,
    ReinforceAdvantage,
    ReinforceLoss,
    ReinforcePpAdvantage,
    ReinforcePpBaselineAdvantage,
    RemaxAdvantage,
    RlooAdvantage,
    SapoLoss,
    SequencePpoLoss,
)

ADVANTAGES: Mapping[type[AdvantageConfig], Callable[[Any], Advantage]] = MappingProxyType(
    {
        GrpoAdvantage: group.build_grpo,
        RlooAdvantage: group.build_rloo,
        PassAtKAdvantage: group.build_pass_at_k,
        OptimalBaselineAdvantage: group.build_optimal_baseline,
        GpgAdvantage: group.build_gpg,
        GdpoAdvantage: group.build_gdpo,
        ReinforceAdvantage: reinforce.build_advantage,
        ReinforcePpAdvantage: reinforce_pp.build,
        ReinforcePpBaselineAdvantage: reinforce_pp.build_with_baseline,
        RemaxAdvantage: remax.build,
        GaeAdvantage: gae.build,
        ProcessAdvantage: process.build,
        DistillationAdvantage: distillation.build,
        GigpoAdvantage: gigpo.build,
        CustomAdvantage: custom.build_advantage,
    }
)
LOSSES: Mapping[type[LossConfig], Callable[[Any], Loss]] = MappingProxyType(
    {
        PpoLoss: ppo.build,
        PpoKlLoss: ppo.build_with_kl,
        GspoLoss: ppo.build_gspo,
        SequencePpoLoss: ppo.build_of_sequences,
        CispoLoss: cispo.build,
        SapoLoss: sapo.build,
        ClipCovLoss: covariance.build_clip_cov,
        KlCovLoss: covariance.build_kl_cov,
        ReinforceLoss: reinforce.build_loss,
        CustomLoss: custom.build_loss,
    }
)


def build_advantage(section: AdvantageConfig) -> Advantage:
    """The advantage of ``algorithm.advantage``.

    Raises:
        ValueError: A custom one cannot be loaded, or is something else.
    """
    return ADVANTAGES[type(section)](section)


def build_loss(section: LossConfig) -> Loss:
    """The loss of ``algorithm.loss``.

    Raises:
        ValueError: A custom one cannot be loaded, or is something else.
    """
    return LOSSES[type(section)](section)
