"""Groups as one packed sequence, every prompt, image and completion once, and its attention.

The sequence is ``[prefix 1 | ... | prefix G | suffix 1 | ... | suffix B]``: a prefix is a prompt, a
suffix one of its completions. A group with a single completion has nothing to share: its completion
continues in its prefix. Tokens of a prefix attend causally to their prefix, those of a suffix to
the whole of its prefix and causally to their suffix. Nothing is padded or copied per completion and
no mask of tokens by tokens exists.

The attention is registered with transformers as ``"mmr1"``. (A name with "flash" in it would make
transformers rearrange masks and positions on its own.) Without a layout it is transformers' SDPA
attention, so a model set to it still generates and still takes padded batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mmr1.attention import (
    DROPPED_BY_SDPA,
    Blocks,
    attend,
    attend_backward,
    merge,
    require_supported_attention,
)
from mmr1.trainer.forward.sequences import (
    GroupInput,
    PaddedRows,
    Read,
    completion_batch,
    length_mask,
)
from mmr1.vision.prepare import Medium

NAME = "mmr1"


class Layout(Protocol):
    """Computes attention of a packed sequence, or of one rank's part of it.

    Attributes:
        calls: One entry per layer that ran on this layout; the forward checks their number,
            because a layer that fell back to plain attention would mix the sequences silently.
    """

    @property
    def calls(self) -> list[None]: ...

    def attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """``[T, H, D]`` queries, ``[T, H_kv, D]`` keys and values -> ``[T, H, D]``."""
        ...


@dataclass(frozen=True)
class Packed:
    """One packed sequence of T tokens, holding N completion tokens to be read.

    Tokens of an environment are in the sequence and are not read. Or it is what a rank has of a
    sequence that is cut by tokens; see ``context_packing.py``.

    Attributes:
        ids: ``[T]`` int64.
        positions: ``[1 + rows, T]`` int64: place within the sequence, then the rows of positions
            for the rotary embedding (three for M-RoPE).
        layout: Who attends to whom.
        rows: ``[N]`` int64, where the hidden state of each completion token is read; completions
            in order, and within them tokens in order.
        padded: Where those N values go in a padded batch.
        targets: ``[N]`` int64, the completion tokens.
        media: Every image and video once, by digest.
        feature_rows: ``[F]`` int64, row in the concatenated features of ``media`` for each
            placeholder token; a medium that two prompts show occurs twice.
        feature_slots: ``[F]`` int64, those placeholder tokens.
        gather: Of a cut sequence with media: gives the features of all ranks, whose rows
            ``feature_rows`` are, for those of ``media``.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    layout: Layout
    rows: torch.Tensor
    padded: PaddedRows
    targets: torch.Tensor
    media: tuple[Medium, ...]
    feature_rows: torch.Tensor
    feature_slots: torch.Tensor
    gather: Callable[[torch.Tensor], torch.Tensor] | None = None


def pack(
    groups: Sequence[GroupInput],
    placeholder_ids: Sequence[int],
    device: torch.device,
    read: Read = "before",
) -> Packed:
    """Lay groups out as one sequence.

    Args:
        groups: Each with at least one completion.
        placeholder_ids: Token ids of images and videos.
        device: Where the sequence goes.
        read: ``"before"`` reads the state a completion token is predicted from, and leaves the
            last token of each completion out, since nothing is predicted from it. ``"at"`` reads
            the state at the token itself.
    """
    assert groups, "nothing to pack"
    assert all(group.completions for group in groups), "a group has no completions"
    segments = [_segments(group.unforked(), read) for group in groups]
    ids = torch.cat([p.prefix for p in segments] + [row for p in segments for row in p.suffixes])
    media, feature_rows, feature_slots = _place_media(segments, ids, placeholder_ids)
    completion_ids, mask = completion_batch(groups)
    rows = _read_rows(segments, read)
    if any(group.observed for group in groups):
        rows = rows[mask[length_mask([len(row) for g in groups for row in g.completions])]]
    to_device: dict[str, Any] = {"device": device, "non_blocking": True}
    places = mask.nonzero().T.to(**to_device)
    return Packed(
        ids=ids.to(**to_device),
        positions=_positions(segments).to(**to_device),
        layout=_layout(segments, device),
        rows=rows.to(**to_device),
        padded=PaddedRows((len(mask), mask.shape[1]), places),
        targets=completion_ids[mask].to(**to_device),
        media=media,
        feature_rows=feature_rows.to(**to_device),
        feature_slots=feature_slots.to(**to_device),
    )


