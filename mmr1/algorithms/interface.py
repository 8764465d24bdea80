"""An advantage and a loss: their inputs, and the functions that many of them are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from mmr1.algorithms import ratios
from mmr1.algorithms.ratios import Level
from mmr1.lazy import torch


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


OfTokens: TypeAlias = "Callable[[LossInputs], torch.Tensor]"


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
        of_steps: Function in its place where an advantage is the sum of the rewards of the steps to
            come; None: the same.
        penalty: ``LossInputs -> [B, R]``, added to it. It is of the policy as it is, so the
            correction for the engine's probabilities does not weigh it.
        metrics: Tensors ``[B, R]`` to log as token means, by name.
        ratio: Tokens that the ratio to the policy before the rollout's first update covers; see
            ``ratios.compared``.
        kl: Log-probs that the KL term of ``algorithm.kl.type: loss`` compares.
        needs_signal: A token of advantage 0 has no gradient, so that the update can skip it.
        choose: ``UpdateTokens -> [B, R]`` bool, tokens that it treats in another way
            (``LossInputs.chosen``). It is asked once for each mini-batch of a rollout, in the
            loop's process, so that it can compare the tokens of all ranks.
        state: Start of a state that is kept from step to step, as that of an advantage.
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


def require_shape(made: Any, shape: torch.Size, whose: str, wanted: str) -> torch.Tensor:
    """Return what a function made, if it is a tensor of this shape; a scalar would be broadcast.

    Raises:
        ValueError: If the function returned something else; the message names ``whose`` value and
            what is ``wanted``.
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
        made = require_shape(
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

    It logs ``loss/clip_fraction``: 1 at the tokens whose gradient the clip removed, else 0.
    """

    def of_tokens(x: LossInputs) -> torch.Tensor:
        new, old = ratios.compared(x.logprobs, x.old_logprobs, x.mask, ratio)
        loss = ratios.ppo_clip(new, old, x.advantages, low, high)
        return loss if dual is None else ratios.dual_clip(loss, x.advantages, dual)

    def metrics(x: LossInputs) -> dict[str, torch.Tensor]:
        new, old = ratios.compared(x.logprobs, x.old_logprobs, x.mask, ratio)
        clipped = ratios.clip_fraction_mask(new, old, x.advantages, low, high)
        return {"loss/clip_fraction": clipped.float()}

    return Loss(of_tokens, metrics=metrics, ratio=ratio, kl=kl)
