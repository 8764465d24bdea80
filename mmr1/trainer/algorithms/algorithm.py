"""What an algorithm is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from mmr1.trainer.algorithms.losses import LossAggMode


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """What an advantage may use: G groups of n completions, B = G * n in group order.

    Attributes:
        rewards: ``[G, n]``, 0 where there is no valid one. With ``use_kl_loss: false`` and an
            algorithm
            that gives each completion one advantage, less the completion's whole KL penalty.
        valid: ``[G, n]`` bool.
        mask: ``[B, R]`` bool, the tokens that count.
        kl_penalty: ``[B, R]``, coefficient included; 0 unless ``use_kl_loss: false``.
        greedy, greedy_valid: ``[G, 1]``, of the greedy completion; None unless asked for.
        step_rewards, step_ends: ``[B, R]``, at the last token of each step; None without steps.
        values: ``[B, R]``, the critic's, of the state before each token; None without a critic.
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


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a token loss may use. All ``[B, R]``.

    Attributes:
        logprobs: Under the policy, differentiable.
        old_logprobs: Under the policy that the update started from, detached.
        advantages: 0 outside the mask.
        entropy: Of the policy's distribution at each token, differentiable.
        mask: Bool, the tokens that count.
        ref_logprobs: Under the reference policy, or None when KL is off.
        kl_coef, entropy_coef: Their coefficients in this step.
        full_kl: KL over the vocabulary to the reference, differentiable; None unless
            ``kl_estimator: full``.
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


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An advantage and a loss.

    Attributes:
        advantages: ``AdvantageInputs -> [B, R]``; see ``per_completion`` for those that give a
            completion
            one advantage.
        token_loss: ``LossInputs -> [B, R]``, to be minimised.
        loss_agg_mode: How token losses are added up; see ``losses.token_weights``.
        needs_signal: False when a token of advantage 0 still has a gradient (a KL or entropy
            term); True lets the update leave such sequences out.
        metrics: Extra tensors ``[B, R]`` to log as token means, by metric name. Entropy and KL are
            logged for every algorithm.
        returns: ``AdvantageInputs -> [B, R]``, what the critic of ``algorithm.critic`` learns; None
            for
            the algorithms that have none.
        greedy_baseline: The advantage needs the reward of each prompt's greedy completion.
        shuffled_frames: The reward compares with completions for shuffled frames of the videos.
        state: Numbers that go from step to step, such as a moving average; saved with checkpoints.
    """

    advantages: Callable[[AdvantageInputs], torch.Tensor]
    token_loss: Callable[[LossInputs], torch.Tensor]
    loss_agg_mode: LossAggMode
    needs_signal: bool
    metrics: Callable[[LossInputs], dict[str, torch.Tensor]] = lambda x: {}
    returns: Callable[[AdvantageInputs], torch.Tensor] | None = None
    greedy_baseline: bool = False
    shuffled_frames: bool = False
    state: dict[str, float] = field(default_factory=dict)

    def state_dict(self) -> dict[str, float]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.state.clear()
        self.state.update(state)
