"""PPO's losses (arXiv 1707.06347): the clipped ratio of tokens or of completions, or a KL penalty.

The ratio of a completion is the geometric mean of its tokens' (GSPO, arXiv 2507.18071; clip values
of section 5.1) or their product (the R1 paper, arXiv 2501.12948).
"""

from __future__ import annotations

from mmr1.algorithms import ratios
from mmr1.algorithms.interface import Loss, clipped_loss
from mmr1.algorithms.kl import k3
from mmr1.config import GspoLoss, PpoKlLoss, PpoLoss, SequencePpoLoss


def build(section: PpoLoss) -> Loss:
    return clipped_loss(section.clip_ratio_low, section.clip_ratio_high, section.clip_ratio_dual)


def build_gspo(section: GspoLoss) -> Loss:
    clip = (section.clip_ratio_low, section.clip_ratio_high, section.clip_ratio_dual)
    return clipped_loss(*clip, ratio="completion_mean")


def build_of_sequences(section: SequencePpoLoss) -> Loss:
    """PPO's clipped loss with the ratios, and the KL term, of whole completions."""
    clip = (section.clip_ratio_low, section.clip_ratio_high, section.clip_ratio_dual)
    return clipped_loss(*clip, ratio="completion", kl="completion")


def build_with_kl(section: PpoKlLoss) -> Loss:
    """PPO's loss with a KL penalty; ``section.coef`` may adapt, and the update is given it.

    ``ppo_kl_last`` is the KL that the loss has, before the rollout's last update.
    """
    return Loss(
        lambda x: -ratios.ratio(x.logprobs, x.old_logprobs) * x.advantages,
        # Of the tokens that the old policy drew.
        penalty=lambda x: x.ppo_kl_coef * k3(x.old_logprobs, x.logprobs),
        metrics=lambda x: {"ppo_kl_last": k3(x.old_logprobs, x.logprobs)},
        needs_signal=False,
    )
