"""The formulas of a step once more, written from the papers, a completion at a time.

``mmr1.algorithms`` computes the same on padded batches. That these stand here a second time
is the point: nothing is shared, so that a mistake there is a difference here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmr1_contrib.lab.audit.recipe import Recipe

Rows = Sequence[torch.Tensor]
EPSILON = 1e-6
"""Added to a deviation where no key states it."""


# What is sampled from ----------------------------------------------------------------------------

TOP_K_LIMIT = 512
"""``rollout.top_k`` where ``top_p`` or ``min_p`` is set without it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What is left of a next-token distribution: min-p, then top-k, then top-p of the rest."""

    min_p: float
    top_k: int
    top_p: float

    @property
    def keeps_all(self) -> bool:
        """True if nothing is cut."""
        return self.min_p == 0 and self.top_k == 0 and self.top_p == 1

    def kept(self, logp: torch.Tensor, slack: float = 0.0) -> torch.Tensor:
        """Return which of ``[V]`` log-probs are kept, bool.

        Args:
            slack: Nats by which each log-prob may be off. Above 0: ids that are kept whatever the
                error is; below 0: ids that may be kept.
        """
        ordered, order = logp.sort(descending=True)
        able, ahead = self._after_top_k(ordered, slack)
        if self.top_p < 1:
            # In the worst case more mass is ahead of an id, of less mass in all, or the other way.
            others, _ = self._after_top_k(ordered, -slack)
            p = ordered.exp()
            mass = torch.cat([p.new_zeros(1), (p * others).cumsum(0)])
            able &= mass[ahead] < self.top_p * math.exp(-slack) * (p * able).sum()
        return torch.zeros_like(able).scatter(0, order, able)

    def _after_top_k(
        self, ordered: torch.Tensor, slack: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Which ids min-p and top-k keep, most probable first, and how many are ahead of each."""
        able = ordered > -torch.inf
        if self.min_p > 0:
            able &= ordered >= ordered[0] + math.log(self.min_p) + slack
        kth = ordered[min(self.top_k or TOP_K_LIMIT, len(ordered)) - 1]
        if slack == 0:
            return able & (ordered >= kth), torch.arange(len(ordered))
        # As many as may be more probable, but for itself, or only those that surely are.
        ascending = ordered.flip(0).contiguous()
        ahead = len(ordered) - torch.searchsorted(ascending, ordered - slack, right=slack < 0)
        ahead = ahead - int(slack > 0)
        return able & (ahead < (self.top_k or TOP_K_LIMIT)), ahead

    def allows(self, logp: torch.Tensor, ids: torch.Tensor, slack: float) -> bool:
        """Return whether these may be the ids that were kept, with log-probs off by ``slack``."""
        given = torch.zeros_like(logp, dtype=torch.bool)
        given[ids] = True
        surely, perhaps = self.kept(logp, slack), self.kept(logp, -slack)
        return len(ids) > 0 and not bool((surely & ~given).any() or (given & ~perhaps).any())


# Rewards to advantages ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scored:
    """What advantages are computed from.

    Attributes:
        rewards: Total reward of each completion, ``[G, n]`` float64; NaN if it is invalid.
        components: Reward of each function, by name, ``[G, n]`` float64.
        weights: Weight of each function, by name.
        greedy: Reward of each prompt's greedy completion, ``[G]``; None without one.
        counted: Tokens that count, bool, one tensor for each completion.
        penalties: KL penalty of each token with its coefficient, one tensor for each completion.
        values: The critic's values; None without a critic.
        steps: Reward of the step that ends at each token, NaN elsewhere; None without such rewards.
    """

    rewards: torch.Tensor
    components: Mapping[str, torch.Tensor]
    weights: Mapping[str, float]
    greedy: torch.Tensor | None
    counted: Rows
    penalties: Rows
    values: Rows | None
    steps: Rows | None = None


def advantages(recipe: Recipe, x: Scored) -> list[torch.Tensor]:
    """Return the advantage of each token, one float64 tensor for each completion.

    Tokens that do not count get 0.
    """
    kind = recipe.get("algorithm.advantage.type")
    by_token = BY_TOKEN.get(kind)
    if by_token is not None:
        rows = by_token(recipe, x)
    else:
        total = x.rewards - _per_completion(x.penalties, x.counted).view(x.rewards.shape)
        per_completion = BY_COMPLETION[kind](recipe, total, x).nan_to_num(nan=0.0)
        rows = [
            value.expand(len(mask))
            for value, mask in zip(per_completion.flatten(), x.counted, strict=True)
        ]
        rows = _discounted(recipe, rows)
    return [row * mask for row, mask in zip(rows, x.counted, strict=True)]


