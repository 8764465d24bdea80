"""Model inputs, and the hidden states of completions that a forward gives to every head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.rollout.distribution import join_supports, select_support
from mmr1.trainer.forward.context import Context
from mmr1.types import Completion, MediaRef, RolloutGroup, Support
from mmr1.vision.families.family import ModelFamily, ProcessorFamily, ReadPrompt, is_packed
from mmr1.vision.families.rows import Piece, joined, of_tokens
from mmr1.vision.prepare import MediaCache, Medium, measured


@dataclass(frozen=True, slots=True)
class Observed:
    """The environment's part of a completion of R tokens.

    Attributes:
        sampled: ``[R]`` bool, True at the policy's own tokens.
        positions: ``[rows, R]`` int64; after a picture they continue where its own ended, and a
            fork begins where the prompt ended.
        media: Media that the environment showed, in placeholder order.
        sequences: ``(tokens, media)`` of each sequence behind the prompt; one unless it forks.
        seen: What a model's own forward takes for the tokens, run by run; empty where media are
            prepared one by one.
    """

    sampled: torch.Tensor
    positions: torch.Tensor
    media: tuple[Medium, ...]
    sequences: tuple[tuple[int, int], ...]
    seen: tuple[Piece, ...] = ()

    @property
    def arguments(self) -> Mapping[str, torch.Tensor]:
        """Arguments of the model's own forward for all tokens beside the ids."""
        return joined(self.seen)

    def parts(self) -> Iterator[Observed]:
        """Each sequence as a separate completion."""
        token = medium = 0
        runs = iter(self.seen)
        for tokens, media in self.sequences:
            own = slice(token, token := token + tokens)
            shown = self.media[medium : (medium := medium + media)]
            seen: list[Piece] = []
            while self.seen and sum(length for length, _ in seen) < tokens:
                seen.append(next(runs))
            yield Observed(
                self.sampled[own], self.positions[:, own], shown, ((tokens, media),), tuple(seen)
            )


@dataclass(frozen=True, slots=True)
class GroupInput:
    """One prompt and its completions, as tensors.

    Attributes:
        prompt_ids: ``[P]`` int64, placeholders expanded.
        prompt_positions: ``[rows, P]`` int64 positions of the prompt, 3 rows for M-RoPE.
        completion_start: Position of the first completion token, on all rows.
        media: The prompt's images and videos, in placeholder order. Of a packed family their
            patches are prepared when the vision tower asks for them.
        completions: n tensors ``[R_i]`` int64.
        observed: Tokens that the environment wrote in each completion; empty where none has any.
        arguments: See ``ReadPrompt``.
        experts: Experts that the engine's routers chose, for the prompt ``[P, L, k]`` and for each
            completion ``[R_i - 1, L, k]``; see ``Completion.routed_experts``. None where unknown.
        support: Ids that the engine kept, for each completion; empty where it kept all.
    """

    prompt_ids: torch.Tensor
    prompt_positions: torch.Tensor
    completion_start: int
    media: tuple[Medium, ...]
    completions: tuple[torch.Tensor, ...]
    observed: tuple[Observed | None, ...] = ()
    arguments: Mapping[str, torch.Tensor] = field(default_factory=dict)
    experts: tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None = None
    support: tuple[Support | None, ...] = ()

    def completion_positions(self, index: int) -> torch.Tensor:
        """Position ids of a completion: ``[rows, R_i]``."""
        if self.observed and (observed := self.observed[index]) is not None:
            return observed.positions
        steps = torch.arange(len(self.completions[index]))
        return (self.completion_start + steps).expand(len(self.prompt_positions), -1)

    def completion_media(self, index: int) -> tuple[Medium, ...]:
        """The media that an environment showed in a completion."""
        observed = self.observed[index] if self.observed else None
        return () if observed is None else observed.media

    def pieces(self, index: int, tokens: int) -> list[Piece]:
        """The arguments of the prompt, and of so many tokens of a completion after it."""
        return [(len(self.prompt_ids), self.arguments), self.piece(index, tokens)]

    def piece(self, index: int, tokens: int) -> Piece:
        """The arguments of the first so many tokens of a completion."""
        observed = self.observed[index] if self.observed else None
        if observed is None:
            return tokens, {}
        whole = len(self.completions[index])
        cut = {
            name: value[:, :tokens] if of_tokens(name, value, whole) else value
            for name, value in observed.arguments.items()
        }
        return tokens, cut

    @property
    def all_media(self) -> tuple[Medium, ...]:
        """The media of the prompt, and then of each completion."""
        shown = (m for i in range(len(self.observed)) for m in self.completion_media(i))
        return (*self.media, *shown)

    @property
    def kind(self) -> tuple[Any, ...]:
        """A key of the group: groups of one kind go through a model's own forward together.

        Processors put images, patches or a batch along the first dimension of what they make. The
        others must agree; a prompt without pictures has no such arguments at all.
        """
        prompt = len(self.prompt_ids)
        return tuple(
            (name, None if of_tokens(name, tensor, prompt) else tensor.shape[1:])
            for name, tensor in sorted(self.arguments.items())
        )

    def unforked(self) -> GroupInput:
        """The group with each sequence of its completions as a completion, tokens in order."""
        if not any(o is not None and len(o.sequences) > 1 for o in self.observed):
            return self
        rows: list[torch.Tensor] = []
        observed: list[Observed | None] = []
        for row, of_environment in zip(self.completions, self.observed, strict=True):
            parts = [of_environment] if of_environment is None else [*of_environment.parts()]
            observed += parts
            rows += row.split([len(row) if part is None else len(part.sampled) for part in parts])
        return replace(self, completions=tuple(rows), observed=tuple(observed))

    def select(self, indices: Sequence[int]) -> GroupInput:
        """The group with only these completions."""
        experts = self.experts and (self.experts[0], tuple(self.experts[1][i] for i in indices))
        return replace(
            self,
            experts=experts,
            completions=tuple(self.completions[i] for i in indices),
            observed=tuple(self.observed[i] for i in indices) if self.observed else (),
            support=tuple(self.support[i] for i in indices) if self.support else (),
        )


