"""REINFORCE++ (arXiv 2501.03262): a KL penalty per token (k1) off the reward, over the batch."""

from __future__ import annotations

from mmr1.algorithms import advantage, baselines, preset
from mmr1.algorithms.interface import Advantage
from mmr1.section import Share


@advantage(
    "reinforce_pp",
    paper="2501.03262",
    per_token=True,
    example={"rewards": [1, 0, 0, 1], "advantages": [1, -1, -1, 1]},
)
def reinforce_pp(gamma: Share = 1.0) -> Advantage:
    """r − the KL penalties from t on, normalised over the batch (REINFORCE++).

    Args:
        gamma: Discount per token.
    """
    return Advantage(
        lambda x: baselines.reinforce_pp(x.rewards.flatten(), x.kl_penalty, x.mask, gamma)
    )


preset(
    "reinforce_pp",
    "no groups; prompts of similar difficulty",
    advantage="reinforce_pp",
    kl="reward",
)