def _per_completion(rows: Rows, counted: Rows) -> torch.Tensor:
    sums = [(row * mask).sum() for row, mask in zip(rows, counted, strict=True)]
    return torch.stack(sums).double()


def _centred(r: torch.Tensor) -> torch.Tensor:
    """Rewards less their group's mean over valid ones; exactly 0 in a group without a signal."""
    out = r - r.nanmean(1, keepdim=True)
    high = r.nan_to_num(nan=-torch.inf).amax(1, keepdim=True)
    low = r.nan_to_num(nan=torch.inf).amin(1, keepdim=True)
    return torch.where(high > low, out, out * 0)


def _deviation(r: torch.Tensor) -> torch.Tensor:
    """Sample deviation of each group's valid rewards, ``[G, 1]``."""
    count = (~r.isnan()).sum(1, keepdim=True)
    squares = (r - r.nanmean(1, keepdim=True)).square().nansum(1, keepdim=True)
    return (squares / (count - 1).clamp(min=1)).sqrt()


def _grpo(recipe: Recipe, r: torch.Tensor, x: Scored) -> torch.Tensor:
    scale = recipe.get("algorithm.advantage.scale_rewards", "group")
    epsilon = recipe.get("algorithm.advantage.epsilon", EPSILON)
    if scale == "none":
        return _centred(r)
    if scale == "batch":
        return _centred(r) / (r[~r.isnan()].std() + epsilon)
    return _centred(r) / (_deviation(r) + epsilon)


def _rloo(recipe: Recipe, r: torch.Tensor, x: Scored) -> torch.Tensor:
    count = (~r.isnan()).sum(1, keepdim=True)
    others = (r.nansum(1, keepdim=True) - r) / (count - 1).clamp(min=1)
    return torch.where(_centred(r) == 0, 0.0, r - others)


def _pass_at_k(recipe: Recipe, r: torch.Tensor, x: Scored) -> torch.Tensor:
    out = torch.zeros_like(r)
    for row, (known, deviation) in enumerate(zip(r, _deviation(r), strict=True)):
        ordered = known.nan_to_num(nan=-torch.inf).sort(descending=True)
        if len(known[~known.isnan()]) > 1:
            lead = ordered.values[0] - ordered.values[1]
            out[row, ordered.indices[0]] = lead / (float(deviation) + EPSILON)
    return out


def _optimal_baseline(recipe: Recipe, r: torch.Tensor, x: Scored) -> torch.Tensor:
    lengths = torch.tensor([int(mask.sum()) for mask in x.counted]).view(r.shape).double()
    lengths = torch.where(r.isnan(), 0.0, lengths)
    baseline = (lengths * r.nan_to_num()).sum(1, keepdim=True) / lengths.sum(1, keepdim=True)
    differ = (_centred(r).nan_to_num() != 0).any(1, keepdim=True)
    return torch.where(differ, r - baseline, 0.0)


def _gpg(recipe: Recipe, r: torch.Tensor, x: Scored) -> torch.Tensor:
    centred = _centred(r)
    with_signal = int((centred.nan_to_num() != 0).any(1).sum())
    return centred * len(r) / max(1, with_signal)


def _gdpo(recipe: Recipe, r: torch.Tensor, x: Scored) -> torch.Tensor:
    total = torch.zeros_like(r)
    for name, values in x.components.items():
        known = torch.where(r.isnan(), torch.nan, values.nan_to_num())
        total = total + x.weights[name] * _centred(known) / (_deviation(known) + EPSILON)
    valid = total[~r.isnan()]
    return total / ((valid.square().sum() / max(1, len(valid) - 1)).sqrt() + EPSILON)


def _reinforce(recipe: Recipe, r: torch.Tensor, x: Scored) -> torch.Tensor:
    return r - r.nanmean()  # in later steps of other baselines the recomputation stops before


def _remax(recipe: Recipe, r: torch.Tensor, x: Scored) -> torch.Tensor:
    assert x.greedy is not None
    return r - x.greedy[:, None]