@dataclass(frozen=True, slots=True)
class _GroupSegments:
    """A group's prefix ``[L]``, and its suffixes unless it has a single completion.

    Attributes:
        prefix_media, suffix_media: Media that are shown in them.
    """

    group: GroupInput
    prefix: torch.Tensor
    suffixes: tuple[torch.Tensor, ...]
    prefix_media: tuple[Medium, ...]
    suffix_media: tuple[Medium, ...]


def _segments(group: GroupInput, read: Read) -> _GroupSegments:
    fed = tuple(row if read == "at" else row[:-1] for row in group.completions)
    shown, asked = group.all_media, len(group.media)
    if len(fed) == 1:
        return _GroupSegments(group, torch.cat([group.prompt_ids, *fed]), (), shown, ())
    return _GroupSegments(group, group.prompt_ids, fed, shown[:asked], shown[asked:])


def _layout(segments: Sequence[_GroupSegments], device: torch.device) -> AttentionLayout:
    prefixes = tuple(len(p.prefix) for p in segments)
    suffixes = tuple(len(row) for p in segments for row in p.suffixes)
    per_prefix = tuple(sum(len(row) for row in p.suffixes) for p in segments)
    return AttentionLayout(
        prefixes=Blocks(prefixes, prefixes, causal=True, device=device),
        suffixes=Blocks(suffixes, suffixes, causal=True, device=device),
        shared=Blocks(per_prefix, prefixes, causal=False, device=device),
    )


def _positions(segments: Sequence[_GroupSegments]) -> torch.Tensor:
    """Position ids ``[1 + rows, T]``. Every suffix continues from its prompt, as if alone."""
    rows = len(segments[0].group.prompt_positions)
    parts = []
    starts, lengths = [], []  # of each suffix; a start is (place in the sequence, position)
    for p in segments:
        prompt_length = len(p.group.prompt_ids)
        rope = p.group.prompt_positions
        if fed := len(p.prefix) - prompt_length:
            rope = torch.cat([rope, p.group.completion_positions(0)[:, :fed]], dim=1)
        parts.append(torch.cat([torch.arange(len(p.prefix))[None], rope]))
        starts += [(prompt_length, p.group.completion_start)] * len(p.suffixes)
        lengths += [len(row) for row in p.suffixes]
    if lengths:
        lengths_t = torch.tensor(lengths)
        begin = torch.tensor(starts).T.repeat_interleave(lengths_t, dim=1)
        of_suffixes = (begin + _steps(lengths_t))[[0] + [1] * rows]
        end = 0
        for p in segments:
            for index, row in enumerate(p.suffixes):
                start, end = end, end + len(row)
                if p.group.observed and (observed := p.group.observed[index]) is not None:
                    of_suffixes[1:, start:end] = observed.positions[:, : len(row)]
        parts.append(of_suffixes)
    return torch.cat(parts, dim=1)


def _steps(lengths: torch.Tensor) -> torch.Tensor:
    """0, 1, ..., lengths[0] - 1, 0, 1, ..., lengths[1] - 1, ..."""
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)


def _read_rows(segments: Sequence[_GroupSegments], read: Read) -> torch.Tensor:
    """The row at which each of the N tokens is read: its own, or one before it."""
    firsts, lengths = [], []  # rows where tokens 0 and 1 are read; the rest follows token 1
    prefix_start, suffix_start = 0, sum(len(p.prefix) for p in segments)
    for p in segments:
        prompt_end = prefix_start + len(p.group.prompt_ids)
        own_rows = [prompt_end]
        if p.suffixes:
            ends = torch.tensor([len(row) for row in p.suffixes]).cumsum(0) + suffix_start
            own_rows = [suffix_start, *ends[:-1].tolist()]
            suffix_start = int(ends[-1])
        for row, own in zip(p.group.completions, own_rows, strict=True):
            firsts.append((own, own + 1) if read == "at" else (prompt_end - 1, own))
            lengths.append(len(row))
        prefix_start += len(p.prefix)
    lengths_t = torch.tensor(lengths)
    token_0, token_1 = torch.tensor(firsts).T.repeat_interleave(lengths_t, dim=1)
    steps = _steps(lengths_t)
    return torch.where(steps == 0, token_0, token_1 + steps - 1)


