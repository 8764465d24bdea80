"""A packed sequence cut over the ranks of a context: each rank's part, and its attention.

Every rank packs the same groups, in main memory, and takes its part. An image, or some frames of a
video, go through the vision tower of one rank; the features are gathered, and each rank takes those
of its placeholders. (The tower's attention never looks beyond a frame.)

Queries stay where they are. A query's keys are those before it in its own piece, which are here,
and others that lie anywhere: its prefix, and what was cut off before its piece. Those are gathered
from all ranks in every layer while it attends to its own, attended to in calls of their own, and
the results merged by their log-sum-exp. The backward pass gathers them again: kept are a rank's own
tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch
from torch.nn.functional import pad

from mmr1.attention import Blocks, attend, attend_backward, merge
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.packing import AttentionLayout, Packed, pack
from mmr1.trainer.forward.sequences import GroupInput, PaddedRows, Read
from mmr1.vision.prepare import Medium


@dataclass(frozen=True)
class Cut:
    """Assigns the tokens of a sequence to ranks.

    The sequence is padded and cut into twice as many chunks as there are ranks; rank r has chunk r
    and chunk ``2 * size - 1 - r``. A late query has many keys and an early one few, so each rank
    has about the same work.

    Attributes:
        chunk: Tokens of a chunk.
    """

    tokens: int
    size: int

    @property
    def chunk(self) -> int:
        return -(-self.tokens // (2 * self.size))

    @property
    def padded(self) -> int:
        return 2 * self.size * self.chunk

    def spans(self, rank: int) -> tuple[range, range]:
        """The places of a rank's tokens in the sequence, in the order in which it has them."""
        early, late = rank * self.chunk, (2 * self.size - 1 - rank) * self.chunk
        return range(early, early + self.chunk), range(late, late + self.chunk)

    def tokens_of(self, rank: int) -> torch.Tensor:
        """A rank's tokens as a tensor: ``[2 * chunk]`` int64."""
        return torch.cat([torch.arange(span.start, span.stop) for span in self.spans(rank)])

    def gathered(self) -> torch.Tensor:
        """The index of each token when the ranks' tokens follow each other: ``[padded]`` int64."""
        order = torch.cat([self.tokens_of(rank) for rank in range(self.size)])
        return torch.empty_like(order).index_copy_(0, order, torch.arange(self.padded))


