"""Losses on preferences: pure functions of log-probs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import logsigmoid

from mmr1.registry import check_settings
from mmr1_contrib.offline.sections import (
    PREFERENCE_LOSSES,
    IpoLoss,
    KtoLoss,
    OrpoLoss,
    OwnPreferenceLoss,
    PreferenceLoss,
    RobustLoss,
    SigmoidLoss,
    SigmoidNormLoss,
    SimpoLoss,
)


@dataclass(frozen=True, slots=True)
class PairScores:
    """P pairs of completions, the chosen one in column 0, the rejected one in column 1.

    Attributes:
        logprobs: ``[P, 2]`` log-probs of whole completions under the policy.
        ref_logprobs: ``[P, 2]``, the same under the reference; 0 for losses without one.
        lengths: ``[P, 2]`` tokens, the end-of-sequence token included.
    """

    logprobs: torch.Tensor
    ref_logprobs: torch.Tensor
    lengths: torch.Tensor

    @property
    def log_ratios(self) -> torch.Tensor:
        """``[P, 2]``: log p / p_ref of whole completions."""
        return self.logprobs - self.ref_logprobs


class PairLoss(NamedTuple):
    """The result of a loss on pairs.

    Attributes:
        loss: ``[P]``.
        rewards: ``[P, 2]`` that the loss implies for the completions; for the metrics only.
    """

    loss: torch.Tensor
    rewards: torch.Tensor


LossOnPairs = Callable[[PairScores], PairLoss]


def sigmoid(pairs: PairScores, config: SigmoidLoss) -> PairLoss:
    """DPO (arXiv 2305.18290, equation 7): ``-log σ(m)``, ``m = β (log p_w/ref_w - log p_l/ref_l)``.

    With ``dpo.loss.label_smoothing`` ε it is conservative DPO (E. Mitchell, "A note on DPO with
    noisy preferences", 2023): ``-(1 - ε) log σ(m) - ε log σ(-m)``.
    """
    rewards = config.beta * pairs.log_ratios
    margins, smoothing = rewards[:, 0] - rewards[:, 1], config.label_smoothing
    loss = -(1 - smoothing) * logsigmoid(margins) - smoothing * logsigmoid(-margins)
    return PairLoss(loss, rewards)


def sigmoid_norm(pairs: PairScores, config: SigmoidNormLoss) -> PairLoss:
    """Length-normalised DPO (Tülu 3, arXiv 2411.15124): log-ratios are means over tokens."""
    rewards = config.beta * pairs.log_ratios / pairs.lengths
    return PairLoss(-logsigmoid(rewards[:, 0] - rewards[:, 1]), rewards)


def ipo(pairs: PairScores, config: IpoLoss) -> PairLoss:
    """IPO (arXiv 2310.12036, equation 17): ``(h - 1 / (2 β))²``; β is the paper's τ.

    ``h`` is the log-ratio of the chosen completion less that of the rejected one. Both are means
    over tokens, as in TRL; the paper has sums.
    """
    log_ratios = pairs.log_ratios / pairs.lengths
    loss = (log_ratios[:, 0] - log_ratios[:, 1] - 1 / (2 * config.beta)) ** 2
    return PairLoss(loss, config.beta * log_ratios)


def robust(pairs: PairScores, config: RobustLoss) -> PairLoss:
    """Robust DPO (arXiv 2403.00409): ``(-(1 - ε) log σ(m) + ε log σ(-m)) / (1 - 2 ε)``.

    ``m`` is DPO's margin, ε is ``dpo.loss.label_smoothing``. The expectation over labels that are
    flipped with probability ε is the DPO loss of the labels before they were flipped.
    """
    rewards = config.beta * pairs.log_ratios
    margins, flipped = rewards[:, 0] - rewards[:, 1], config.label_smoothing
    loss = -(1 - flipped) * logsigmoid(margins) + flipped * logsigmoid(-margins)
    return PairLoss(loss / (1 - 2 * flipped), rewards)


def simpo(pairs: PairScores, config: SimpoLoss) -> PairLoss:
    """SimPO (arXiv 2405.14734, equation 6): ``-log σ(β/|w| log p_w - β/|l| log p_l - γ)``.

    γ is ``dpo.loss.gamma``.
    """
    rewards = config.beta * pairs.logprobs / pairs.lengths
    return PairLoss(-logsigmoid(rewards[:, 0] - rewards[:, 1] - config.gamma), rewards)


def orpo(pairs: PairScores, config: OrpoLoss) -> PairLoss:
    """ORPO (arXiv 2403.07691, equations 6 and 7): ``-log p_w - β log σ(log odds_w - log odds_l)``.

    ``log p`` is the mean over the completion's tokens, ``odds = p / (1 - p)``, and β is the
    paper's λ.
    """
    mean_logprobs = pairs.logprobs / pairs.lengths
    certain = mean_logprobs.clamp(max=-1e-7)  # the odds of probability 1 are infinite
    log_odds = certain - torch.log(-torch.expm1(certain))
    preference = -logsigmoid(log_odds[:, 0] - log_odds[:, 1])
    return PairLoss(-mean_logprobs[:, 0] + config.beta * preference, config.beta * mean_logprobs)


def kto(
    log_ratios: torch.Tensor, desirable: torch.Tensor, kl: torch.Tensor, config: KtoLoss
) -> torch.Tensor:
    """KTO (arXiv 2402.01306, equation 8): ``[C]``, the loss of each completion.

    ``λ_D (1 - σ(β (r - z)))`` where it is wanted, ``λ_U (1 - σ(β (z - r)))`` where it is not.

    Args:
        log_ratios: ``[C]``: r, log p / p_ref of whole completions.
        desirable: ``[C]`` bool.
        kl: The reference point z; see :func:`reference_point`. No gradient flows through it.
        config: Section with β, λ_D and λ_U; one that is not set is 1.
    """
    gains = config.beta * (log_ratios - kl.detach())
    signs = torch.where(desirable, 1.0, -1.0).to(gains)
    wanted, unwanted = (
        1.0 if weight is None else weight
        for weight in (config.desirable_weight, config.undesirable_weight)
    )
    weights = torch.where(desirable, wanted, unwanted)
    return weights.to(gains) * torch.sigmoid(-signs * gains)


def balanced(desirable: Sequence[Sequence[bool]]) -> list[tuple[float, ...]]:
    """The weight of each label, at most 1, that gives both kinds of labels the same sum.

    The paper and TRL ask for sums that are about equal. A policy's own completions are rarely so:
    where most are wrong and all weigh alike, it learns to say nothing that it said before.
    """
    counts = Counter(label for labels in desirable for label in labels)
    rarer = min(counts.values()) if len(counts) == 2 else 0
    weights = {label: rarer / count if rarer else 1.0 for label, count in counts.items()}
    return [tuple(weights[label] for label in labels) for labels in desirable]


def reference_point(mean_log_ratio: torch.Tensor) -> torch.Tensor:
    """z of KTO: how far the policy is from the reference, in nats, at least 0.

    Args:
        mean_log_ratio: The mean log p / p_ref of completions of other prompts, one per prompt.
    """
    return mean_log_ratio.clamp(min=0)


_ON_PAIRS: Mapping[str, Callable[[PairScores, Any], PairLoss]] = {
    "sigmoid": sigmoid,
    "sigmoid_norm": sigmoid_norm,
    "ipo": ipo,
    "robust": robust,
    "simpo": simpo,
    "orpo": orpo,
}


def loss_on_pairs(config: PreferenceLoss) -> LossOnPairs:
    """The loss of ``dpo.loss``. One of your own is called with its section and its settings.

    Raises:
        ValueError: The name of a loss of your own is unknown, its file or function is missing, or
            its settings do not fit.
    """
    if isinstance(config, OwnPreferenceLoss):
        own, settings = PREFERENCE_LOSSES.load(config.type), config.settings
        check_settings("dpo.loss", config.type, own, settings, given=2)
        return lambda pairs: own(pairs, config, **settings)
    function = _ON_PAIRS[config.type]
    return lambda pairs: function(pairs, config)
