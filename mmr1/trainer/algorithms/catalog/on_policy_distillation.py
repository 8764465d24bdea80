"""On-policy distillation: a teacher scores the tokens that the student sampled.

The reference of ``algorithm.ref_model_path`` is the teacher. Each token's advantage is the
teacher's log-prob less the student's: minus the one-sample estimate of the reverse KL at that token
(GKD, arXiv 2306.13649, with the student's samples alone; MiniLLM, arXiv 2306.08543). A token
answers for itself only: the KL of later tokens is not added. GRPO's advantage of the rewards is
added, so that rewards by rule can be mixed in. It is 0 where the rewards of a group are equal.

The exact KL over the vocabulary in the loss is any algorithm with ``kl_estimator: full``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmr1.config.algorithm_spec import AlgorithmSpec, Requirement

if TYPE_CHECKING:
    import torch

    from mmr1.config import AlgorithmConfig
    from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm


def build(config: AlgorithmConfig) -> Algorithm:
    from mmr1.trainer.algorithms.terms import clipped_algorithm

    return clipped_algorithm(_advantages, config)


def _advantages(x: AdvantageInputs) -> torch.Tensor:
    from mmr1.trainer.algorithms.advantages import grpo

    return (grpo(x.rewards, x.valid).flatten()[:, None] - x.kl_penalty) * x.mask


SPECS = (
    AlgorithmSpec(
        name="on_policy_distillation",
        advantage="β (log p_teacher − log p) of each token + GRPO's of the rewards",
        loss="clipped, mean over tokens",
        papers=("2306.13649", "2306.08543"),
        use="a stronger model of the same vocabulary is at hand",
        build=build,
        defaults={
            "kl_coef": 1.0,
            "use_kl_loss": False,
            "kl_estimator": "k1",
            "loss_agg_mode": "token-mean",
        },
        reads=("clip_ratio_low", "clip_ratio_high", "clip_ratio_dual", "importance_sampling_level"),
        compares_group=False,
        requires=(
            Requirement(
                lambda config: config.ref_model_path is not None,
                "on_policy_distillation learns from a teacher; name it in ref_model_path",
            ),
            Requirement(
                lambda config: not config.use_kl_loss and config.kl_estimator == "k1",
                "on_policy_distillation takes each token's log-ratio as its advantage; leave "
                "use_kl_loss and kl_estimator out, or choose name=grpo with kl_estimator=full for "
                "the KL over the vocabulary",
            ),
        ),
    ),
)
