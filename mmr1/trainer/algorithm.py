"""An algorithm: an advantage and a loss, chosen independently of each other, with their terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeVar

import torch

from mmr1.algorithms import advantage, loss, ratios
from mmr1.algorithms.advantages.distillation import DistillationAdvantage
from mmr1.algorithms.interface import Advantage, AdvantageInputs, Loss, LossInputs, require_shape
from mmr1.algorithms.kl import ESTIMATORS, bounded, k3
from mmr1.algorithms.ratios import LossAggMode
from mmr1.config import AlgorithmConfig, KlFull, KlLoss, KlReward
from mmr1.types import ScoredGroup

Scorer = Literal["policy", "reference", "critic"]
Inputs = TypeVar("Inputs", AdvantageInputs, LossInputs)


OwnViews = Callable[[Sequence[ScoredGroup]], Sequence[ScoredGroup]]


def build_algorithm(
    config: AlgorithmConfig,
    max_tokens: int | None = None,
    reward_weights: Mapping[str, float] | None = None,
    own_views: OwnViews | None = None,
) -> Algorithm:
    """The algorithm of ``algorithm.advantage`` and ``algorithm.loss``.

    Args:
        max_tokens, reward_weights, own_views: See ``Algorithm``.

    Raises:
        ValueError: If one of a user's own cannot be loaded, is something else, or lacks the returns
            that its critic learns.
    """
    made, policy_loss = advantage.build(config.advantage), loss.build(config.loss)
    if (config.critic is not None) != (made.returns is not None):
        raise ValueError(
            f"algorithm.advantage.type={config.advantage.type}: a critic learns the returns of its "
            "Advantage; set both algorithm.advantage.critic={} and Advantage(returns=...), or "
            "neither"
        )
    return Algorithm(
        replace(made, of_tokens=_checked(made.of_tokens, "advantage", config.advantage.type)),
        replace(policy_loss, of_tokens=_checked(policy_loss.of_tokens, "loss", config.loss.type)),
        config,
        max_tokens,
        dict(reward_weights or {}),
        own_views,
    )


def _checked(
    function: Callable[[Inputs], torch.Tensor], word: str, name: str
) -> Callable[[Inputs], torch.Tensor]:
    """Return the function with a check of its result's shape: a scalar would be broadcast."""
    whose = f"algorithm.{word}.type={name}: of_tokens"
    return lambda x: require_shape(
        function(x), x.mask.shape, whose, f"[B, R], the {word} of each token"
    )