class TokenScores(NamedTuple):
    """Per completion token, ``[B, R]`` float32, sequences in group order.

    0 beyond their ends, and at tokens that the policy did not sample.

    Attributes:
        logprobs: Log-probability of the token, temperature applied.
        entropy: Entropy of the distribution it was drawn from, in nats.
        kl: KL over the whole vocabulary to a reference's distribution; None unless asked for.
        expert_gap: Share of layers in which the engine chose other experts; None as ``kl``.
        router_loss: A scalar, the load-balancing loss of the forward; None as ``kl``.
        kept_mass: Mass that the model gives to the ids that the engine kept; None as ``kl``.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    kl: torch.Tensor | None = None
    expert_gap: torch.Tensor | None = None
    router_loss: torch.Tensor | None = None
    kept_mass: torch.Tensor | None = None


class ModelInputs:
    """The model inputs of rollout groups, each built once for a batch of groups.

    Those of the last batch are kept. In a training step policy, reference and critic share one
    ``ModelInputs``, so log-probs, values and all epochs of the update use what was built first.
    Groups are told apart by identity. They hold no patches where the family is a packed one: media
    are measured by their headers, and what is prepared of them is kept as far as ``media`` does.

    Attributes:
        family: Family of the models.
    """

    def __init__(self, family: ModelFamily, media: MediaCache) -> None:
        self.family = family
        self._media = media
        self._last: dict[int, tuple[RolloutGroup, GroupInput]] = {}

    def of(self, groups: Sequence[RolloutGroup]) -> list[GroupInput]:
        """The inputs of these groups, in order."""
        if not self.family.shares_prompts:
            new = [group for group in groups if id(group) not in self._last]
            self._media.prefetch(m for group in new for m in group.prompt.media)
        # A group is kept beside its inputs, so that no other object can take over its id.
        self._last = {
            id(g): self._last.get(id(g)) or (g, group_input(self.family, self._media, g))
            for g in groups
        }
        return [self._last[id(group)][1] for group in groups]


def group_input(family: ModelFamily, media: MediaCache, group: RolloutGroup) -> GroupInput:
    """The model inputs of a rollout group."""
    shown_first = tuple(_medium(family, media, m) for m in group.prompt.media)
    read = family.read_prompt(group.prompt, shown_first)
    observed: list[Observed | None] = []
    if any(completion.spans for completion in group.completions):
        observed = [_observed(family, media, shown_first, read, c) for c in group.completions]
    return GroupInput(
        prompt_ids=read.ids,
        prompt_positions=read.positions,
        completion_start=read.completion_start,
        media=shown_first,
        completions=tuple(torch.tensor(c.token_ids) for c in group.completions),
        observed=tuple(observed),
        arguments=read.arguments,
        experts=_experts(group.completions),
        support=_supports(group),
    )


def _supports(group: RolloutGroup) -> tuple[Support | None, ...]:
    """The engine's kept ids of each completion; empty where it kept all.

    Raises:
        ValueError: If a token is not one of the ids that the engine says it was sampled from.
    """
    for completion in group.completions:
        if (support := completion.support) is None:
            continue
        cut = np.repeat(completion.token_ids, support.sizes) == support.ids
        tokens = np.repeat(np.arange(len(support.sizes)), support.sizes)
        if not np.array_equal(np.unique(tokens[cut]), support.sizes.nonzero()[0]):
            raise ValueError(
                f"sample '{group.prompt.sample.id}': the rollout engine returned a token that is "
                "not among the ids that it kept (Completion.support); look at rollout.engine"
            )
    supports = tuple(completion.support for completion in group.completions)
    return supports if any(s is not None for s in supports) else ()


def _experts(
    completions: Sequence[Completion],
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
    """The engine's experts; those of the prompt are what it chose for the first completion."""
    chosen = [c.routed_experts for c in completions if c.routed_experts is not None]
    if not chosen or len(chosen) < len(completions):
        return None
    prompt, own = chosen[0][0], tuple(torch.from_numpy(of_own) for _, of_own in chosen)
    return torch.from_numpy(prompt), own