BY_COMPLETION: Mapping[str, Callable[[Recipe, torch.Tensor, Scored], torch.Tensor]] = {
    "grpo": _grpo,
    "rloo": _rloo,
    "pass_at_k": _pass_at_k,
    "optimal_baseline": _optimal_baseline,
    "gpg": _gpg,
    "gdpo": _gdpo,
    "reinforce": _reinforce,
    "remax": _remax,
}


def _discounted(recipe: Recipe, rows: Rows) -> list[torch.Tensor]:
    gamma = recipe.get("algorithm.advantage.gamma", 1.0)
    if recipe.get("algorithm.advantage.type") != "reinforce" or gamma == 1:
        return list(rows)
    return [row * gamma ** torch.arange(len(row) - 1, -1, -1) for row in rows]


def _returns(rewards: torch.Tensor, penalties: Rows, counted: Rows, gamma: float) -> Rows:
    """Discounted sums of each token's rewards: minus its penalty, and the total at the last."""
    out = []
    for reward, penalty, mask in zip(rewards, penalties, counted, strict=True):
        returns, following = torch.zeros(len(mask), dtype=torch.float64), 0.0
        for t in reversed(range(len(mask))):
            own = (float(reward) if t == len(mask) - 1 else 0.0) - float(penalty[t])
            following = own + gamma * following
            returns[t] = following
        out.append(returns * mask)
    return out


def _normalised(rows: Rows, counted: Rows) -> list[torch.Tensor]:
    """Rows less the mean over all counted tokens, over their population deviation."""
    tokens = torch.cat([row[mask] for row, mask in zip(rows, counted, strict=True)])
    if len(tokens) == 0 or tokens.max() == tokens.min():
        return [row * 0 for row in rows]
    mean, deviation = tokens.mean(), tokens.std(correction=0)
    return [(row - mean) / (deviation + EPSILON) for row in rows]


def _reinforce_pp(recipe: Recipe, x: Scored) -> list[torch.Tensor]:
    gamma = recipe.get("algorithm.advantage.gamma", 1.0)
    rewards = x.rewards.flatten().nan_to_num()
    return _normalised(_returns(rewards, x.penalties, x.counted, gamma), x.counted)


def _reinforce_pp_baseline(recipe: Recipe, x: Scored) -> list[torch.Tensor]:
    if recipe.get("algorithm.advantage.kl_to_go"):
        rewards = _centred(x.rewards).flatten().nan_to_num()
        return _normalised(_returns(rewards, x.penalties, x.counted, 1.0), x.counted)
    total = x.rewards - _per_completion(x.penalties, x.counted).view(x.rewards.shape)
    values = _centred(total).flatten().nan_to_num()
    rows = [v.expand(len(m)).clone() for v, m in zip(values, x.counted, strict=True)]
    return _normalised(rows, x.counted)


def _gae(recipe: Recipe, x: Scored) -> list[torch.Tensor]:
    assert x.values is not None
    gamma = recipe.get("algorithm.advantage.gamma", 1.0)
    lam = recipe.get("algorithm.advantage.lam", 1.0)
    rows = []
    rewards = x.rewards.flatten().nan_to_num()
    for reward, penalty, values in zip(rewards, x.penalties, x.values, strict=True):
        row, following, length = torch.zeros(len(values)).double(), 0.0, len(values)
        for t in reversed(range(length)):
            own = (float(reward) if t == length - 1 else 0.0) - float(penalty[t])
            later = float(values[t + 1]) if t + 1 < length else 0.0
            following = own + gamma * later - float(values[t]) + gamma * lam * following
            row[t] = following
        rows.append(row)
    return _normalised(rows, x.counted)


def _distillation(recipe: Recipe, x: Scored) -> list[torch.Tensor]:
    values = (_centred(x.rewards) / (_deviation(x.rewards) + EPSILON)).flatten().nan_to_num()
    return [value - penalty.double() for value, penalty in zip(values, x.penalties, strict=True)]


def _process(recipe: Recipe, x: Scored) -> list[torch.Tensor]:
    """Sums of the normalised rewards of the steps that end at a token or after it."""
    assert x.steps is not None
    size, out = x.rewards.shape[1], list[torch.Tensor]()
    for first in range(0, len(x.steps), size):
        group = x.steps[first : first + size]
        every = torch.cat([row[~row.isnan()] for row in group]).double()
        if len(every) < 2 or every.max() == every.min():
            out += [torch.zeros(len(row)).double() for row in group]
            continue
        for row in group:
            own = ((row.double() - every.mean()) / (every.std() + EPSILON)).nan_to_num(nan=0.0)
            out.append(own.flip(0).cumsum(0).flip(0))
    return out


