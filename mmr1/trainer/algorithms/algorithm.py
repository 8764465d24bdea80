"""An algorithm: an advantage and a loss, the parts of which they are composed, and their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch

from mmr1.config import AlgorithmConfig, DistillationAdvantage, KlFull, KlLoss, KlReward
from mmr1.trainer.algorithms import losses
from mmr1.trainer.algorithms.kl import ESTIMATORS, bounded, k3
from mmr1.trainer.algorithms.losses import Level, LossAggMode


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """The inputs of an advantage: G groups of n completions, B = G * n in group order.

    Attributes:
        rewards: ``[G, n]``, 0 where there is no valid one. The KL penalty is not in them;
            ``penalised`` subtracts it.
        valid: ``[G, n]`` bool.
        mask: ``[B, R]`` bool, the tokens of completions that count in baselines. Those of truncated
            completions are in it even where ``mask_truncated_completions`` takes them out of the
            loss afterwards.
        kl_penalty: ``[B, R]``, the coefficient included; 0 unless ``algorithm.kl.type: reward``.
            Of distillation it is what the teacher says.
        greedy, greedy_valid: ``[G, 1]``, the reward of the greedy completion and whether it is
            valid; None unless ``Advantage.greedy_baseline``.
        step_rewards, step_ends: ``[B, R]``, the reward at the last token of each step and where
            those tokens are; None unless ``Advantage.step_supervision`` or ``turns``.
        step_states: ``[B, R]`` int64, at those tokens a number of what the policy's turn answers;
            None unless ``Advantage.turns``.
        components: ``[F, G, n]``, the unweighted values of the F reward functions with a weight, 0
            where there is no valid reward.
        weights: ``[F]``, their weights.
        values: ``[B, R]``, the critic's value of the state before each token; None without a
            critic.
        final_values: ``[B]``, the critic's value of the state after a truncated completion, 0 after
            any other; None without ``algorithm.advantage.critic.bootstrap_truncated``.
    """

    rewards: torch.Tensor
    valid: torch.Tensor
    mask: torch.Tensor
    kl_penalty: torch.Tensor
    greedy: torch.Tensor | None = None
    greedy_valid: torch.Tensor | None = None
    step_rewards: torch.Tensor | None = None
    step_ends: torch.Tensor | None = None
    step_states: torch.Tensor | None = None
    values: torch.Tensor | None = None
    final_values: torch.Tensor | None = None
    components: torch.Tensor | None = None
    weights: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The inputs of a token loss, all ``[B, R]``.

    Attributes:
        logprobs: Under the policy, differentiable.
        old_logprobs: Under the policy before the rollout's first update, detached.
        advantages: 0 outside the mask.
        entropy: Entropy of the policy's distribution at each token, differentiable.
        mask: Bool, the tokens that count.
        ref_logprobs: Under the reference policy, or None when KL is off.
        kl_coef, entropy_coef: Coefficients of the KL term and the entropy bonus in this step.
        ppo_kl_coef: Coefficient of the KL to the policy before the rollout's first update.
        full_kl: KL to the reference over the whole vocabulary, differentiable; None unless
            ``algorithm.kl.type: full``.
        chosen: Bool, the tokens that ``Loss.choose`` named; None without it.
        rollout_logprobs: Under the engine that sampled; the update always has them.
        masked_logprobs: Under the policy before the rollout's first update, with the pictures
            masked; NaN for a prompt without one. None without ``algorithm.perception``.
    """

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    entropy: torch.Tensor
    mask: torch.Tensor
    ref_logprobs: torch.Tensor | None = None
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    full_kl: torch.Tensor | None = None
    chosen: torch.Tensor | None = None
    rollout_logprobs: torch.Tensor | None = None
    ppo_kl_coef: float = 0.0
    masked_logprobs: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class UpdateTokens:
    """The tokens of one mini-batch before the rollout's first update, all ``[B, R]``.

    Attributes:
        logprobs: Under the policy before the update.
        advantages: 0 outside the mask.
        mask: Bool, the tokens that count in the loss.
    """

    logprobs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor


