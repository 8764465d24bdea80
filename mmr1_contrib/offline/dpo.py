"""``mmr1 dpo``: learning from preferences, by the loss of ``dpo.loss.type``.

Pairs teach which of two answers is better; KTO's examples whether an answer is wanted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import torch

from mmr1.config import Config
from mmr1.data.responses import group_of_responses
from mmr1.progress import report_activity
from mmr1.rewards import RewardFunction
from mmr1.trainer.forward.micro_batches import ProcessGroup
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.inputs import Inputs, check_records
from mmr1.trainer.models.learner import Learner, PolicyLearner
from mmr1.trainer.models.loading import LoadModel, feature_cache, load_here
from mmr1.trainer.models.optimizer import Optimizer, check_finite
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.offline import (
    learning,
    policy_learner,
    run_offline,
)
from mmr1.trainer.run import Steps, to_the_end, with_epochs
from mmr1.types import RolloutGroup, Sample, StepStats
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache
from mmr1_contrib.offline.commands import rounds_of
from mmr1_contrib.offline.preference_losses import (
    LossOnPairs,
    PairScores,
    kto,
    loss_on_pairs,
    reference_point,
)
from mmr1_contrib.offline.preferences import distinct_samples, labelled_answers, ranking_of
from mmr1_contrib.offline.sections import (
    DpoConfig,
    KtoLoss,
    OwnPreferenceLoss,
    PreferenceLoss,
    PreferenceLossConfig,
)


@dataclass(frozen=True, slots=True)
class Preference:
    """A prompt with completions that are wanted or not.

    Attributes:
        group: The prompt and its completions. For pairs: the chosen one, then the rejected one.
        desirable: Is each completion wanted? KTO's last completion answers another prompt and has
            no entry.
        reference: Log-probs of the completions under the reference, each summed over its tokens.
        weights: Weight of each completion in KTO's loss; empty: 1 each.
    """

    group: RolloutGroup
    desirable: tuple[bool, ...]
    reference: tuple[float, ...]
    weights: tuple[float, ...] = ()


PAIR = (True, False)
"""``Preference.desirable`` of a pair."""


def run_dpo(config: Config, *, resume: bool = False) -> Path:
    """Train for ``trainer.max_steps`` batches of ``data.train_batch_size`` pairs (KTO: records).

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    return to_the_end(dpo_steps(config, resume=resume))


def dpo_steps(config: Config, *, resume: bool = False) -> Steps:
    """The run of :func:`run_dpo`, step by step."""
    config = config.for_command("dpo")
    check_loss(config.section(DpoConfig))
    paired = config.section(DpoConfig).loss.paired
    check = partial(ranking_of, pairs_only=True) if paired else labelled_answers
    records = check_records(config, check, resume=resume)
    config = with_epochs(config, records.count, config.data.train_batch_size)
    group_of = attrgetter("group")
    with learning(config, records.family, records.media, build_dpo, group_of) as learner:
        preferences = _preferences(config, records, learner)

        def step(batch: Sequence[Sample]) -> StepStats:
            return learner.step([preferences[id(sample)] for sample in batch])

        return (yield from run_offline(config, records, learner, step))


def check_loss(config: DpoConfig) -> None:
    """Load a custom loss, so that a wrong file is reported before anything else.

    Raises:
        ValueError: If the loss cannot be loaded.
    """
    if isinstance(config.loss, OwnPreferenceLoss):
        loss_on_pairs(config.loss)


