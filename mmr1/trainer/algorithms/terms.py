"""The parts of which algorithms are composed: losses with their terms, advantages per token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import advantages, losses
from mmr1.trainer.algorithms.algorithm import AdvantageInputs, Algorithm, LossInputs
from mmr1.trainer.algorithms.kl import ESTIMATORS, bounded, k3

Metrics = Callable[[LossInputs], dict[str, torch.Tensor]]
"""Tensors ``[B, R]`` to log as token means, by metric name."""


def per_completion(
    advantage: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[AdvantageInputs], torch.Tensor]:
    """Gives each token of a completion the advantage ``(rewards, valid) -> [G, n]`` of the whole.

    With ``use_kl_loss: false`` each reward is first reduced by the completion's KL penalty.
    """

    def of_tokens(x: AdvantageInputs) -> torch.Tensor:
        return advantage(penalised(x), x.valid).flatten()[:, None] * x.mask

    return of_tokens


def discounted(
    of_tokens: Callable[[AdvantageInputs], torch.Tensor], gamma: float
) -> Callable[[AdvantageInputs], torch.Tensor]:
    """Each token's advantage times ``gamma`` for every token of the completion after it."""

    def with_discount(x: AdvantageInputs) -> torch.Tensor:
        to_come = x.mask.sum(-1, keepdim=True) - 1 - torch.arange(x.mask.shape[1])
        return of_tokens(x) * gamma ** to_come.clamp(min=0)

    return with_discount if gamma < 1 else of_tokens


def group_advantage(own: str, config: AlgorithmConfig) -> Callable[[AdvantageInputs], torch.Tensor]:
    """The group's advantage that ``algorithm.adv_estimator`` names, or the algorithm's ``own``."""
    name = config.adv_estimator or own
    if name == "optimal_baseline":
        return _optimal_baseline
    if name == "gdpo":
        return _gdpo
    return per_completion(
        {
            "grpo": advantages.grpo,
            "dr_grpo": advantages.dr_grpo,
            "rloo": advantages.rloo,
            "batch_std": advantages.batch_std,
            "pass_at_k": advantages.pass_at_k,
        }[name]
    )


def _optimal_baseline(x: AdvantageInputs) -> torch.Tensor:
    lengths = x.mask.sum(-1).view(x.rewards.shape)
    of_completion = advantages.optimal_baseline(penalised(x), x.valid, lengths)
    return of_completion.flatten()[:, None] * x.mask


def _gdpo(x: AdvantageInputs) -> torch.Tensor:
    assert x.components is not None, "the loop knows the weights"
    assert x.weights is not None
    return advantages.gdpo(x.components, x.weights, x.valid).flatten()[:, None] * x.mask


def penalised(x: AdvantageInputs) -> torch.Tensor:
    """Rewards ``[G, n]`` less the KL penalty of each completion's tokens."""
    return x.rewards - (x.kl_penalty * x.mask).sum(-1).view(x.rewards.shape)


def composed_algorithm(
    of_tokens: Callable[[AdvantageInputs], torch.Tensor],
    token_loss: Callable[[LossInputs], torch.Tensor],
    config: AlgorithmConfig,
    metrics: Metrics | None = None,
) -> Algorithm:
    """These advantages and this policy loss ``[B, R]``, with the configured KL and entropy terms.

    Every algorithm of the catalog is put together here. Beside ``metrics`` it logs those of the
    ratio and of the KL term.
    """
    logged: list[Metrics] = [partial(ratio_metrics, config=config)]
    if config.kl_coef > 0:
        logged.append(partial(kl_metrics, config=config))
    threshold = config.off_policy_mask_threshold
    if threshold is not None:
        token_loss = partial(_without_off_policy, token_loss=token_loss, threshold=threshold)
        logged.append(partial(off_policy_metrics, threshold=threshold))
    if metrics is not None:
        logged.append(metrics)
    return Algorithm(
        advantages=of_tokens,
        token_loss=token_loss,
        loss_agg_mode=config.loss_agg_mode,
        needs_signal=needs_signal(config),
        penalties=partial(penalties, config=config),
        metrics=lambda x: {name: v for of in logged for name, v in of(x).items()},
    )


def _without_off_policy(
    x: LossInputs, token_loss: Callable[[LossInputs], torch.Tensor], threshold: float
) -> torch.Tensor:
    """The policy loss, 0 where ``off_policy_mask_threshold`` masks it."""
    return token_loss(x).masked_fill(_off_policy(x, threshold), 0.0)


def off_policy_metrics(x: LossInputs, threshold: float) -> dict[str, torch.Tensor]:
    """``off_policy_masked``: 1 at the tokens that ``off_policy_mask_threshold`` masks, else 0."""
    return {"off_policy_masked": _off_policy(x, threshold).float()}


def _off_policy(x: LossInputs, threshold: float) -> torch.Tensor:
    assert x.rollout_logprobs is not None, "the update has them"
    return losses.off_policy_sequences(
        x.logprobs, x.rollout_logprobs, x.advantages, x.mask, threshold
    )


def clipped_algorithm(
    of_tokens: Callable[[AdvantageInputs], torch.Tensor], config: AlgorithmConfig
) -> Algorithm:
    """These advantages with PPO's clipped loss."""
    token_loss = partial(clipped_surrogate, config=config)
    return composed_algorithm(of_tokens, token_loss, config, partial(clip_metrics, config=config))


