"""An algorithm: an advantage and a loss, and what each may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the configuration imports this package and must stay without torch
    import torch

    from mmr1.trainer.algorithms.losses import LossAggMode


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """What an advantage may use: G groups of n completions, B = G * n in group order.

    Attributes:
        rewards: ``[G, n]``, 0 where there is no valid one. The KL penalty is not in them;
            ``terms.penalised`` subtracts it.
        valid: ``[G, n]`` bool.
        mask: ``[B, R]`` bool, the tokens of completions that count in baselines. Those of truncated
            completions are in it even where ``mask_truncated_completions`` takes them out of the
            loss afterwards.
        kl_penalty: ``[B, R]``, the coefficient included; 0 unless ``use_kl_loss: false``.
        greedy, greedy_valid: ``[G, 1]``, the reward of the greedy completion and whether it is
            valid; None unless ``Algorithm.greedy_baseline``.
        step_rewards, step_ends: ``[B, R]``, the reward at the last token of each step and where
            those tokens are; None without ``algorithm.step_rewards``.
        components: ``[F, G, n]``, the unweighted values of the F reward functions with a weight, 0
            where there is no valid reward; None unless ``adv_estimator: gdpo`` or an algorithm of
            the user's own may read them.
        weights: ``[F]``, their weights; None likewise.
        values: ``[B, R]``, the critic's value of the state before each token; None without a
            critic.
        final_values: ``[B]``, the critic's value of the state after a truncated completion, 0 after
            any other; None without ``critic.bootstrap_truncated``.
    """

    rewards: torch.Tensor
    valid: torch.Tensor
    mask: torch.Tensor
    kl_penalty: torch.Tensor
    greedy: torch.Tensor | None = None
    greedy_valid: torch.Tensor | None = None
    step_rewards: torch.Tensor | None = None
    step_ends: torch.Tensor | None = None
    values: torch.Tensor | None = None
    final_values: torch.Tensor | None = None
    components: torch.Tensor | None = None
    weights: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a token loss may use. All ``[B, R]``.

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
            ``kl_estimator: full``.
        chosen: Bool, the tokens that ``Algorithm.choose`` named; None without it.
        rollout_logprobs: Under the engine that sampled; the update always has them.
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


@dataclass(frozen=True, slots=True)
class UpdateTokens:
    """The tokens of one mini-batch before the rollout's first update. All ``[B, R]``.

    Attributes:
        logprobs: Under the policy before the update.
        advantages: 0 outside the mask.
        mask: Bool, the tokens that count in the loss.
    """

    logprobs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An advantage and a loss.

    Attributes:
        advantages: ``AdvantageInputs -> [B, R]``. ``terms.per_completion`` makes one of an
            advantage ``[G, n]``.
        token_loss: ``LossInputs -> [B, R]``, the policy term, to be minimised.
        loss_agg_mode: How token losses are added up; see ``losses.token_weights``.
        needs_signal: True when a token of advantage 0 has no gradient, so that the update can skip
            such sequences. False with a KL term or an entropy bonus in the loss.
        penalties: ``LossInputs -> [B, R]``, added to the policy term: the KL term and the entropy
            bonus. They are of the policy as it is, so the correction for the engine's
            probabilities does not weigh them.
        metrics: Extra tensors ``[B, R]`` to log as token means, by metric name. Entropy and KL are
            logged for every algorithm.
        returns: ``AdvantageInputs -> [B, R]``, the targets of the critic of ``algorithm.critic``;
            None without a critic.
        greedy_baseline: The advantage needs the reward of each prompt's greedy completion.
        shuffled_frames: A reward function compares with completions for videos whose frames are
            shuffled.
        step_supervision: It learns from step rewards alone. A completion's own reward is only
            logged, so one without a valid reward counts like any other.
        choose: ``UpdateTokens -> [B, R]`` bool, tokens that the loss treats in another way
            (``LossInputs.chosen``). It is asked once for each mini-batch of a rollout, in the
            loop's process, so that it can compare the tokens of all ranks.
        state: Numbers kept from step to step, such as a moving average; saved in checkpoints.
    """

    advantages: Callable[[AdvantageInputs], torch.Tensor]
    token_loss: Callable[[LossInputs], torch.Tensor]
    loss_agg_mode: LossAggMode
    needs_signal: bool
    penalties: Callable[[LossInputs], torch.Tensor | float] = lambda x: 0.0
    metrics: Callable[[LossInputs], dict[str, torch.Tensor]] = lambda x: {}
    returns: Callable[[AdvantageInputs], torch.Tensor] | None = None
    greedy_baseline: bool = False
    shuffled_frames: bool = False
    step_supervision: bool = False
    choose: Callable[[UpdateTokens], torch.Tensor] | None = None
    state: dict[str, float] = field(default_factory=dict)

    def loss(self, x: LossInputs, correction: torch.Tensor | float = 1.0) -> torch.Tensor:
        """``correction * token_loss + penalties``, ``[B, R]``; see ``importance_sampling.py``."""
        return correction * self.token_loss(x) + self.penalties(x)

    def state_dict(self) -> dict[str, float]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.state.clear()
        self.state.update(state)
