"""KTO's examples and one step on them: answers that are wanted or not, without pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from mmr1.config import DpoConfig
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.models.optimizer import Optimizer, check_finite
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.offline.preference_losses import kto, reference_point
from mmr1.trainer.offline.preferences import Preference
from mmr1.types import RolloutGroup, StepStats


def with_unrelated(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """Add to each group, as its last completion, the first one of the next other prompt.

    KTO's reference point is measured on completions that do not belong to their prompts (arXiv
    2402.01306, equation 8). The prompt is then computed once for both.

    Raises:
        ValueError: All groups have the same prompt.
    """
    if all(_same_prompt(groups[0], group) for group in groups):
        raise ValueError(
            "KTO measures its reference point on answers to other prompts, and there is only one "
            "prompt; add records, or choose a loss on pairs (dpo.loss_type=sigmoid)"
        )
    return [
        RolloutGroup(group.prompt, (*group.completions, _next_other(groups, i).completions[0]))
        for i, group in enumerate(groups)
    ]


def _next_other(groups: Sequence[RolloutGroup], index: int) -> RolloutGroup:
    later = (groups[(index + k) % len(groups)] for k in range(1, len(groups)))
    return next(group for group in later if not _same_prompt(group, groups[index]))


def _same_prompt(one: RolloutGroup, other: RolloutGroup) -> bool:
    return one.prompt.sample.messages == other.prompt.sample.messages


def kto_step(
    packed_model: PackedModel,
    optimizer: Optimizer,
    examples: Sequence[Preference],
    config: DpoConfig,
) -> StepStats:
    """One optimizer step on the mean KTO loss of all completions of the examples, of all ranks.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    groups = [example.group for example in examples]
    reference = torch.tensor([value for e in examples for value in e.reference])
    unrelated = _flags(flag for e in examples for flag in _is_last(e))
    desirable = _flags(flag for e in examples for flag in (*e.desirable, False))
    weights = torch.tensor([w for e in examples for w in (*_weights(e), 0.0)])
    of_others, own = _log_ratios(packed_model, groups, reference, unrelated), ~unrelated
    total = packed_model.process_group.total
    counts = total(
        {
            "ratios": float(of_others.sum()),
            "prompts": len(of_others),
            "own": float(own.sum()),
            "tokens": float(completion_mask(groups)[own].sum()),
        }
    )
    kl = reference_point(torch.tensor(counts["ratios"] / counts["prompts"]))
    packed_model.model.train()
    summed, rewards = 0.0, torch.zeros(len(own))
    for batch in packed_model.batches(groups, keep=own):
        sums = packed_model.token_scores(batch).logprobs.sum(-1)
        log_ratios, wanted = sums - reference[batch.rows].to(sums), desirable[batch.rows]
        losses = kto(log_ratios, wanted.to(sums.device), kl.to(sums), config)
        loss = (weights[batch.rows].to(losses) * losses).sum() / counts["own"]
        packed_model.backward(loss)
        summed += float(loss.detach())
        rewards[batch.rows] = config.beta * log_ratios.detach().float().cpu()
    chosen, rejected = rewards[own & desirable], rewards[own & ~desirable]
    stats = total(
        {
            "loss": summed,
            "chosen": float(chosen.sum()),
            "rejected": float(rejected.sum()),
            "desirable": len(chosen),
        }
    )
    check_finite(stats["loss"])
    lr = optimizer.lr
    return {
        "loss": stats["loss"],
        "dpo/kl": float(kl),
        "dpo/desirable": stats["desirable"] / counts["own"],
        **_mean("dpo/chosen", stats["chosen"], stats["desirable"]),
        **_mean("dpo/rejected", stats["rejected"], counts["own"] - stats["desirable"]),
        "grad_norm": optimizer.step(),
        "lr": lr,
        "tokens/completion": counts["tokens"],
    }


def _weights(example: Preference) -> tuple[float, ...]:
    return example.weights or (1.0,) * len(example.desirable)


def _mean(name: str, summed: float, count: float) -> StepStats:
    """No metric where a batch has no such completion."""
    return {name: summed / count} if count else {}


def _flags(values: Iterable[bool]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.bool)


def _is_last(example: Preference) -> list[bool]:
    return [False] * len(example.desirable) + [True]


@torch.no_grad()
def _log_ratios(
    packed_model: PackedModel,
    groups: Sequence[RolloutGroup],
    reference: torch.Tensor,
    keep: torch.Tensor,
) -> torch.Tensor:
    """log p / p_ref of the completions that ``keep`` ``[B]`` names; no gradient, no dropout."""
    packed_model.model.eval()
    sums = torch.zeros(len(reference))
    for batch in packed_model.batches(groups, keep=keep):
        sums[batch.rows] = packed_model.token_scores(batch).logprobs.sum(-1).float().cpu()
    return (sums - reference)[keep]