def policy_gradient_algorithm(
    of_tokens: Callable[[AdvantageInputs], torch.Tensor], config: AlgorithmConfig
) -> Algorithm:
    """These advantages with the policy-gradient loss."""
    return composed_algorithm(of_tokens, partial(policy_gradient, config=config), config)


def clipped_surrogate(x: LossInputs, config: AlgorithmConfig) -> torch.Tensor:
    """PPO's clipped loss ``[B, R]``, with the configured ratio and dual clip."""
    new, old = ratio_logprobs(x, config)
    loss = losses.ppo_clip(new, old, x.advantages, config.clip_ratio_low, config.clip_ratio_high)
    if config.clip_ratio_dual is not None:
        loss = losses.dual_clip(loss, x.advantages, config.clip_ratio_dual)
    return loss


def clip_metrics(x: LossInputs, config: AlgorithmConfig) -> dict[str, torch.Tensor]:
    """``clip_fraction``: 1 at the tokens whose gradient the clip removed, else 0; ``[B, R]``."""
    clip = (config.clip_ratio_low, config.clip_ratio_high)
    clipped = losses.clip_fraction_mask(*ratio_logprobs(x, config), x.advantages, *clip)
    return {"clip_fraction": clipped.float()}


def ratio_metrics(x: LossInputs, config: AlgorithmConfig) -> dict[str, torch.Tensor]:
    """Of the policy to that before the rollout's first update; ``[B, R]`` each.

    ``ppo_kl`` is ``old - log p`` of each token. ``ratio_bounded`` is 1 where the logarithm of the
    ratio reached its bound, else 0. With ``ppo_kl_coef``, ``ppo_kl_last`` is the KL that the loss
    has, before the rollout's last update.
    """
    at_bound = losses.ratio_bounded(*ratio_logprobs(x, config)).float()
    of_ratio = {"ppo_kl": x.old_logprobs - x.logprobs, "ratio_bounded": at_bound}
    if config.ppo_kl_coef == 0:
        return of_ratio
    return {**of_ratio, "ppo_kl_last": k3(x.old_logprobs, x.logprobs)}


def kl_metrics(x: LossInputs, config: AlgorithmConfig) -> dict[str, torch.Tensor]:
    """``kl_bounded``: 1 at the tokens whose KL estimate reached its bound, else 0; ``[B, R]``."""
    if x.ref_logprobs is None:
        return {}
    return {"kl_bounded": bounded(*_kl_logprobs(x, config), config.kl_estimator).float()}


def _kl_logprobs(x: LossInputs, config: AlgorithmConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The policy's and the reference's, of each token or of the whole completion: ``[B, R]``."""
    assert x.ref_logprobs is not None, "a KL term needs reference log-probs"
    if config.kl_level == "token":
        return x.logprobs, x.ref_logprobs
    return (
        losses.response_logprobs(x.logprobs, x.mask),
        losses.response_logprobs(x.ref_logprobs, x.mask),
    )


def ratio_logprobs(x: LossInputs, config: AlgorithmConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """New and old log-probs, ``[B, R]`` each; their difference is the logarithm of the ratio."""
    if config.importance_sampling_level == "token":
        return x.logprobs, x.old_logprobs
    mean = config.importance_sampling_level == "sequence"
    return (
        losses.response_logprobs(x.logprobs, x.mask, mean),
        losses.response_logprobs(x.old_logprobs, x.mask, mean),
    )


def policy_gradient(x: LossInputs, config: AlgorithmConfig) -> torch.Tensor:
    """``-A log p``, ``[B, R]``; ``importance_sampling`` clips or weights it.

    With ``importance_sampling_level: sequence_product`` it is that of the whole completion, which
    is then one action. With one update per rollout all ratios are 1, and the clipped loss has the
    same gradient.
    """
    form = config.importance_sampling
    if config.has_several_updates and form == "clip":
        return clipped_surrogate(x, config)
    loss = losses.policy_gradient(ratio_logprobs(x, config)[0], x.advantages)
    if form != "clip" and form != "none":
        loss = loss * losses.importance_weights(x.logprobs, x.old_logprobs, x.mask, form)
    return loss


def penalties(x: LossInputs, config: AlgorithmConfig) -> torch.Tensor:
    """The KL terms that are in the loss, less the entropy bonus: ``[B, R]``."""
    loss = torch.zeros_like(x.logprobs)
    if config.kl_coef > 0 and config.use_kl_loss:
        loss = loss + x.kl_coef * _kl(x, config)
    if config.ppo_kl_coef > 0:  # of the tokens that the old policy drew
        loss = loss + x.ppo_kl_coef * k3(x.old_logprobs, x.logprobs)
    if config.entropy_coef > 0:
        loss = loss - x.entropy_coef * x.entropy
    return loss


def _kl(x: LossInputs, config: AlgorithmConfig) -> torch.Tensor:
    if config.kl_estimator == "full":
        assert x.full_kl is not None, "the update measures it"
        return x.full_kl
    estimate = ESTIMATORS[config.kl_estimator](*_kl_logprobs(x, config))
    if config.use_bias_correction_kl:
        estimate = estimate * losses.ratio(*ratio_logprobs(x, config))
    return estimate


def needs_signal(config: AlgorithmConfig) -> bool:
    """Does only the advantage give a gradient? False with a KL term or an entropy bonus."""
    kl_in_loss = config.kl_coef > 0 and config.use_kl_loss
    return not (kl_in_loss or config.entropy_coef or config.ppo_kl_coef)