def _place_media(
    segments: Sequence[_GroupSegments], ids: torch.Tensor, placeholder_ids: Sequence[int]
) -> tuple[tuple[Medium, ...], torch.Tensor, torch.Tensor]:
    """Distinct media, and the feature row of each placeholder token."""
    distinct: dict[str, Medium] = {}
    first_row: dict[str, int] = {}
    total = 0
    rows = [torch.zeros(0, dtype=torch.int64)]
    # The placeholders of prefixes are met in group order, then those of suffixes.
    of_prefixes = [m for p in segments for m in p.prefix_media]
    of_suffixes = [m for p in segments for m in p.suffix_media]
    for medium in (*of_prefixes, *of_suffixes):
        if medium.digest not in distinct:
            distinct[medium.digest], first_row[medium.digest] = medium, total
            total += medium.tokens
        start = first_row[medium.digest]
        rows.append(torch.arange(start, start + medium.tokens))
    feature_rows = torch.cat(rows)
    slots = torch.isin(ids, torch.tensor(list(placeholder_ids), dtype=torch.int64)).nonzero()[:, 0]
    if len(slots) != len(feature_rows):
        raise ValueError(
            f"prompts and completions hold {len(slots)} vision placeholders where the media have "
            f"{len(feature_rows)} tokens; a sampled placeholder cannot be fed back: forbid them in "
            "sampling"
        )
    return tuple(distinct.values()), feature_rows, slots


@dataclass(frozen=True)
class AttentionLayout:
    """A ``Layout`` of a whole sequence.

    Attributes:
        prefixes: Causal blocks of the prefixes.
        suffixes: Causal blocks of the suffixes.
        shared: Each prefix's suffixes, all together, to that prefix.
    """

    prefixes: Blocks
    suffixes: Blocks
    shared: Blocks
    calls: list[None] = field(default_factory=list)

    def attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        return _SharedPrefixAttention.apply(query, key, value, self, scale)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature: ``[1, H, T, D]`` in, ``[1, T, H, D]`` out."""
    if layout is None:
        require_supported_attention(kwargs, DROPPED_BY_SDPA)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    require_supported_attention(kwargs)
    assert dropout == 0, "packed attention has no dropout"
    masked = attention_mask is not None and attention_mask.numel() > 0
    assert not masked, "a packed sequence has no mask"
    assert query.shape[0] == 1, "a packed batch is one sequence"
    assert query.shape[2] == key.shape[2], "packing does not go with a key-value cache"
    layout.calls.append(None)
    # Under autocast the rotary embedding leaves queries and keys in float32.
    queries, keys, values = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    return layout.attention(queries, keys, values, scaling)[None], None


class _SharedPrefixAttention(torch.autograd.Function):
    """``[T, H, D]`` queries, ``[T, H_kv, D]`` keys and values -> ``[T, H, D]``."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layout: AttentionLayout,
        scale: float,
    ) -> torch.Tensor:
        n = sum(layout.prefixes.q_lengths)
        out, lse = attend(query[:n], key[:n], value[:n], layout.prefixes, scale)
        if n < len(query):
            own = attend(query[n:], key[n:], value[n:], layout.suffixes, scale)
            shared = attend(query[n:], key[:n], value[:n], layout.shared, scale)
            suffix_out, suffix_lse = merge(own, shared)
            out, lse = torch.cat([out, suffix_out]), torch.cat([lse, suffix_lse])
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        n = sum(layout.prefixes.q_lengths)
        prefix = (grad_out[:n], query[:n], key[:n], value[:n], out[:n], lse[:n])
        dq, dk, dv = attend_backward(*prefix, layout.prefixes, scale)
        if n < len(query):
            ends = (out[n:], lse[n:])
            own = attend_backward(
                grad_out[n:], query[n:], key[n:], value[n:], *ends, layout.suffixes, scale
            )
            shared = attend_backward(
                grad_out[n:], query[n:], key[:n], value[:n], *ends, layout.shared, scale
            )
            dq = torch.cat([dq, own[0] + shared[0]])
            dk = torch.cat([dk + shared[1], own[1]])
            dv = torch.cat([dv + shared[2], own[2]])
        return dq, dk, dv, None, None


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