def _observed(
    family: ModelFamily,
    media: MediaCache,
    shown_first: tuple[Medium, ...],
    read: ReadPrompt,
    completion: Completion,
) -> Observed | None:
    """The environment's part of a completion; None without one.

    Args:
        shown_first: The media of the prompt.
    """
    if not completion.spans:
        return None
    length, shown = len(read.ids), tuple(_medium(family, media, m) for m in completion.media)
    sampled = sampled_mask(completion)
    sequences = tuple(
        (sum(span.tokens for span in spans), sum(len(span.media) for span in spans))
        for spans in completion.sequences
    )
    if is_packed(family):
        prompt, own, parts = read.ids.tolist(), completion.token_ids.tolist(), []
        token = medium = 0
        for tokens, count in sequences:
            whole = [*prompt, *own[token : (token := token + tokens)]]
            seen = (*shown_first, *shown[medium : (medium := medium + count)])
            parts.append(family.prompt_positions(whole, seen)[:, length:])
        return Observed(sampled, torch.cat(parts, dim=1), shown, sequences)
    rows = torch.cat([length + torch.arange(tokens)[None] for tokens, _ in sequences], dim=1)
    ids, remaining, runs = torch.tensor(completion.token_ids), iter(shown), list[Piece]()
    lengths = [span.tokens for span in completion.spans]
    for span, own_ids in zip(completion.spans, ids.split(lengths), strict=True):
        own_media = tuple(islice(remaining, len(span.media)))
        arguments = cast(ProcessorFamily, family).arguments_of_media(own_ids, own_media)
        runs.append((span.tokens, arguments))
    return Observed(sampled, rows, shown, sequences, tuple(runs))


def _medium(family: ModelFamily, media: MediaCache, ref: MediaRef) -> Medium:
    """The medium, prepared; for a packed family only measured, until its patches are asked for."""
    if not is_packed(family):
        return media[ref]
    known = media.known(ref)
    sizes = family.measure_media(ref) if known is None else measured(known)
    return replace(
        sizes, prepared=partial(media.__getitem__, ref), prefetch=partial(media.prefetch, [ref])
    )


def completion_batch(groups: Sequence[GroupInput]) -> tuple[torch.Tensor, torch.Tensor]:
    """Completions of all groups, right-padded with 0: ids ``[B, R]``, and a mask of the policy's
    tokens ``[B, R]`` bool.
    """
    rows = [row for group in groups for row in group.completions]
    mask = length_mask([len(row) for row in rows])
    observed = [o for g in groups for o in g.observed or (None,) * len(g.completions)]
    for row, of_environment in zip(mask, observed, strict=True):
        if of_environment is not None:
            row[: len(of_environment.sampled)] = of_environment.sampled
    return pad_sequence(rows, batch_first=True), mask


