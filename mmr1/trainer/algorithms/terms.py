"""The parts of which algorithms are composed: losses with their terms, advantages per token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mmr1.config import AlgorithmConfig, KlFull, KlLoss, KlReward
from mmr1.trainer.algorithms import losses
from mmr1.trainer.algorithms.algorithm import (
    Advantage,
    AdvantageInputs,
    Algorithm,
    LogprobPair,
    Loss,
    LossInputs,
    OfTokens,
    of_each_token,
)
from mmr1.trainer.algorithms.kl import ESTIMATORS, bounded


def per_completion(
    advantage: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[AdvantageInputs], torch.Tensor]:
    """Gives each token of a completion the advantage ``(rewards, valid) -> [G, n]`` of the whole.

    With ``algorithm.kl.type: reward`` each reward is first reduced by the completion's KL penalty.
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


def penalised(x: AdvantageInputs) -> torch.Tensor:
    """Rewards ``[G, n]`` less the KL penalty of each completion's tokens."""
    return x.rewards - (x.kl_penalty * x.mask).sum(-1).view(x.rewards.shape)


def composed_algorithm(advantage: Advantage, loss: Loss, config: AlgorithmConfig) -> Algorithm:
    """This advantage and this loss, with the configured KL and entropy terms.

    Every algorithm is put together here. Beside the loss's metrics it logs those of the ratio and
    of the KL term.
    """
    of_tokens = loss.of_tokens
    if advantage.step_supervision and loss.of_steps is not None:
        of_tokens = loss.of_steps
    return Algorithm(
        advantage=advantage,
        policy_loss=loss,
        token_loss=partial(_without_off_policy, of_tokens=of_tokens, config=config),
        penalties=partial(_penalties, loss=loss, config=config),
        loss_agg_mode=config.loss.aggregation,
        needs_signal=(loss.needs_signal and not _kl_in_loss(config) and config.entropy is None),
        metrics=lambda x: {
            **ratio_metrics(x, loss),
            **kl_metrics(x, loss, config),
            **off_policy_metrics(x, config),
            **loss.metrics(x),
        },
    )


def _without_off_policy(
    x: LossInputs, of_tokens: OfTokens, config: AlgorithmConfig
) -> torch.Tensor:
    """The policy loss, 0 where ``off_policy_mask_threshold`` masks it."""
    threshold = config.rollout_correction.off_policy_mask_threshold
    if threshold is None:
        return of_tokens(x)
    return of_tokens(x).masked_fill(_off_policy(x, threshold), 0.0)


def off_policy_metrics(x: LossInputs, config: AlgorithmConfig) -> dict[str, torch.Tensor]:
    """``off_policy_masked``: 1 at the tokens that ``off_policy_mask_threshold`` masks, else 0."""
    threshold = config.rollout_correction.off_policy_mask_threshold
    return {} if threshold is None else {"off_policy_masked": _off_policy(x, threshold).float()}


def _off_policy(x: LossInputs, threshold: float) -> torch.Tensor:
    assert x.rollout_logprobs is not None, "the update has them"
    return losses.off_policy_sequences(
        x.logprobs, x.rollout_logprobs, x.advantages, x.mask, threshold
    )


def clipped_loss(
    low: float,
    high: float,
    dual: float | None = None,
    ratio: LogprobPair = of_each_token,
    kl: LogprobPair = of_each_token,
) -> Loss:
    """PPO's clipped loss.

    It logs ``clip_fraction``: 1 at the tokens whose gradient the clip removed, else 0.
    """

    def of_tokens(x: LossInputs) -> torch.Tensor:
        new, old = ratio(x.logprobs, x.old_logprobs, x.mask)
        loss = losses.ppo_clip(new, old, x.advantages, low, high)
        return loss if dual is None else losses.dual_clip(loss, x.advantages, dual)

    def metrics(x: LossInputs) -> dict[str, torch.Tensor]:
        new, old = ratio(x.logprobs, x.old_logprobs, x.mask)
        clipped = losses.clip_fraction_mask(new, old, x.advantages, low, high)
        return {"clip_fraction": clipped.float()}

    return Loss(of_tokens, metrics=metrics, ratio=ratio, kl=kl)


def completion_sums(
    logprobs: torch.Tensor, others: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of whole completions: their ratio is the product of the tokens' ratios."""
    return losses.response_logprobs(logprobs, mask), losses.response_logprobs(others, mask)


def completion_means(
    logprobs: torch.Tensor, others: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Their means per token: the ratio is the geometric mean of the tokens' ratios."""
    new = losses.response_logprobs(logprobs, mask, True)
    return new, losses.response_logprobs(others, mask, True)


def ratio_metrics(x: LossInputs, loss: Loss) -> dict[str, torch.Tensor]:
    """Of the policy to that before the rollout's first update; ``[B, R]`` each.

    ``ppo_kl`` is ``old - log p`` of each token. ``ratio_bounded`` is 1 where the logarithm of the
    ratio reached its bound, else 0.
    """
    at_bound = losses.ratio_bounded(*loss.ratio(x.logprobs, x.old_logprobs, x.mask)).float()
    return {"ppo_kl": x.old_logprobs - x.logprobs, "ratio_bounded": at_bound}


def kl_metrics(x: LossInputs, loss: Loss, config: AlgorithmConfig) -> dict[str, torch.Tensor]:
    """``kl_bounded``: 1 at the tokens whose KL estimate reached its bound, else 0; ``[B, R]``."""
    if x.ref_logprobs is None:
        return {}
    of = loss.kl if isinstance(config.kl, KlLoss) else of_each_token
    pair = of(x.logprobs, x.ref_logprobs, x.mask)
    return {"kl_bounded": bounded(*pair, sampled_estimator(config)).float()}


def sampled_estimator(config: AlgorithmConfig) -> str:
    """The estimator of sampled tokens; a teacher's is k1, the log-ratio itself."""
    return config.kl.estimator if isinstance(config.kl, KlLoss | KlReward) else "k1"


def _penalties(x: LossInputs, loss: Loss, config: AlgorithmConfig) -> torch.Tensor:
    """The KL terms that are in the loss, less the entropy bonus: ``[B, R]``."""
    total = torch.zeros_like(x.logprobs)
    if _kl_in_loss(config):
        total = total + x.kl_coef * _kl(x, loss, config)
    if config.entropy is not None:
        total = total - x.entropy_coef * x.entropy
    return total if loss.penalty is None else total + loss.penalty(x)


def _kl_in_loss(config: AlgorithmConfig) -> bool:
    return isinstance(config.kl, KlLoss | KlFull)


def _kl(x: LossInputs, loss: Loss, config: AlgorithmConfig) -> torch.Tensor:
    if not isinstance(config.kl, KlLoss):
        assert x.full_kl is not None, "the update measures it"
        return x.full_kl
    assert x.ref_logprobs is not None, "a KL term needs reference log-probs"
    estimate = ESTIMATORS[config.kl.estimator](*loss.kl(x.logprobs, x.ref_logprobs, x.mask))
    if config.kl.use_bias_correction_kl:
        estimate = estimate * losses.ratio(*loss.ratio(x.logprobs, x.old_logprobs, x.mask))
    return estimate