BY_TOKEN: Mapping[str, Callable[[Recipe, Scored], list[torch.Tensor]]] = {
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "gae": _gae,
    "distillation": _distillation,
    "process": _process,
}


# Weights of tokens -------------------------------------------------------------------------------

AGG_MODES = (
    *("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"),
    "seq-mean-token-sum-norm",
)


def token_weights(mode: str, counted: Rows, limit: int) -> torch.Tensor:
    """Return the weight of each token's loss, all completions after one another, float64."""
    rows = [mask.double() for mask in counted]
    total = max(1.0, float(sum(row.sum() for row in rows)))
    learning = max(1, sum(bool(row.sum()) for row in rows))
    of_row: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "token-mean": lambda row: row / total,
        "seq-mean-token-mean": lambda row: row / max(1.0, float(row.sum())) / learning,
        "seq-mean-token-sum": lambda row: row / learning,
        "token-sum": lambda row: row,
        "seq-mean-token-sum-norm": lambda row: row / (len(rows) * limit),
    }
    return torch.cat([of_row[mode](row) for row in rows])


# Losses ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """What the loss of one completion reads, ``[R]`` each.

    Attributes:
        logp: Log-probs under the trained policy, with gradient.
        old, rollout: Under the policy before the update, and under the engine.
        advantage: Advantages.
        counted: Tokens that count, bool.
        entropy: Entropies of the policy, with gradient.
        ref: Log-probs under the reference; None without one.
        full_kl: Exact divergence from the reference, with gradient; None unless it is the term.
        masked: Log-probs with masked images; None without the term, NaN for a prompt without one.
        chosen: Tokens that the loss treats apart; None for a loss that chooses none.
    """

    logp: torch.Tensor
    old: torch.Tensor
    rollout: torch.Tensor
    advantage: torch.Tensor
    counted: torch.Tensor
    entropy: torch.Tensor
    ref: torch.Tensor | None = None
    full_kl: torch.Tensor | None = None
    masked: torch.Tensor | None = None
    chosen: torch.Tensor | None = None


def token_loss(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    """Return the loss of each token of a completion before its weight, ``[R]``."""
    coefficients = recipe.coefficients
    policy = POLICY[recipe.get("algorithm.loss.type")](recipe, x)
    others = torch.zeros_like(x.logp)
    kind = recipe.get("algorithm.kl.type")
    if kind == "full":
        assert x.full_kl is not None
        others = others + coefficients["kl"] * x.full_kl
    elif kind == "loss":
        others = others + coefficients["kl"] * _kl_term(recipe, x)
    if recipe.get("algorithm.entropy") is not None:
        others = others - coefficients["entropy"] * x.entropy
    if x.masked is not None and not x.masked.isnan().any():
        others = others - recipe.get("algorithm.perception.coef") * k3(x.masked - x.logp)
    if recipe.get("algorithm.loss.type") == "kl_cov":
        assert x.chosen is not None
        others = others + recipe.get("algorithm.loss.coef", 1.0) * (x.logp - x.old).abs() * x.chosen
    return _correction(recipe, x) * policy + others


def _ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-20, 20).exp()


def _log_ratio(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    """Logarithm of the ratio to the policy before the update, as the loss takes it."""
    difference = x.logp - x.old
    kind = recipe.get("algorithm.loss.type")
    if kind not in ("gspo", "gmpo", "sequence_ppo"):
        return difference
    total = (difference * x.counted).sum()
    if kind != "sequence_ppo":
        total = total / max(1, int(x.counted.sum()))
    return total.expand(len(difference))


def _clipped(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    ratio = _ratio(_log_ratio(recipe, x))
    low, high = clip_bounds(recipe)
    loss = -torch.minimum(ratio * x.advantage, ratio.clamp(low, high) * x.advantage)
    dual = recipe.get("algorithm.loss.clip_ratio_dual")
    if dual is not None:
        loss = torch.where(x.advantage < 0, torch.minimum(loss, -dual * x.advantage), loss)
    return loss


def clip_bounds(recipe: Recipe) -> tuple[float, float]:
    """Return the bounds of the clipped ratio."""
    low = recipe.get("algorithm.loss.clip_ratio_low")
    return 1 - low, 1 + recipe.get("algorithm.loss.clip_ratio_high")


def _cispo(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    weight = _ratio(x.logp - x.old).detach().clamp(*clip_bounds(recipe))
    return -weight * x.advantage * x.logp


def _sapo(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    tau_pos = recipe.get("algorithm.loss.tau_pos")
    tau = torch.where(x.advantage > 0, tau_pos, recipe.get("algorithm.loss.tau_neg"))
    return -(4 / tau) * torch.sigmoid(tau * (_ratio(x.logp - x.old) - 1)) * x.advantage


def _reinforce_loss(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    form = recipe.get("algorithm.loss.importance", "none")
    log_ratio = ((x.logp - x.old) * x.counted).detach()
    if form == "none":
        log_ratio = log_ratio * 0
    elif form == "per_decision":
        log_ratio = log_ratio.cumsum(0)
    elif form == "sequence":
        log_ratio = log_ratio.sum().expand(len(log_ratio))
    return -x.advantage * x.logp * _ratio(log_ratio)


def _unclipped(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    return -_ratio(x.logp - x.old) * x.advantage


def _gmpo(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    log_ratio, low = x.logp - x.old, recipe.get("algorithm.loss.clip_low")
    above = log_ratio.clamp(max=recipe.get("algorithm.loss.clip_high"))
    clipped = torch.where(x.advantage < 0, log_ratio.clamp(min=-low), above) * x.counted
    return -x.advantage * (clipped.sum() / max(1, int(x.counted.sum()))).exp()


def _topr(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    product = _ratio(((x.logp - x.old) * x.counted).detach().sum())
    taper = torch.where(x.advantage < 0, product.clamp(max=1), 1.0)
    return -taper * x.advantage * x.logp


def _dppo(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    moved = x.logp.detach().exp() - x.old.exp()
    away = torch.where(x.advantage < 0, -moved, moved) > recipe.get("algorithm.loss.delta")
    return torch.where(away, 0.0, -_ratio(x.logp - x.old) * x.advantage)


def _clip_cov(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    assert x.chosen is not None
    return _clipped(recipe, x).masked_fill(x.chosen, 0.0)


POLICY: Mapping[str, Callable[[Recipe, TokenInputs], torch.Tensor]] = {
    "ppo": _clipped,
    "gspo": _clipped,
    "sequence_ppo": _clipped,
    "cispo": _cispo,
    "sapo": _sapo,
    "reinforce": _reinforce_loss,
    "kl_cov": _unclipped,
    "clip_cov": _clip_cov,
    "gmpo": _gmpo,
    "topr": _topr,
    "dppo": _dppo,
}


def k3(d: torch.Tensor) -> torch.Tensor:
    """Return ``exp(d) - d - 1`` with the bounds of verl and EasyR1."""
    bounded = d.clamp(-20, 20)
    return (bounded.exp() - bounded - 1).clamp(max=10)


ESTIMATORS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "k1": lambda d: -d,
    "k2": lambda d: d.square() / 2,
    "k3": k3,
    "absolute": lambda d: d.abs(),
    "k1_forward": lambda d: (d.clamp(-20, 20).exp() * d.clamp(-20, 20)).clamp(max=10),
    "k3_forward": lambda d: (
        d.clamp(-20, 20).exp() * d.clamp(-20, 20) - d.clamp(-20, 20).exp() + 1
    ).clamp(max=10),
}
"""Estimators of the KL to a reference, of ``d = log p_ref - log p``."""


def _kl_term(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    assert x.ref is not None
    d = x.ref - x.logp
    if recipe.get("algorithm.loss.type") == "sequence_ppo":
        d = (d * x.counted).sum().expand(len(d))
    estimate = ESTIMATORS[recipe.get("algorithm.kl.estimator")](d)
    if recipe.get("algorithm.kl.use_bias_correction_kl"):
        estimate = estimate * _ratio(_log_ratio(recipe, x))
    return estimate


def divergence(log_p: torch.Tensor, log_q: torch.Tensor, beta: float) -> torch.Tensor:
    """Return GKD's divergence over the vocabulary, ``[R, V]`` log-probs to ``[R]``."""

    def kl(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        possible = a > -torch.inf  # elsewhere both are -inf, and their difference is no number
        return (a.exp() * torch.where(possible, a, 0.0).sub(torch.where(possible, b, 0.0))).sum(-1)

    if beta == 1:
        return kl(log_p, log_q)
    if beta == 0:
        return kl(log_q, log_p)
    mixed = beta * log_q.exp() + (1 - beta) * log_p.exp()
    mixed = torch.where(mixed > 0, mixed, 1.0).log()  # of ids that are cut, nothing is read
    return beta * kl(log_q, mixed) + (1 - beta) * kl(log_p, mixed)


def _correction(recipe: Recipe, x: TokenInputs) -> torch.Tensor:
    """Weights for an engine that samples by other probabilities, and masks of outliers."""
    section = "algorithm.rollout_correction"
    log_ratio = ((x.old - x.rollout) * x.counted).detach()
    count = max(1, int(x.counted.sum()))
    level, weight = recipe.importance_level, torch.ones_like(log_ratio)
    cap = recipe.get(f"{section}.importance_sampling.threshold", math.inf)
    if level == "token":
        weight = log_ratio.exp().clamp(max=cap)
    elif level == "sequence":
        weight = log_ratio.sum().exp().clamp(max=cap).expand(len(log_ratio))
    rejection = recipe.get(f"{section}.rejection_sampling")
    if rejection is not None:
        judged = log_ratio
        if rejection["level"] != "token":
            judged = log_ratio.sum().expand(len(log_ratio))
        if rejection["level"] == "geometric":
            judged = judged / count
        weight = torch.where(judged.abs() <= math.log(rejection["threshold"]), weight, 0.0)
    threshold = recipe.get(f"{section}.off_policy_mask_threshold")
    if threshold is not None:
        gap = ((x.rollout - x.logp) * x.counted).detach().sum() / count
        weight = torch.where((x.advantage < 0) & (gap > threshold), 0.0, weight)
    return weight


# The optimizer -----------------------------------------------------------------------------------


def learning_rate(recipe: Recipe, taken: int, total: int) -> float:
    """Return the learning rate of an optimizer step.

    Args:
        taken: Optimizer steps before it.
        total: Optimizer steps of the run.
    """
    rate, schedule = recipe.get("optimizer.lr"), recipe.get("optimizer.scheduler")
    end = total if schedule["type"] == "constant" else schedule.get("steps") or total
    warmup = schedule["warmup_steps"]
    warmup = int(warmup * end) if isinstance(warmup, float) and warmup < 1 else int(warmup)
    if taken < warmup:
        return rate * (taken + 1) / warmup
    if schedule["type"] == "constant":
        return rate
    lowest = schedule.get("min_lr") or 0.0
    done = min(1.0, (taken - warmup) / max(1, end - warmup))
    left = (1 + math.cos(math.pi * done)) / 2 if schedule["type"] == "cosine" else 1 - done
    return lowest + (rate - lowest) * left


@dataclass
class AdamW:
    """AdamW (arXiv 1711.05101) in float64, with a clip by the global norm before it.

    Attributes:
        settings: lr-independent settings: betas, weight_decay, max_grad_norm, and decays_vectors,
            false where norms and biases do not decay.
        rates: Learning rate of each parameter over the run's ``lr``; 1 where it is not listed.
        state: First and second moment and step count by parameter.
    """

    settings: Mapping[str, Any]
    rates: Mapping[str, float] = field(default_factory=dict)
    state: dict[str, tuple[torch.Tensor, torch.Tensor, int]] = field(default_factory=dict)

    @torch.no_grad()
    def step(
        self, named: Mapping[str, torch.nn.Parameter], rate: float
    ) -> tuple[float, dict[str, float]]:
        """Update the parameters; return the gradient's norm and the norm of each change."""
        gradients = {n: p.grad.double() for n, p in named.items() if p.grad is not None}
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        scale = min(1.0, self.settings["max_grad_norm"] / (norm + 1e-6))
        beta1, beta2 = self.settings["betas"]
        changes = dict.fromkeys(named, 0.0)
        for name, gradient in gradients.items():
            parameter, g = named[name], gradient * scale
            m, v, count = self.state.get(name, (torch.zeros_like(g), torch.zeros_like(g), 0))
            m, v, count = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g, count + 1
            self.state[name] = (m, v, count)
            own = rate * self.rates.get(name, 1.0)
            decays = self.settings.get("decays_vectors", True) or parameter.dim() > 1
            new = parameter.double() * (1 - own * self.settings["weight_decay"] * decays)
            denominator = (v / (1 - beta2**count)).sqrt() + 1e-8
            new = new - own * (m / (1 - beta1**count)) / denominator
            new = new.float() if parameter.dtype != torch.float64 else new
            changes[name] = float((new - parameter).norm())
            parameter.copy_(new)
        return norm, changes
