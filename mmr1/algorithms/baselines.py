"""Advantages: how much better a completion, or a token of it, was than its baseline.

Pure functions. Advantages per completion take rewards ``[G, n]`` (G prompts, group size n) and a
mask ``valid`` of the same shape. A completion without a valid reward counts in no baseline and gets
advantage 0. Advantages per token take ``[B, R]`` (B = G * n sequences in group order, R the longest
completion) and a mask of the tokens that count.
"""

from __future__ import annotations

from mmr1.lazy import torch


def group_mean(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Mean reward of each group's valid completions: ``[G, 1]``, 0 for a group without any."""
    total = torch.where(valid, rewards, 0.0).sum(-1, keepdim=True)
    return total / valid.sum(-1, keepdim=True).clamp(min=1)


def grpo(rewards: torch.Tensor, valid: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Group-normalised advantage of GRPO (arXiv 2402.03300, section 4.1.2): ``[G, n]``.

    ``A_i = (r_i - mean(r)) / (std(r) + eps)`` with the sample standard deviation, as in the
    released implementations. A group whose rewards are all equal gets exactly 0.
    """
    centred = dr_grpo(rewards, valid)
    count = valid.sum(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + eps)


def dr_grpo(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Advantage of Dr.GRPO (arXiv 2503.20783): ``A_i = r_i - mean(r)``, ``[G, n]``.

    Without the division by the deviation, which favours questions that are too easy or too hard.
    """
    centred = torch.where(valid, rewards - group_mean(rewards, valid), 0.0)
    return torch.where(has_signal(rewards, valid), centred, 0.0)


def rloo(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Leave-one-out advantage of RLOO (arXiv 2402.14740, equation 8): ``[G, n]``.

    ``A_i = r_i - mean(r_j, j != i)``, which is ``n / (n - 1) * (r_i - mean(r))``. A completion
    that is alone in its group has no baseline and gets 0.
    """
    count = valid.sum(-1, keepdim=True)
    return dr_grpo(rewards, valid) * count / (count - 1).clamp(min=1)


def batch_std(rewards: torch.Tensor, valid: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``(r_i - mean of the group) / (std of the batch + eps)``: ``[G, n]``.

    TRL's ``scale_rewards="batch"`` (arXiv 2508.08221): a group that nearly agrees is not scaled up.
    The sample deviation is over all valid rewards of the batch.
    """
    count = valid.sum()
    mean = torch.where(valid, rewards, 0.0).sum() / count.clamp(min=1)
    spread = torch.where(valid, rewards - mean, 0.0).square().sum()
    return dr_grpo(rewards, valid) / ((spread / (count - 1).clamp(min=1)).sqrt() + eps)


def pass_at_k(rewards: torch.Tensor, valid: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``(best - second best) / (std + eps)`` for the group's best completion, 0 for the others.

    The leave-one-out advantage of the best of n (arXiv 2503.19595), divided by the group's sample
    deviation as EasyR1's ``grpo_passk`` does: ``[G, n]``. A group with fewer than two valid rewards
    gets 0.
    """
    known = torch.where(valid, rewards, -torch.inf)
    best, index = known.topk(min(2, known.shape[-1]), dim=-1)
    lead = (best[:, :1] - best[:, -1:]).nan_to_num(0.0, posinf=0.0)  # of fewer than two: none
    centred = torch.where(valid, rewards - group_mean(rewards, valid), 0.0)
    freedom = (valid.sum(-1, keepdim=True) - 1).clamp(min=1)
    deviation = (centred.square().sum(-1, keepdim=True) / freedom).sqrt()
    return torch.zeros_like(rewards).scatter(-1, index[:, :1], lead / (deviation + eps))


def optimal_baseline(
    rewards: torch.Tensor, valid: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """OPO (arXiv 2505.23585): ``A_i = r_i - b``, ``b = sum of l_j r_j / sum of l_j``, ``[G, n]``.

    The baseline of least variance, if the squared norm of a completion's gradient grows with its
    length ``l_j`` in tokens, ``[G, n]``.
    """
    weights = torch.where(valid, lengths.to(rewards), 0.0)
    total = weights.sum(-1, keepdim=True)
    baseline = (weights * rewards).sum(-1, keepdim=True) / total.clamp(min=1)
    return torch.where(has_signal(rewards, valid) & valid, rewards - baseline, 0.0)


def gdpo(
    components: torch.Tensor, weights: torch.Tensor, valid: torch.Tensor, eps: float = 1e-6
) -> torch.Tensor:
    """GDPO (arXiv 2601.05242): each reward function normalised by itself, ``[G, n]``.

    ``A_i = sum of w_k (r_ik - mean_k) / (std_k + eps)`` with mean and sample deviation of function
    k over the group, then divided by the sample deviation of A over the batch. The batch's mean is
    0 already, because every group's is.

    Args:
        components: ``[F, G, n]``, the values of the F reward functions, unweighted.
        weights: ``[F]``, the weights of the functions.
    """
    of_functions = torch.stack([grpo(values, valid, eps) for values in components])
    total = (weights.to(components)[:, None, None] * of_functions).sum(0)
    spread = total.square().sum() / (valid.sum() - 1).clamp(min=1)
    return total / (spread.sqrt() + eps)


def gpg(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Advantage of GPG (arXiv 2504.02546): ``A_i = alpha (r_i - mean(r))``, ``[G, n]``.

    ``alpha = G / (G - M)``, M the number of groups whose rewards are all equal and which therefore
    have no gradient. The paper's normaliser ``F_norm`` is 1.
    """
    signal = has_signal(rewards, valid)
    return dr_grpo(rewards, valid) * len(rewards) / signal.sum().clamp(min=1)


def reinforce(rewards: torch.Tensor, valid: torch.Tensor, baseline: float) -> torch.Tensor:
    """REINFORCE with a baseline (Williams 1992): ``A_i = r_i - b``, ``[G, n]``."""
    return torch.where(valid, rewards - baseline, 0.0)


def moving_average(baseline: float, mean: float, momentum: float) -> float:
    """The baseline after a batch of that mean reward: ``m b + (1 - m) mean(r)``."""
    return momentum * baseline + (1 - momentum) * mean


def remax(
    rewards: torch.Tensor, valid: torch.Tensor, greedy: torch.Tensor, greedy_valid: torch.Tensor
) -> torch.Tensor:
    """ReMax (arXiv 2310.10505): the greedy completion's reward as baseline, ``[G, n]``.

    ``greedy`` and ``greedy_valid`` are ``[G, 1]``; without a valid greedy reward a group gets 0.
    """
    return torch.where(valid & greedy_valid, rewards - greedy, 0.0)


def reinforce_pp(
    rewards: torch.Tensor, kl_penalty: torch.Tensor, mask: torch.Tensor, gamma: float = 1.0
) -> torch.Tensor:
    """REINFORCE++ (arXiv 2501.03262): normalised return with a token-level KL penalty, ``[B, R]``.

    ``A_t = r - sum of penalties from t on``, then normalised over all tokens of the batch. With
    ``gamma`` below 1 the return is discounted by it for each token to come.

    Args:
        rewards: ``[B]``.
        kl_penalty: ``[B, R]``, the coefficient included.
        mask: ``[B, R]``.
    """
    token_rewards = at_end(rewards, mask) - torch.where(mask, kl_penalty, 0.0)
    return normalised(returns_to_go(token_rewards, gamma), mask)


def reinforce_pp_baseline(
    rewards: torch.Tensor, valid: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """REINFORCE++-baseline (arXiv 2501.03262): ``r - group mean``, batch-normalised, ``[B, R]``."""
    centred = dr_grpo(rewards, valid).flatten()
    return normalised(centred[:, None].expand(mask.shape), mask)


def process_supervision(
    step_rewards: torch.Tensor, step_ends: torch.Tensor, eps: float = 1e-6
) -> torch.Tensor:
    """GRPO with process supervision (arXiv 2402.03300, section 4.1.3): ``[G, n, R]``.

    Step rewards are normalised by mean and sample deviation over all steps of the group; a token's
    advantage is the sum over the steps that end at or after it.

    Args:
        step_rewards: ``[G, n, R]``, read at the last token of each step.
        step_ends: ``[G, n, R]`` bool, True at those tokens.
    """
    flat, ends = step_rewards.flatten(1), step_ends.flatten(1)  # [G, n * R]
    return returns_to_go(grpo(flat, ends, eps).view(step_rewards.shape))


def gigpo_turns(
    rewards: torch.Tensor,
    ends: torch.Tensor,
    states: torch.Tensor,
    gamma: float,
    scale: bool = True,
    eps: float = 1e-6,
) -> torch.Tensor:
    """The step advantages of GiGPO (arXiv 2505.10978, section 4.2): ``[B, R]``.

    ``R_t = r_t + gamma R_{t+1}`` over the turns t of a conversation, and
    ``A_t = (R_t - mean) / (std + eps)`` with mean and sample deviation over the turns of the same
    state; a state of one turn, or of equal returns, gives exactly 0. Without ``scale`` the divisor
    is 1. Every token has the advantage of its turn.

    Args:
        rewards: ``[B, R]``, read at the last token of each turn.
        ends: ``[B, R]`` bool, True at those tokens.
        states: ``[B, R]`` int64, read there: turns of one number are compared.
    """
    following = torch.zeros_like(rewards[:, 0])
    returns = torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        following = torch.where(ends[:, t], rewards[:, t] + gamma * following, following)
        returns[:, t] = following
    of_turns = torch.zeros_like(rewards)
    of_turns[ends] = _within(states[ends], returns[ends], scale, eps)
    advantages = torch.zeros_like(rewards)
    turn = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        turn = torch.where(ends[:, t], of_turns[:, t], turn)
        advantages[:, t] = turn
    return advantages


def _within(numbers: torch.Tensor, values: torch.Tensor, scale: bool, eps: float) -> torch.Tensor:
    """Each value less the mean of those of its number, over their deviation: ``[N]``."""
    found, index, count = numbers.unique(return_inverse=True, return_counts=True)
    empty = values.new_zeros(len(found))
    centred = values - (empty.index_add(0, index, values) / count)[index]
    low, high = (
        empty.scatter_reduce(0, index, values, r, include_self=False) for r in ("amin", "amax")
    )
    centred = torch.where((low < high)[index], centred, 0.0)
    if not scale:
        return centred
    variance = empty.index_add(0, index, centred.square()) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + eps)[index]


def gae(
    token_rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    gamma: float,
    lam: float,
    final_values: torch.Tensor | None = None,
) -> torch.Tensor:
    """Generalised advantage estimation (arXiv 1506.02438, equation 16): ``[B, R]``.

    ``delta_t = r_t + gamma V_{t+1} - V_t``, ``A_t = delta_t + gamma lam A_{t+1}``, with value 0
    after the last token, or ``final_values``: a completion that the limit cut off has not ended
    (arXiv 1712.00378). ``lam = 0`` is the one-step TD error, ``lam = 1`` the discounted return
    less the value. The returns that the critic learns are ``A + V``.

    Args:
        token_rewards, values: ``[B, R]``; ``values[:, t]`` is of the state before token t.
        mask: ``[B, R]``, True at the first tokens of each row.
        final_values: ``[B]``, of the state after the last token.
    """
    values = torch.where(mask, values, 0.0)
    advantages = torch.zeros_like(values)
    following = torch.zeros_like(values[:, 0])
    next_value = torch.zeros_like(following) if final_values is None else final_values
    for t in reversed(range(values.shape[1])):
        delta = token_rewards[:, t] + gamma * next_value - values[:, t]
        following = torch.where(mask[:, t], delta + gamma * lam * following, 0.0)
        advantages[:, t] = following
        next_value = torch.where(mask[:, t], values[:, t], next_value)
    return advantages


def at_end(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``[B]`` rewards at the last unmasked token of each row, ``[B, R]``; a row may have none."""
    lengths = mask.sum(-1, keepdim=True)
    last = torch.arange(mask.shape[1]) == lengths - 1
    return torch.where(last, rewards[:, None], 0.0)


def returns_to_go(token_rewards: torch.Tensor, gamma: float = 1.0) -> torch.Tensor:
    """Discounted sum of the rewards from each token on, along the last dimension.

    ``R_t = r_t + gamma R_{t+1}``.
    """
    if gamma == 1:
        return token_rewards.flip(-1).cumsum(-1).flip(-1)
    returns = torch.zeros_like(token_rewards)
    following = torch.zeros_like(token_rewards[..., 0])
    for t in reversed(range(token_rewards.shape[-1])):
        following = token_rewards[..., t] + gamma * following
        returns[..., t] = following
    return returns


def normalised(values: torch.Tensor, mask: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """``(x - mean) / (std + eps)`` over all unmasked entries, 0 elsewhere; population deviation.

    Entries that are all equal become exactly 0.
    """
    chosen = values[mask]
    if len(chosen) == 0 or chosen.max() == chosen.min():
        return torch.zeros_like(values)
    deviation = chosen.std(correction=0)
    return torch.where(mask, (values - chosen.mean()) / (deviation + eps), 0.0)


def has_signal(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """True for groups whose valid rewards differ: ``[G, 1]`` bool.

    Exactly, so that rounding of their mean does not become a signal.
    """
    high = torch.where(valid, rewards, -torch.inf).amax(-1, keepdim=True)
    low = torch.where(valid, rewards, torch.inf).amin(-1, keepdim=True)
    return high > low