def completion_mask(groups: Sequence[RolloutGroup]) -> torch.Tensor:
    """``[B, R]`` bool: where the groups' completions have a token that the policy sampled."""
    completions = [c for g in groups for c in g.completions]
    mask = length_mask([len(c.token_ids) for c in completions])
    for row, completion in enumerate(completions):
        if completion.spans:
            mask[row, : len(completion.token_ids)] = sampled_mask(completion)
    return mask


def sampled_mask(completion: Completion) -> torch.Tensor:
    """``[R]`` bool: the tokens of a completion that the policy sampled."""
    if not completion.spans:
        return torch.ones(len(completion.token_ids), dtype=torch.bool)
    runs = torch.tensor([span.tokens for span in completion.spans])
    assert int(runs.sum()) == len(completion.token_ids), "the spans are not the completion"
    return torch.tensor([s.role == "assistant" for s in completion.spans]).repeat_interleave(runs)


def length_mask(lengths: Sequence[int]) -> torch.Tensor:
    """``[B, max(lengths)]`` bool: True at the first ``lengths[b]`` places of row b."""
    return torch.arange(max(lengths, default=0)) < torch.tensor(lengths)[:, None]


Read = Literal["before", "at"]
"""``before``: the state that a token is predicted from. ``at``: the state at the token itself."""


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """A padded batch of completions and the places of their tokens.

    Indices, not a mask: to select by a mask, a GPU is waited for until their number is known.

    Attributes:
        shape: ``(B, R)``.
        places: ``[2, N]`` int64, row and column of each token, in completion order.
        context: The ranks that have the other tokens; None where they are all here.
        own: Mask in main memory, bool: the tokens of the batch that are here; None: all.
    """

    shape: tuple[int, int]
    places: torch.Tensor
    context: Context | None = None
    own: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class CompletionStates:
    """The N completion tokens of a batch, or those that a rank has of it, sequences in group order.

    Attributes:
        hidden: ``[N, H]``, the final hidden states, as the output embedding takes them.
        targets: ``[N]`` int64, the tokens.
        padded: Where they go in a padded batch.
        rows: ``[N]`` int64, which of the forward's tokens, row after row, they are read at.
    """

    hidden: torch.Tensor
    targets: torch.Tensor
    padded: PaddedRows
    rows: torch.Tensor


def support_of_tokens(groups: Sequence[GroupInput], padded: PaddedRows) -> Support | None:
    """The kept ids of the completion tokens of a batch that ``padded`` has; None if all were kept.

    Args:
        groups: All of the batch.
    """
    parts = [
        len(row) if support is None else support
        for group in groups
        for row, support in zip(
            group.completions, group.support or [None] * len(group.completions), strict=True
        )
    ]
    if (support := join_supports(parts)) is None:
        return None
    _, mask = completion_batch(groups)
    sampled = mask[length_mask([len(row) for group in groups for row in group.completions])]
    if padded.own is not None:
        sampled[sampled.clone()] = padded.own.cpu()
    return select_support(support, sampled.numpy())


def kept_counts(groups: Sequence[RolloutGroup]) -> torch.Tensor | None:
    """``[B, R]`` int64: the number of ids that the engine kept for each token, 0 where all.

    None where it kept all everywhere.
    """
    completions = [c for group in groups for c in group.completions]
    if all(completion.support is None for completion in completions):
        return None
    counts = torch.zeros(len(completions), max(len(c.token_ids) for c in completions)).long()
    for row, completion in zip(counts, completions, strict=True):
        if completion.support is not None:
            row[: len(completion.support.sizes)] = torch.from_numpy(completion.support.sizes)
    return counts


def to_rows(values: torch.Tensor, padded: PaddedRows) -> torch.Tensor:
    """``[N]`` values in completion order to ``[B, R]``, 0 beyond the ends: of all ranks' tokens."""
    rows = values.new_zeros(padded.shape).index_put(tuple(padded.places), values)
    return rows if padded.context is None else padded.context.join(rows)
