"""Policy and value losses per token, the weights that add them up, and tokens left out of them.

Pure functions of tensors ``[B, R]`` (B sequences, R the longest completion). A loss is
``(weights * token_loss).sum()``: the weights hold the global denominators, so cutting a batch into
micro-batches or ranks does not change its gradient. ``rho = exp(logp - old)`` throughout, with
``logp - old`` within ``+-LOG_RATIO_BOUND`` as in verl and EasyR1, so that no ratio overflows.
Beyond the bound a ratio has no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

from mmr1.lazy import torch

LossAggMode = Literal[
    "seq-mean-token-mean",
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
]
Importance = Literal["token", "per_decision", "sequence"]

LOG_RATIO_BOUND = 20.0


def ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """``rho``, its logarithm bounded: ``[B, R]``."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def ppo_clip(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> torch.Tensor:
    """Clipped surrogate of PPO (arXiv 1707.06347, equation 7), negated: ``[B, R]``.

    ``-min(rho A, clip(rho, 1 - low, 1 + high) A)``. A larger ``clip_ratio_high`` is DAPO's
    clip-higher (arXiv 2503.14476). Given log-probs of responses (:func:`response_logprobs`) it is
    the R1 paper's objective (arXiv 2501.12948), given their means it is GSPO's (arXiv 2507.18071).
    """
    rho = ratio(logprobs, old_logprobs)
    clipped = rho.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    return -torch.minimum(rho * advantages, clipped * advantages)


def dual_clip(loss: torch.Tensor, advantages: torch.Tensor, bound: float) -> torch.Tensor:
    """Dual clip (arXiv 1912.09729) of a surrogate loss: ``[B, R]``.

    ``min(loss, -bound A)`` where A < 0, so that a huge ratio cannot dominate; ``bound > 1``.
    """
    return torch.where(advantages < 0, torch.minimum(loss, -bound * advantages), loss)


def response_logprobs(
    logprobs: torch.Tensor, mask: torch.Tensor, per_token: bool = False
) -> torch.Tensor:
    """Log-prob of the whole response, or its mean per token, at each of its tokens: ``[B, R]``.

    Their ratios are those of the R1 paper and of GSPO. With ``seq-mean-token-mean``, and one
    advantage per response, the loss is the mean over responses that those papers write.
    """
    total = torch.where(mask, logprobs, 0.0).sum(-1, keepdim=True)
    if per_token:
        total = total / mask.sum(-1, keepdim=True).clamp(min=1)
    return total.expand(logprobs.shape)


Level = Literal["token", "completion", "completion_mean"]