def build_dpo(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> PolicyLearner[Preference]:
    """The policy that learns from preferences."""
    learn, features = preference_step(config.section(DpoConfig).loss), feature_cache(config)
    return policy_learner(config, family, media, process_group, load, learn, features)


PreferenceStep = Callable[[PackedModel, Optimizer, Sequence[Preference]], StepStats]


def preference_step(config: PreferenceLoss) -> PreferenceStep:
    """One optimizer step by the loss of ``dpo.loss``; see ``pair_step`` and ``kto_step``."""
    if isinstance(config, KtoLoss):
        return partial(kto_step, config=config)
    return partial(pair_step, loss_on_pairs=loss_on_pairs(config), nll_coef=config.nll_share)


@report_activity("computing the log-probs of the reference")
def _preferences(
    config: Config, records: Inputs, learner: Learner[Preference]
) -> dict[int, Preference]:
    """The preferences that the run will use, by the identity of their samples."""
    count = config.trainer.steps * config.data.train_batch_size
    samples = distinct_samples(records, config.seed, count)
    answers = [
        tuple(zip(ranking_of(s), PAIR, strict=True))
        if config.section(DpoConfig).loss.paired
        else labelled_answers(s)
        for s in samples
    ]
    groups = [
        group_of_responses(records.family, records.render(sample), [text for text, _ in labelled])
        for sample, labelled in zip(samples, answers, strict=True)
    ]
    if not config.section(DpoConfig).loss.paired:
        groups = with_unrelated(groups)
    desirable = [tuple(wanted for _, wanted in labelled) for labelled in answers]
    preferences = preferences_of(
        groups, desirable, learner.by_token, config.section(DpoConfig).loss
    )
    return dict(zip(map(id, samples), preferences, strict=True))


def preferences_of(
    groups: Sequence[RolloutGroup],
    desirable: Sequence[tuple[bool, ...]],
    logprobs: Callable[[Sequence[RolloutGroup]], torch.Tensor],
    config: PreferenceLossConfig,
) -> list[Preference]:
    """Preferences with the present model's log-probs as reference: no second model is needed.

    Args:
        logprobs: Gives its log-probs ``[B, R]`` of completion tokens, at temperature 1.
    """
    sums = torch.zeros(sum(len(group.completions) for group in groups))
    if config.needs_reference:
        sums = logprobs(groups).sum(-1)
    ends = torch.tensor([0] + [len(group.completions) for group in groups]).cumsum(0).tolist()
    return [
        Preference(group, wanted, tuple(sums[start:end].tolist()))
        for group, wanted, (start, end) in zip(groups, desirable, pairwise(ends), strict=True)
    ]


def pair_step(
    packed_model: PackedModel,
    optimizer: Optimizer,
    pairs: Sequence[Preference],
    loss_on_pairs: LossOnPairs,
    nll_coef: float = 0.0,
) -> StepStats:
    """One optimizer step on the mean loss of the pairs; of all ranks' pairs, where there are any.

    With ``nll_coef`` the chosen completion's mean negative log-likelihood per token is added
    (arXiv 2404.19733, equation 1), so that training does not lower its probability too.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    packed_model.model.train()
    total = packed_model.process_group.total
    groups = [pair.group for pair in pairs]
    lengths = completion_mask(groups).sum(-1).view(-1, 2)  # [P, 2]
    counts = total({"pairs": len(pairs), "tokens": float(lengths.sum())})
    reference = torch.tensor([pair.reference for pair in pairs])
    sums_of: dict[str, float] = defaultdict(float)
    for batch in packed_model.batches(groups, whole=True):
        sums = packed_model.token_scores(batch).logprobs.sum(-1).view(-1, 2)
        if not batch.groups:
            packed_model.backward(sums.sum())
            continue
        indices = batch.rows[::2] // 2  # of this micro-batch's pairs
        scores = PairScores(sums, reference[indices].to(sums), lengths[indices].to(sums))
        preference, rewards = loss_on_pairs(scores)
        nll = -sums[:, 0] / scores.lengths[:, 0]
        loss = (preference + nll_coef * nll).sum() / counts["pairs"]
        packed_model.backward(loss)
        sums_of["loss"] += float(loss.detach())
        for name, values in {
            "dpo/loss": preference,
            "dpo/nll": nll,
            "dpo/chosen": rewards[:, 0],
            "dpo/rejected": rewards[:, 1],
            "dpo/accuracy": rewards[:, 0] > rewards[:, 1],
        }.items():
            sums_of[name] += float(values.detach().float().sum()) / counts["pairs"]
    stats = total(sums_of)
    check_finite(stats["loss"])
    return {
        **stats,
        **optimizer.step(),
        "tokens/completion": counts["tokens"],
    }


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
            "prompt; add records, or choose a loss on pairs (dpo.loss.type=sigmoid)"
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
    config: KtoLoss,
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
    return {
        "loss": stats["loss"],
        "dpo/kl": float(kl),
        "dpo/desirable": stats["desirable"] / counts["own"],
        **_mean("dpo/chosen", stats["chosen"], stats["desirable"]),
        **_mean("dpo/rejected", stats["rejected"], counts["own"] - stats["desirable"]),
        **optimizer.step(),
        "tokens/completion": counts["tokens"],
    }


def _weights(example: Preference) -> tuple[float, ...]:
    return example.weights or (1.0,) * len(example.desirable)


def _mean(name: str, summed: float, count: float) -> StepStats:
    """The mean as a metric; no metric where a batch has no such completion."""
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


def steps_of_dpo(config: Config, *, resume: bool, functions: Mapping[str, RewardFunction]) -> Steps:
    """Return the run of ``mmr1 dpo``, step by step: on records, or in rounds of sampling."""
    if rounds_of(config) is None:
        return dpo_steps(config, resume=resume)
    from mmr1_contrib.offline.iterative_dpo import iterative_dpo_steps

    return iterative_dpo_steps(config, resume=resume, functions=functions)
