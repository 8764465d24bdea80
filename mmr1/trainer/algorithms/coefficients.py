"""The coefficients of the KL term and the entropy bonus: fixed, or adapted from step to step."""

from __future__ import annotations

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithms import entropy, kl
from mmr1.types import StepStats


class Coefficients:
    """Both coefficients; the process that runs the loop holds them, the updates are told them."""

    def __init__(self, config: AlgorithmConfig) -> None:
        self._config = config
        self.kl = config.kl_coef
        self.entropy = config.entropy_coef

    def adapt(self, stats: StepStats) -> None:
        """Move each towards its target, if it has one, by the step's measured values.

        Notes in ``stats`` what they were during the step. A step without an update of the policy
        measured nothing and moves nothing.
        """
        config = self._config
        stats |= {"kl_coef": self.kl, "entropy_coef": self.entropy}
        if config.kl_target is not None and "kl" in stats:
            self.kl = kl.adapted_coefficient(
                self.kl, stats["kl"], config.kl_target, config.kl_adaptation_rate
            )
        if config.entropy_target is not None and "entropy" in stats:
            self.entropy = entropy.adapted_coefficient(
                self.entropy,
                stats["entropy"],
                config.entropy_target,
                config.entropy_adaptation_rate,
            )

    def state_dict(self) -> dict[str, float]:
        return {"kl": self.kl, "entropy": self.entropy}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.kl, self.entropy = state["kl"], state["entropy"]