@dataclass(frozen=True)
class Algorithm:
    """An advantage and a loss, with the KL and entropy terms of the configuration.

    Attributes:
        max_tokens: Longest completion in tokens; only ``seq-mean-token-sum-norm`` reads it.
        reward_weights: Weights of the reward functions, by name; advantages of each function need
            them.
        own_views: Cuts groups where the view changes, so that the loss reads each completion under
            the view that it saw. None: it reads all under the prompt's own.
        reward_state: The moments of all rewards so far, with ``normalize_rewards``.
    """

    advantage: Advantage
    policy_loss: Loss
    config: AlgorithmConfig
    max_tokens: int | None = None
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    own_views: OwnViews | None = None
    reward_state: dict[str, float] = field(default_factory=dict)

    def shown(self, scored: Sequence[ScoredGroup]) -> Sequence[ScoredGroup]:
        """Return the groups as the loss reads them."""
        return scored if self.own_views is None else self.own_views(scored)

    def loss(self, x: LossInputs, correction: torch.Tensor | float = 1.0) -> torch.Tensor:
        """The policy and KL terms, less entropy bonus and perception, plus the loss's own penalty.

        ``[B, R]``, to be minimised. The policy term is 0 where it is masked as off-policy.

        Args:
            correction: Weights by ``ratios.rollout_importance_weights``. They weigh the policy
                term; the other terms are of the policy as it is.
        """
        loss, kl, of_tokens = self.policy_loss, self.config.kl, self.policy_loss.of_tokens
        if self.advantage.step_supervision and loss.of_steps is not None:
            of_tokens = loss.of_steps
        policy = of_tokens(x)
        if (threshold := self.config.rollout_correction.off_policy_mask_threshold) is not None:
            policy = policy.masked_fill(_off_policy(x, threshold), 0.0)

        others = torch.zeros_like(x.logprobs)
        if isinstance(kl, KlFull):
            assert x.full_kl is not None, "the update measures it"
            others = others + x.kl_coef * x.full_kl
        elif isinstance(kl, KlLoss):
            assert x.ref_logprobs is not None, "a KL term needs reference log-probs"
            pair = ratios.compared(x.logprobs, x.ref_logprobs, x.mask, loss.kl)
            estimate = ESTIMATORS[kl.estimator](*pair)
            if kl.use_bias_correction_kl:
                pair = ratios.compared(x.logprobs, x.old_logprobs, x.mask, loss.ratio)
                estimate = estimate * ratios.ratio(*pair)
            others = others + x.kl_coef * estimate
        if self.config.entropy is not None:
            others = others - x.entropy_coef * x.entropy
        if self.config.perception is not None:
            others = others - self.config.perception.coef * _perception(x)
        if loss.penalty is not None:
            others = others + loss.penalty(x)
        return correction * policy + others

    def metrics(self, x: LossInputs) -> dict[str, torch.Tensor]:
        """Tensors ``[B, R]`` to log as token means, beside entropy and KL.

        ``ppo_kl`` is ``old - log p`` of each token. 1 or 0 are ``loss/frac_ratio_clamped``, where
        the logarithm of the ratio to the policy before the rollout's first update reached its
        bound; ``loss/frac_kl_clamped``, where the KL estimate reached its own; and
        ``off_policy_masked``. ``perception_kl`` is what ``algorithm.perception`` rewards.
        """
        loss = self.policy_loss
        new, old = ratios.compared(x.logprobs, x.old_logprobs, x.mask, loss.ratio)
        logged = {
            "ppo_kl": x.old_logprobs - x.logprobs,
            "loss/frac_ratio_clamped": ((new - old).abs() > ratios.LOG_RATIO_BOUND).float(),
        }
        if x.ref_logprobs is not None:
            level = loss.kl if isinstance(self.config.kl, KlLoss) else "token"
            pair = ratios.compared(x.logprobs, x.ref_logprobs, x.mask, level)
            logged["loss/frac_kl_clamped"] = bounded(*pair, self.kl_estimator).float()
        if (threshold := self.config.rollout_correction.off_policy_mask_threshold) is not None:
            logged["off_policy_masked"] = _off_policy(x, threshold).float()
        if self.config.perception is not None:
            logged["perception_kl"] = _perception(x)
        return {**logged, **loss.metrics(x)}

    @cached_property
    def loss_agg_mode(self) -> LossAggMode:
        """The way to add up token losses; see ``ratios.token_weights``."""
        return self.config.loss.aggregation

    @cached_property
    def token_share(self) -> float:
        """The share of the tokens that the loss learns from, those of the highest entropy."""
        return self.config.loss.token_share

    @cached_property
    def needs_signal(self) -> bool:
        """True if tokens of advantage 0 have no gradient: the update can skip such sequences."""
        terms = (self.config.entropy, self.config.perception)
        in_loss = isinstance(self.config.kl, KlLoss | KlFull) or any(terms)
        return self.policy_loss.needs_signal and not in_loss

    @cached_property
    def needs_old_logprobs(self) -> bool:
        """True if several updates share a rollout, or the loss compares tokens."""
        return self.config.has_several_updates or self.policy_loss.choose is not None

    @cached_property
    def kl_in_reward(self) -> bool:
        """True if the KL, or what a teacher says, is a penalty in the reward."""
        distils = isinstance(self.config.advantage, DistillationAdvantage)
        return distils or isinstance(self.config.kl, KlReward)

    @cached_property
    def scorers(self) -> frozenset[Scorer]:
        """The models that score a rollout before its update, each in a forward pass of its own.

        The policy's own log-probs need one only when several updates share the rollout, the KL is
        in the reward or tokens are compared. Otherwise they are the update's, detached.
        """
        config = self.config
        found: set[Scorer] = set()
        if config.reference is not None and not isinstance(config.kl, KlFull):  # the update has it
            found.add("reference")
        penalised = config.reference is not None and self.kl_in_reward
        if self.needs_old_logprobs or self.token_share < 1 or penalised:
            found.add("policy")
        if config.critic is not None:
            found.add("critic")
        return frozenset(found)

    @cached_property
    def kl_estimator(self) -> str:
        """The estimator of sampled tokens; a teacher's is k1, the log-ratio itself."""
        kl = self.config.kl
        return kl.estimator if isinstance(kl, KlLoss | KlReward) else "k1"

    @cached_property
    def scales_rewards(self) -> bool:
        """True if rewards are normalised or clipped."""
        return self.config.normalize_rewards or self.config.reward_clip_range is not None

    def state_dict(self) -> dict[str, dict[str, float]]:
        return {name: dict(state) for name, state in self._states.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, float]]) -> None:
        for name, kept in self._states.items():
            kept.clear()
            kept.update(state[name])

    @property
    def _states(self) -> dict[str, dict[str, float]]:
        return {
            "advantage": self.advantage.state,
            "loss": self.policy_loss.state,
            "rewards": self.reward_state,
        }


def _off_policy(x: LossInputs, threshold: float) -> torch.Tensor:
    assert x.rollout_logprobs is not None, "the update has them"
    return ratios.off_policy_sequences(
        x.logprobs, x.rollout_logprobs, x.advantages, x.mask, threshold
    )


def _perception(x: LossInputs) -> torch.Tensor:
    """PAPO's KL of the policy to itself with the pictures masked, k3; 0 without a picture.

    The masked side has no gradient (arXiv 2507.06448, and its authors' code by default).
    """
    masked = x.masked_logprobs
    assert masked is not None, "the learner adds them"
    return k3(x.logprobs, torch.where(masked.isnan(), x.logprobs.detach(), masked))
