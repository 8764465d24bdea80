"""``mmr1 sft``: supervised fine-tuning. The loss is on the assistant's tokens, and with
``sft.completion_only_loss: false`` on the prompt's text too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import numpy as np

from mmr1.config import Config
from mmr1.data.responses import assistant_text, demonstration
from mmr1.rewards import RewardFunction
from mmr1.trainer.forward.micro_batches import ProcessGroup
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.inputs import check_records
from mmr1.trainer.models.learner import PolicyLearner
from mmr1.trainer.models.loading import LoadModel, load_here
from mmr1.trainer.models.nll import add_nll_gradient
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.offline import (
    learning,
    policy_learner,
    run_offline,
    same_group,
)
from mmr1.trainer.run import Steps, to_the_end, with_epochs
from mmr1.types import MediaRef, Prompt, RolloutGroup, Sample, Span, StepStats
from mmr1.vision.families.family import ModelFamily, is_packed
from mmr1.vision.prepare import MediaCache


def run_sft(config: Config, *, resume: bool = False) -> Path:
    """Fine-tune for ``trainer.max_steps`` batches of ``data.train_batch_size`` demonstrations.

    Raises:
        ValueError: The configuration or the data cannot be used; nothing has been written yet.
        StoppedError: SIGTERM or Ctrl-C; what was done is saved.
    """
    return to_the_end(sft_steps(config, resume=resume))


def sft_steps(
    config: Config,
    *,
    resume: bool = False,
    functions: Mapping[str, RewardFunction] = MappingProxyType({}),
) -> Steps:
    """Return the run of :func:`run_sft`, step by step. Demonstrations need no ``functions``."""
    config = config.for_command("sft")
    records = check_records(config, assistant_text, resume=resume)
    config = with_epochs(config, records.count, config.data.train_batch_size)
    family = records.family
    with learning(config, family, records.media, build_sft, same_group) as learner:

        def example(sample: Sample) -> RolloutGroup:
            group = demonstration(family, records.render(sample), records.media)
            if config.sft.completion_only_loss:
                return group
            return with_prompt_learned(family, group, records.media)

        def step(batch: Sequence[Sample]) -> StepStats:
            return learner.step([example(sample) for sample in batch])

        return (yield from run_offline(config, records, learner, step))


def with_prompt_learned(
    family: ModelFamily, group: RolloutGroup, media: MediaCache
) -> RolloutGroup:
    """The demonstration with all but the first token of its prompt in the completion.

    So the loss is on the prompt's text. Placeholders and other tokens that a policy never writes
    are read and not learned, as what an environment shows.

    Raises:
        ValueError: The prompt has media, and the model's processor reads them as a whole.
    """
    prompt, (answer,) = group.prompt, group.completions
    spans: list[Span] = []
    ids: list[int] = []
    for learned, pieces in groupby(_pieces(family, prompt, media), key=lambda piece: piece.learned):
        of_run = list(pieces)
        run = [token for piece in of_run for token in piece.ids]
        shown = tuple(piece.medium for piece in of_run if piece.medium is not None)
        spans.append(Span("assistant" if learned else "tool", len(run), "", shown))
        ids += run
    of_answer = answer.spans or (Span("assistant", len(answer.token_ids), answer.text),)
    tokens = np.array([*ids, *answer.token_ids.tolist()], dtype=np.int64)
    whole = replace(
        answer,
        token_ids=tokens,
        logprobs=np.zeros(len(tokens), dtype=np.float32),
        spans=(*spans, *of_answer),
    )
    first = replace(
        prompt, sample=replace(prompt.sample, messages=()), token_ids=prompt.token_ids[:1]
    )
    return RolloutGroup(first, (whole,))


@dataclass(frozen=True, slots=True)
class _Piece:
    ids: list[int]
    learned: bool
    medium: MediaRef | None = None


def _pieces(family: ModelFamily, prompt: Prompt, media: MediaCache) -> Iterator[_Piece]:
    """The completion's piece for each token of the prompt, from the second on."""
    never = {*family.forbidden_ids}
    kinds = family.placeholder_kinds if is_packed(family) else {}
    if prompt.media and not kinds:
        raise ValueError(
            f"sft.completion_only_loss=false: sample '{prompt.sample.id}' has media, and this "
            "model's processor reads them in whole prompts only; take a family of docs/models.md "
            "that shares prompts, or leave it out"
        )
    remaining = iter(prompt.media)
    for token in prompt.token_ids[1:]:
        if token in kinds and is_packed(family):
            medium = next(remaining)
            yield _Piece(family.expand_placeholders([token], [media[medium]]), False, medium)
        else:
            yield _Piece([token], token not in never)


def build_sft(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> PolicyLearner[RolloutGroup]:
    """The policy that learns from demonstrations."""
    return policy_learner(config, family, media, process_group, load, sft_step)


def sft_step(
    packed_model: PackedModel, optimizer: Optimizer, groups: Sequence[RolloutGroup]
) -> StepStats:
    """One optimizer step on the mean negative log-likelihood of the batch's tokens, in nats.

    With several ranks ``groups`` are this one's share of the batch, as in all such steps.

    Raises:
        NonFiniteError: The loss or the gradient is not finite; the weights are unchanged.
    """
    packed_model.model.train()
    loss = add_nll_gradient(packed_model, groups)
    own = {"tokens": float(completion_mask(groups).sum())}
    return {
        "loss": loss,
        **optimizer.step(),
        "tokens/completion": int(packed_model.process_group.total(own)["tokens"]),
    }