@dataclass(frozen=True)
class Call:
    """Some of a rank's queries, and keys of all ranks for them.

    Attributes:
        queries: ``[Tq]`` int64, among the rank's tokens; none occurs twice.
        keys: ``[Tk]`` int64, among those of all ranks one after the other.
        blocks: Blocks that meet.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    blocks: Blocks


@dataclass(frozen=True)
class ContextLayout:
    """Computes attention for one rank's tokens; does what ``AttentionLayout`` does for all.

    Attributes:
        own: Causal blocks of the rank's pieces of prefixes and completions.
        others: The keys of other ranks, or of its other chunk.
        calls: Calls of attention, as of ``AttentionLayout``.
    """

    context: Context
    own: Blocks
    others: tuple[Call, ...]
    calls: list[None] = field(default_factory=list)

    def attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """``[n, H, D]`` queries, ``[n, H_kv, D]`` keys and values -> ``[n, H, D]``."""
        return _ContextAttention.apply(query, key, value, self, scale)


def cut_layout(
    whole: AttentionLayout, cut: Cut, context: Context, device: torch.device
) -> ContextLayout:
    """The layout of one rank. The padding behind the sequence attends to itself."""
    prefixes, suffixes = whole.prefixes.q_lengths, whole.suffixes.q_lengths
    padding = cut.padded - cut.tokens
    pieces = _pieces((*prefixes, *suffixes, padding), cut, context.rank)
    lengths = tuple(len(piece.tokens) for piece in pieces)
    calls = (_earlier(pieces), _prefixes(whole, cut, context.rank))
    gathered = cut.gathered()
    return ContextLayout(
        context,
        Blocks(lengths, lengths, causal=True, device=device),
        tuple(_call(pairs, cut, context.rank, gathered, device) for pairs in calls if pairs),
    )


@dataclass(frozen=True)
class _Piece:
    """A contiguous piece of a prefix or a completion on one rank, and where its sequence began."""

    tokens: range
    start: int


_Pairs = Sequence[tuple[Sequence[range], range]]
"""Places of queries, and of the keys that all of them attend to."""


def _pieces(lengths: Sequence[int], cut: Cut, rank: int) -> list[_Piece]:
    """The pieces in the order in which the rank has their tokens."""
    pieces = []
    for span in cut.spans(rank):
        start = 0
        for length in lengths:
            if tokens := _common(span, range(start, start + length)):
                pieces.append(_Piece(tokens, start))
            start += length
    return pieces


def _common(first: range, second: range) -> range:
    return range(max(first.start, second.start), min(first.stop, second.stop))


def _earlier(pieces: Sequence[_Piece]) -> _Pairs:
    """The tokens cut off before each piece."""
    return [
        ([p.tokens], range(p.start, p.tokens.start)) for p in pieces if p.tokens.start > p.start
    ]


def _prefixes(whole: AttentionLayout, cut: Cut, rank: int) -> _Pairs:
    """Pairs of the rank's tokens of a prompt's completions with that prompt."""
    pairs = []
    prefix_start, suffix_start = 0, sum(whole.prefixes.q_lengths)
    lengths = zip(whole.prefixes.q_lengths, whole.shared.q_lengths, strict=True)
    for prefix, suffixes in lengths:
        completions = range(suffix_start, suffix_start + suffixes)
        parts = [common for span in cut.spans(rank) if (common := _common(span, completions))]
        if parts:
            pairs.append((parts, range(prefix_start, prefix_start + prefix)))
        prefix_start, suffix_start = prefix_start + prefix, suffix_start + suffixes
    return pairs


def _call(pairs: _Pairs, cut: Cut, rank: int, gathered: torch.Tensor, device: torch.device) -> Call:
    queries = torch.cat([torch.arange(r.start, r.stop) for parts, _ in pairs for r in parts])
    keys = torch.cat([torch.arange(r.start, r.stop) for _, r in pairs])
    return Call(
        (gathered[queries] - rank * 2 * cut.chunk).to(device, non_blocking=True),
        gathered[keys].to(device, non_blocking=True),
        Blocks(
            tuple(sum(map(len, parts)) for parts, _ in pairs),
            tuple(len(r) for _, r in pairs),
            causal=False,
            device=device,
        ),
    )


class _ContextAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layout: ContextLayout,
        scale: float,
    ) -> torch.Tensor:
        gathered = layout.context.gather(torch.stack([key, value], dim=1))
        out, lse = attend(query, key, value, layout.own, scale)
        every = gathered()
        for call in layout.others:
            rows = call.queries
            keys, values = _keys_of(call, every)
            seen = attend(query.index_select(0, rows), keys, values, call.blocks, scale)
            before = out.index_select(0, rows), lse.index_select(0, rows)
            both_out, both_lse = merge(before, seen)
            out, lse = out.index_copy(0, rows, both_out), lse.index_copy(0, rows, both_lse)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        gathered = layout.context.gather(torch.stack([key, value], dim=1))
        grads = attend_backward(grad_out, query, key, value, out, lse, layout.own, scale)
        every = gathered()
        # Sums over calls and ranks are rounded once, as those of one kernel.
        wide = torch.promote_types(query.dtype, torch.float32)
        of_every = torch.zeros_like(every, dtype=wide)
        of_query = grads[0].to(wide)
        for call in layout.others:
            own_grad, queries, own_out, own_lse = (
                x.index_select(0, call.queries) for x in (grad_out, query, out, lse)
            )
            keys, values = _keys_of(call, every)
            dq, *dkv = attend_backward(
                own_grad, queries, keys, values, own_out, own_lse, call.blocks, scale
            )
            of_query.index_add_(0, call.queries, dq.to(wide))
            for side, grad in enumerate(dkv):
                of_every[:, side].index_add_(0, call.keys, grad.to(wide))
        from_all = layout.context.scatter_sums(of_every)
        of_key, of_value = (
            (from_all[:, side] + own).to(own.dtype) for side, own in enumerate(grads[1:])
        )
        return of_query.to(query.dtype), of_key, of_value, None, None


def _keys_of(call: Call, every: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = (every[:, side].index_select(0, call.keys) for side in (0, 1))
    return keys, values


def pack_local(
    groups: Sequence[GroupInput],
    placeholder_ids: Sequence[int],
    device: torch.device,
    read: Read,
    context: Context,
) -> Packed:
    """A rank's part of ``packing.pack``, with the same arguments.

    ``rows``, ``targets`` and ``padded`` name the completion tokens that are read here.
    """
    whole = pack(groups, placeholder_ids, torch.device("cpu"), read)
    assert isinstance(whole.layout, AttentionLayout)
    cut = Cut(len(whole.ids), context.size)
    # Padding is given token 0 at position 0; nothing attends to it and nothing is read there.
    padding = cut.padded - cut.tokens
    own = cut.tokens_of(context.rank)
    ids = pad(whole.ids, (0, padding))[own]
    positions = pad(whole.positions, (0, padding))[:, own]
    places = cut.gathered()
    owner, local = places // (2 * cut.chunk), places % (2 * cut.chunk)
    read_here = owner[whole.rows] == context.rank

    def there(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, non_blocking=True)

    media, row_of, gather = _own_media(whole, context)
    shown_here = owner[whole.feature_slots] == context.rank
    return Packed(
        ids=there(ids),
        positions=there(positions),
        layout=cut_layout(whole.layout, cut, context, device),
        rows=there(local[whole.rows[read_here]]),
        padded=PaddedRows(
            whole.padded.shape, there(whole.padded.places[:, read_here]), context, read_here
        ),
        targets=there(whole.targets[read_here]),
        media=media,
        feature_rows=there(row_of[whole.feature_rows[shown_here]]),
        feature_slots=there(local[whole.feature_slots[shown_here]]),
        gather=gather,
    )


def _own_media(
    whole: Packed, context: Context
) -> tuple[tuple[Medium, ...], torch.Tensor, Callable[[torch.Tensor], torch.Tensor] | None]:
    """The media that this rank encodes, the row of each feature among those of all ranks one after
    the other, and what gathers these, if there are any.
    """
    if not whole.media:
        return (), torch.zeros(0, dtype=torch.int64), None
    parts = [part for medium in whole.media for part in frame_parts(medium, context.size)]
    encoders = torch.tensor([rank for rank, _ in parts])
    encoder_of = encoders.repeat_interleave(torch.tensor([part.tokens for _, part in parts]))
    counts = encoder_of.bincount(minlength=context.size)
    longest, row_of = int(counts.max()), torch.zeros_like(encoder_of)
    for rank, count in enumerate(counts.tolist()):
        row_of[encoder_of == rank] = rank * longest + torch.arange(count)

    def gather(rows: torch.Tensor) -> torch.Tensor:
        return context.gathered(pad(rows, (0, 0, 0, longest - len(rows))))

    return tuple(part for rank, part in parts if rank == context.rank), row_of, gather


def frame_parts(medium: Medium, ranks: int) -> list[tuple[int, Medium]]:
    """The frames of a medium in at most so many parts, in order, and which rank encodes each.

    It depends on nothing else, so that a rank which keeps features meets the same parts again. With
    whom it begins depends on the digest: else all images would be encoded by one rank.
    """
    frames = medium.grid[0]
    first = crc32(medium.digest.encode())
    parts = []
    for index in range(ranks):
        begin, end = (frames * i // ranks for i in (index, index + 1))
        if begin < end:
            parts.append(((first + index) % ranks, medium.frames(begin, end)))
    return parts