def compared(
    logprobs: torch.Tensor, others: torch.Tensor, mask: torch.Tensor, level: Level
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probs that a ratio, or a KL, compares at each token: ``[B, R]`` twice.

    Those of the token; of the whole completion, whose ratio is the product of its tokens'; or the
    mean of the completion, whose ratio is the geometric mean of its tokens'.
    """
    if level == "token":
        return logprobs, others
    mean = level == "completion_mean"
    return response_logprobs(logprobs, mask, mean), response_logprobs(others, mask, mean)


def policy_gradient(logprobs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """REINFORCE (Williams 1992): ``-A log p``, ``[B, R]``; on-policy."""
    return -advantages * logprobs


def importance_weights(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, mask: torch.Tensor, form: Importance
) -> torch.Tensor:
    """Weights that correct a policy gradient for the policy that sampled, detached: ``[B, R]``.

    - ``token``: ``rho_t``; corrects for the token and not for the tokens before it.
    - ``per_decision``: ``prod of rho_s, s <= t`` (Precup et al. 2000).
    - ``sequence``: the product over the whole completion; unbiased, of the highest variance.
    """
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0).detach()
    if form == "per_decision":
        log_ratio = log_ratio.cumsum(-1)
    elif form == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True).expand(log_ratio.shape)
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def per_decision_returns(returns: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Returns whose rewards are weighted by the ratios up to them: ``[B, R]``.

    ``sum over s >= t of w_s r_s`` where ``returns`` is the sum of r_s, and ``w_s`` the product of
    ratios up to s: a reward depends on the tokens before it and not on those after (Precup et al.
    2000, per-decision importance sampling).
    """
    following = torch.cat([returns[:, 1:], torch.zeros_like(returns[:, :1])], dim=-1)
    return (weights * (returns - following)).flip(-1).cumsum(-1).flip(-1)


def off_policy_sequences(
    logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    threshold: float,
) -> torch.Tensor:
    """DeepSeek-V3.2's off-policy sequence mask (arXiv 2512.02556): ``[B, R]`` bool, True is masked.

    Tokens of negative advantage in a completion whose mean ``log q - log p`` is above the
    ``threshold``, q the engine that sampled.
    """
    gap = torch.where(mask, rollout_logprobs - logprobs, 0.0).detach().sum(-1, keepdim=True)
    is_far = gap / mask.sum(-1, keepdim=True).clamp(min=1) > threshold
    return (advantages < 0) & is_far


def cispo(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> torch.Tensor:
    """CISPO (arXiv 2506.13585, equation 4), negated: ``[B, R]``.

    ``-sg(clip(rho, 1 - low, 1 + high)) A log p``: the weight is clipped, not the update,
    so every token keeps a gradient.
    """
    rho = ratio(logprobs, old_logprobs).detach()
    return -rho.clamp(1 - clip_ratio_low, 1 + clip_ratio_high) * advantages * logprobs


def sapo(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    tau_positive: float,
    tau_negative: float,
) -> torch.Tensor:
    """SAPO (arXiv 2511.20347), negated: ``[B, R]``.

    ``-(4 / tau) sigmoid(tau (rho - 1)) A``: a smooth gate instead of the clip. A larger temperature
    is stricter; negative advantages have the larger one. At ``rho = 1`` the gradient is the policy
    gradient.
    """
    tau = torch.where(advantages > 0, tau_positive, tau_negative)
    rho = ratio(logprobs, old_logprobs)
    return -(4 / tau) * torch.sigmoid(tau * (rho - 1)) * advantages


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Squared error of the critic, halved: ``[B, R]``.

    With ``clip``, the larger of two errors: that of the value, and that of the value clipped to
    within ``clip`` of the old one.
    """
    error = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return error / 2


def clip_fraction_mask(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> torch.Tensor:
    """True where :func:`ppo_clip` removes the gradient: ``[B, R]`` bool."""
    rho = ratio(logprobs, old_logprobs)
    return ((rho > 1 + clip_ratio_high) & (advantages > 0)) | (
        (rho < 1 - clip_ratio_low) & (advantages < 0)
    )


def token_weights(
    mask: torch.Tensor, loss_agg_mode: LossAggMode, max_tokens: int | None = None
) -> torch.Tensor:
    """Weight of each token's loss, ``[B, R]`` float32, 0 where ``mask`` is False.

    - ``seq-mean-token-mean``: the mean of each sequence, then the mean of the sequences (GRPO).
    - ``token-mean``: the mean over all tokens (DAPO).
    - ``token-sum``: the sum over all tokens, so the step grows with them (verl).
    - ``seq-mean-token-sum``: the sum of each sequence, then the mean of the sequences (verl): the
      log-prob of a completion is that of one action.
    - ``seq-mean-token-sum-norm``: the sum over ``B * max_tokens`` (Dr.GRPO, arXiv 2503.20783). The
      denominator is constant: masked sequences count in B.

    In the means a sequence without any unmasked token does not count.
    """
    weights = mask.float()
    lengths = weights.sum(-1, keepdim=True)
    if loss_agg_mode == "seq-mean-token-mean":
        return weights.div_(lengths.clamp(min=1)).div_((lengths > 0).sum().clamp(min=1))
    if loss_agg_mode == "token-mean":
        return weights / lengths.sum().clamp(min=1)
    if loss_agg_mode == "token-sum":
        return weights
    if loss_agg_mode == "seq-mean-token-sum":
        return weights / (lengths > 0).sum().clamp(min=1)
    assert max_tokens is not None, "the constant denominator needs the completion limit"
    return weights / (len(mask) * max_tokens)


Form = Literal["none", "token", "sequence"]
OutlierForm = Literal["token", "sequence", "geometric"]
Correction: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]"
"""``(logprobs, rollout_logprobs, mask) -> weights``, all ``[B, R]``."""


def rollout_importance_weights(
    logprobs: torch.Tensor,
    rollout_logprobs: torch.Tensor,
    mask: torch.Tensor,
    form: Form,
    cap: float,
    outlier: float | None = None,
    outlier_form: OutlierForm = "token",
) -> torch.Tensor:
    """Weights that correct for an engine which samples from another policy, detached: ``[B, R]``.

    The engine's kernels round differently, and its weights are older when rollouts are
    asynchronous. So each token's policy loss is multiplied by the trainer's probability of the
    token over the engine's, truncated from above (Yao et al. 2025, *Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training*; the truncation is that of Ionides 2008).

    - ``token``: ``min(p / q, cap)`` of each token, p the trainer's probability, q the engine's.
    - ``sequence``: ``min(product of p / q over the completion, cap)``.

    Args:
        logprobs: ``[B, R]`` under the policy that the update starts from.
        rollout_logprobs: ``[B, R]`` under the engine that sampled.
        mask: ``[B, R]`` bool, the tokens that count.
        outlier: Tokens whose ratio lies outside ``[1 / outlier, outlier]`` weigh 0.
        outlier_form: Ratio that is compared: the token's; ``sequence``: the product over the
            completion; ``geometric``: its geometric mean. The last two take out whole completions.
    """
    log_ratio = torch.where(mask, logprobs - rollout_logprobs, 0.0).detach()
    if form == "none":
        weights = torch.ones_like(log_ratio)
    elif form == "token":
        weights = log_ratio.exp().clamp(max=cap)
    else:
        weights = log_ratio.sum(-1, keepdim=True).exp().clamp(max=cap).expand(log_ratio.shape)
    if outlier is None:
        return weights
    judged = log_ratio
    if outlier_form != "token":
        judged = log_ratio.sum(-1, keepdim=True)
    if outlier_form == "geometric":
        judged = judged / mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(judged.abs() <= math.log(outlier), weights, 0.0)


# Tokens that a loss treats apart, by their covariance or entropy. They are compared over a
# mini-batch, so the process of the loop chooses them, which has all of them, by the policy from
# before the rollout's first update.


def covariances(
    logprobs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Each token's share in the covariance of log-prob and advantage: ``[B, R]``, -inf if masked.

    ``(log p - mean log p) (A - mean A)``, the means over the N tokens that count (arXiv 2505.22617,
    section 4.2). Where it is large, an update lowers the entropy most.
    """
    count = mask.sum().clamp(min=1)
    centred = [x - torch.where(mask, x, 0.0).sum() / count for x in (logprobs, advantages)]
    return torch.where(mask, centred[0] * centred[1], -torch.inf)


def clip_cov(
    covariance: torch.Tensor, ratio: float, low: float, high: float, seed: int
) -> torch.Tensor:
    """Clip-Cov's tokens (arXiv 2505.22617): some of those within ``(low, high)``, ``[B, R]`` bool.

    ``floor(ratio * N)`` of them, drawn at random, at least one as in the authors' code.
    """
    within = ((covariance > low) & (covariance < high)).flatten().nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(within), generator=generator)
    return _at(within[order[: _share(covariance, ratio)]], covariance)


def kl_cov(covariance: torch.Tensor, ratio: float) -> torch.Tensor:
    """KL-Cov's tokens (arXiv 2505.22617): those of the highest covariance, ``[B, R]`` bool.

    ``floor(ratio * N)`` of them, at least one as in the authors' code.
    """
    count = min(_share(covariance, ratio), int(covariance.isfinite().sum()))
    return _at(covariance.flatten().topk(count).indices, covariance)


def high_entropy(entropy: torch.Tensor, mask: torch.Tensor, quantile: float) -> torch.Tensor:
    """The share ``quantile`` of the tokens with the highest entropy (arXiv 2506.01939).

    ``[B, R]`` bool. The threshold is TRL's: the linear quantile of the entropies; tokens at it are
    in.
    """
    counted = entropy[mask]
    if len(counted) == 0:
        return mask
    place = math.ceil(round((1 - quantile) * (len(counted) - 1), 6))
    return mask & (entropy >= counted.kthvalue(place + 1).values)


def _share(covariance: torch.Tensor, ratio: float) -> int:
    return max(1, int(ratio * int(covariance.isfinite().sum())))


def _at(places: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``[B, R]`` bool: True at these places of the flattened tensor."""
    chosen = torch.zeros(like.numel(), dtype=torch.bool)
    chosen[places] = True
    return chosen.view(like.shape)
