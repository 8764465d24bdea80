"""Pieces that algorithms are composed of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import losses
from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm, LossInputs
from mmr1.trainer.algorithms.kl import ESTIMATORS


def per_completion(
    advantage: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[AdvantageInputs], torch.Tensor]:
    """An advantage ``(rewards, valid) -> [G, n]`` as one of tokens: the same for all of them.

    A KL penalty in the reward is taken off before, summed over the completion.
    """

    def advantages(x: AdvantageInputs) -> torch.Tensor:
        found = advantage(penalised(x), x.valid).flatten()  # [B]
        return found[:, None] * x.mask

    return advantages


def penalised(x: AdvantageInputs) -> torch.Tensor:
    """Rewards ``[G, n]`` less the KL penalty of each completion's tokens."""
    return x.rewards - (x.kl_penalty * x.mask).sum(-1).view(x.rewards.shape)


def clipped_algorithm(
    advantages: Callable[[AdvantageInputs], torch.Tensor], config: AlgorithmConfig
) -> Algorithm:
    """These advantages under PPO's clipped loss: what most of the family differ in is the former.

    The rest of a paper's choices are values of the configuration, filled in when it is read.
    """
    return Algorithm(
        advantages=advantages,
        token_loss=partial(clipped_surrogate, config=config),
        loss_agg_mode=config.loss_agg_mode,
        metrics=partial(clip_metrics, config=config),
        needs_signal=needs_signal(config),
    )


def clipped_surrogate(x: LossInputs, config: AlgorithmConfig) -> torch.Tensor:
    """PPO's clipped loss ``[B, R]``; of tokens or of responses, dual-clipped where asked for."""
    new, old = ratio_logprobs(x, config)
    loss = losses.ppo_clip(new, old, x.advantages, config.clip_ratio_low, config.clip_ratio_high)
    if config.clip_ratio_dual is not None:
        loss = losses.dual_clip(loss, x.advantages, config.clip_ratio_dual)
    return regularised(loss, x, config)


def clip_metrics(x: LossInputs, config: AlgorithmConfig) -> dict[str, torch.Tensor]:
    """The share of tokens whose gradient the clip cut off."""
    clip = (config.clip_ratio_low, config.clip_ratio_high)
    clipped = losses.clip_fraction_mask(*ratio_logprobs(x, config), x.advantages, *clip)
    return {"clip_fraction": clipped.float()}


def ratio_logprobs(x: LossInputs, config: AlgorithmConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """New and old log-probs ``[B, R]`` whose difference is the ratio's logarithm."""
    if config.importance_sampling_level == "token":
        return x.logprobs, x.old_logprobs
    mean = config.importance_sampling_level == "sequence"
    return (
        losses.response_logprobs(x.logprobs, x.mask, mean),
        losses.response_logprobs(x.old_logprobs, x.mask, mean),
    )


def policy_gradient(x: LossInputs, config: AlgorithmConfig) -> torch.Tensor:
    """``-A log p``; after a rollout's first update with the clip or weights of ``importance``."""
    form = config.importance_sampling
    if config.ppo_epochs > 1 and form == "clip":
        return clipped_surrogate(x, config)
    loss = losses.policy_gradient(x.logprobs, x.advantages)
    if form != "clip" and form != "none":
        loss = loss * losses.importance_weights(x.logprobs, x.old_logprobs, x.mask, form)
    return regularised(loss, x, config)


def regularised(loss: torch.Tensor, x: LossInputs, config: AlgorithmConfig) -> torch.Tensor:
    """Add the KL term where it is in the loss, subtract the entropy bonus: ``[B, R]``."""
    if config.kl_coef > 0 and config.use_kl_loss:
        loss = loss + x.kl_coef * _kl(x, config)
    if config.entropy_coef > 0:
        loss = loss - x.entropy_coef * x.entropy
    return loss


def _kl(x: LossInputs, config: AlgorithmConfig) -> torch.Tensor:
    if config.kl_estimator == "full":
        assert x.full_kl is not None, "the update measures it"
        return x.full_kl
    assert x.ref_logprobs is not None, "a KL term needs reference log-probs"
    return ESTIMATORS[config.kl_estimator](x.logprobs, x.ref_logprobs)


def needs_signal(config: AlgorithmConfig) -> bool:
    """Is the advantage the only source of a gradient?"""
    return config.entropy_coef == 0 and (config.kl_coef == 0 or not config.use_kl_loss)
