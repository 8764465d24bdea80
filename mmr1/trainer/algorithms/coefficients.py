"""The coefficients of the KL terms and the entropy bonus: fixed, or adapted from step to step."""

from __future__ import annotations

import math

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import kl
from mmr1.types import StepStats


class Coefficients:
    """The coefficients. The loop's process holds them and passes them to each update."""

    def __init__(self, config: AlgorithmConfig) -> None:
        self._config = config
        self.kl = config.kl_coef
        self.ppo_kl = config.ppo_kl_coef
        self.entropy = config.entropy_coef

    def adapt(self, stats: StepStats) -> None:
        """Adapt each coefficient that has a target to the step's measured KL or entropy.

        Adds to ``stats`` the coefficients that the step used. A step that did not update the
        policy has no measurement and changes nothing.
        """
        config = self._config
        stats |= {"kl_coef": self.kl, "entropy_coef": self.entropy}
        if config.ppo_kl_coef:
            stats["ppo_kl_coef"] = self.ppo_kl
        if config.ppo_kl_target is not None and "ppo_kl_last" in stats:
            self.ppo_kl = kl.ppo_adapted_coefficient(
                self.ppo_kl, stats["ppo_kl_last"], config.ppo_kl_target
            )
        if config.kl_target is not None and "kl" in stats:
            self.kl = kl.adapted_coefficient(
                self.kl, stats["kl"], config.kl_target, config.kl_adaptation_rate
            )
        if config.entropy_target is not None and "entropy" in stats:
            self.entropy = adapted_entropy_coefficient(
                self.entropy,
                stats["entropy"],
                config.entropy_target,
                config.entropy_adaptation_rate,
            )

    def state_dict(self) -> dict[str, float]:
        return {"kl": self.kl, "entropy": self.entropy, "ppo_kl": self.ppo_kl}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.kl, self.entropy = state["kl"], state["entropy"]
        self.ppo_kl = state["ppo_kl"]


def adapted_entropy_coefficient(
    coefficient: float, entropy: float, target: float, rate: float
) -> float:
    """The entropy coefficient for the next step: larger while the entropy is below the target.

    The temperature update of soft actor-critic (arXiv 1812.05905, equation 18) for the mean
    entropy per token, in nats: a gradient step on the logarithm, so that it stays positive.

    >>> adapted_entropy_coefficient(0.01, entropy=0.5, target=0.5, rate=0.1)
    0.01
    >>> adapted_entropy_coefficient(0.01, entropy=0.1, target=0.5, rate=0.1) > 0.01
    True
    """
    return coefficient * math.exp(rate * (target - entropy))