OfTokens = Callable[[LossInputs], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Advantage:
    """Turns rewards into advantages.

    Attributes:
        of_tokens: ``AdvantageInputs -> [B, R]``. ``per_completion`` makes one of an advantage
            ``[G, n]``.
        returns: ``AdvantageInputs -> [B, R]``, the targets of the critic; None without a critic.
        greedy_baseline: It needs the reward of each prompt's greedy completion.
        step_supervision: It learns from step rewards alone. A completion's own reward is only
            logged, so one without a valid reward counts like any other.
        turns: It learns from the rewards of the policy's turns, and compares those that answer the
            same ``state``, or those of the same number, ``turn``.
        state: Numbers kept from step to step, such as a moving average; saved in checkpoints.
    """

    of_tokens: Callable[[AdvantageInputs], torch.Tensor]
    returns: Callable[[AdvantageInputs], torch.Tensor] | None = None
    greedy_baseline: bool = False
    step_supervision: bool = False
    turns: Literal["state", "turn"] | None = None
    state: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loss:
    """A policy loss.

    Attributes:
        of_tokens: ``LossInputs -> [B, R]``, to be minimised.
        of_steps: In its place where an advantage is the sum of the rewards of the steps to come;
            None: the same.
        penalty: ``LossInputs -> [B, R]``, added to it. It is of the policy as it is, so the
            correction for the engine's probabilities does not weigh it.
        metrics: Tensors ``[B, R]`` to log as token means, by name.
        ratio: What the ratio to the policy before the rollout's first update is of; see
            ``losses.compared``.
        kl: What the KL term of ``algorithm.kl.type: loss`` is of.
        needs_signal: A token of advantage 0 has no gradient, so that the update can skip it.
        choose: ``UpdateTokens -> [B, R]`` bool, tokens that it treats in another way
            (``LossInputs.chosen``). It is asked once for each mini-batch of a rollout, in the
            loop's process, so that it can compare the tokens of all ranks.
        state: As that of an advantage.
    """

    of_tokens: OfTokens
    of_steps: OfTokens | None = None
    penalty: OfTokens | None = None
    metrics: Callable[[LossInputs], dict[str, torch.Tensor]] = lambda x: {}
    ratio: Level = "token"
    kl: Level = "token"
    needs_signal: bool = True
    choose: Callable[[UpdateTokens], torch.Tensor] | None = None
    state: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Algorithm:
    """An advantage and a loss, with the KL and entropy terms of the configuration.

    Attributes:
        reward_state: The moments of all rewards so far, with ``normalize_rewards``.
    """

    advantage: Advantage
    policy_loss: Loss
    config: AlgorithmConfig
    reward_state: dict[str, float] = field(default_factory=dict)

    def loss(self, x: LossInputs, correction: torch.Tensor | float = 1.0) -> torch.Tensor:
        """The policy and KL terms, less entropy bonus and perception, plus the loss's own penalty.

        ``[B, R]``, to be minimised. The policy term is 0 where it is masked as off-policy.

        Args:
            correction: From ``losses.rollout_importance_weights``. It weighs the policy term; the
                other terms are of the policy as it is.
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
            pair = losses.compared(x.logprobs, x.ref_logprobs, x.mask, loss.kl)
            estimate = ESTIMATORS[kl.estimator](*pair)
            if kl.use_bias_correction_kl:
                pair = losses.compared(x.logprobs, x.old_logprobs, x.mask, loss.ratio)
                estimate = estimate * losses.ratio(*pair)
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

        ``ppo_kl`` is ``old - log p`` of each token. 1 or 0 are ``ratio_bounded``, where the
        logarithm of the ratio to the policy before the rollout's first update reached its bound;
        ``kl_bounded``, where the KL estimate reached its own; and ``off_policy_masked``.
        ``perception_kl`` is what ``algorithm.perception`` rewards.
        """
        loss = self.policy_loss
        new, old = losses.compared(x.logprobs, x.old_logprobs, x.mask, loss.ratio)
        logged = {
            "ppo_kl": x.old_logprobs - x.logprobs,
            "ratio_bounded": ((new - old).abs() > losses.LOG_RATIO_BOUND).float(),
        }
        if x.ref_logprobs is not None:
            level = loss.kl if isinstance(self.config.kl, KlLoss) else "token"
            pair = losses.compared(x.logprobs, x.ref_logprobs, x.mask, level)
            logged["kl_bounded"] = bounded(*pair, self.kl_estimator).float()
        if (threshold := self.config.rollout_correction.off_policy_mask_threshold) is not None:
            logged["off_policy_masked"] = _off_policy(x, threshold).float()
        if self.config.perception is not None:
            logged["perception_kl"] = _perception(x)
        return {**logged, **loss.metrics(x)}

    @cached_property
    def loss_agg_mode(self) -> LossAggMode:
        """The way to add up token losses; see ``losses.token_weights``."""
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
    return losses.off_policy_sequences(
        x.logprobs, x.rollout_logprobs, x.advantages, x.mask, threshold
    )


def _perception(x: LossInputs) -> torch.Tensor:
    """PAPO's KL of the policy to itself with the pictures masked, k3; 0 without a picture.

    The masked side has no gradient (arXiv 2507.06448, and its authors' code by default).
    """
    masked = x.masked_logprobs
    assert masked is not None, "build_experience is given them"
    return k3(x.logprobs, torch.where(masked.isnan(), x.logprobs.detach(), masked))


def of_shape(made: Any, shape: torch.Size, whose: str, wanted: str) -> torch.Tensor:
    """What a function made, if it is a tensor of this shape; a scalar would be broadcast.

    Raises:
        ValueError: It is something else. Says ``whose`` it is and what is ``wanted``.
    """
    if isinstance(made, torch.Tensor) and made.shape == shape:
        return made
    what = f"shape {tuple(made.shape)}" if isinstance(made, torch.Tensor) else type(made).__name__
    raise ValueError(f"{whose} returned {what}; it must return a tensor {tuple(shape)}: {wanted}")


def per_completion(
    advantage: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[AdvantageInputs], torch.Tensor]:
    """Gives each token of a completion the advantage ``(rewards, valid) -> [G, n]`` of the whole.

    With ``algorithm.kl.type: reward`` each reward is first reduced by the completion's KL penalty.

    Raises:
        ValueError: When it is called, if the advantage returns another shape.
    """

    def of_tokens(x: AdvantageInputs) -> torch.Tensor:
        made = of_shape(
            advantage(penalised(x), x.valid),
            x.rewards.shape,
            "an advantage per completion",
            "[G, n], as the rewards are",
        )
        return made.flatten()[:, None] * x.mask

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


def clipped_loss(
    low: float,
    high: float,
    dual: float | None = None,
    ratio: Level = "token",
    kl: Level = "token",
) -> Loss:
    """PPO's clipped loss.

    It logs ``clip_fraction``: 1 at the tokens whose gradient the clip removed, else 0.
    """

    def of_tokens(x: LossInputs) -> torch.Tensor:
        new, old = losses.compared(x.logprobs, x.old_logprobs, x.mask, ratio)
        loss = losses.ppo_clip(new, old, x.advantages, low, high)
        return loss if dual is None else losses.dual_clip(loss, x.advantages, dual)

    def metrics(x: LossInputs) -> dict[str, torch.Tensor]:
        new, old = losses.compared(x.logprobs, x.old_logprobs, x.mask, ratio)
        clipped = losses.clip_fraction_mask(new, old, x.advantages, low, high)
        return {"clip_fraction": clipped.float()}

    return Loss(of_tokens, metrics=metrics, ratio=ratio, kl=kl)
