"""A packed sequence cut over the ranks of a context: the part that each feeds to the model.

Every rank packs the same groups, in main memory, and takes its part. An image, or some frames of a
video, go through the vision tower of one rank; their features are sent to the ranks that have the
placeholders. (The tower's attention never looks beyond a frame.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import torch

from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.context_attention import Cut, cut_layout
from mmr1.trainer.forward.packing import AttentionLayout, Packed, pack
from mmr1.trainer.forward.sequences import GroupInput, PaddedRows, Read
from mmr1.vision.prepare import Medium


def pack_own(
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
    ids = torch.nn.functional.pad(whole.ids, (0, padding))[own]
    positions = torch.nn.functional.pad(whole.positions, (0, padding))[:, own]
    places = cut.gathered()
    owner, local = places // (2 * cut.chunk), places % (2 * cut.chunk)
    read_here = owner[whole.rows] == context.rank

    def there(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, non_blocking=True)

    media, sent, exchange = _own_media(whole, owner, context)
    shown_here = owner[whole.feature_slots] == context.rank
    return Packed(
        ids=there(ids),
        positions=there(positions),
        layout=cut_layout(whole.layout, cut, context, device),
        rows=there(local[whole.rows[read_here]]),
        padded=PaddedRows(whole.padded.shape, there(whole.padded.places[:, read_here]), context),
        targets=there(whole.targets[read_here]),
        media=media,
        feature_rows=there(sent),
        feature_slots=there(local[whole.feature_slots[shown_here]]),
        exchange=None if exchange is None else replace(exchange, order=there(exchange.order)),
    )


@dataclass(frozen=True)
class FeatureExchange:
    """Brings the features of a rank's placeholders to it.

    Attributes:
        sent, received: Numbers of rows, by rank.
        order: ``[sum(received)]`` int64, the received row of each placeholder here.
    """

    context: Context
    sent: tuple[int, ...]
    received: tuple[int, ...]
    order: torch.Tensor

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """``[sum(sent), H]``, by the rank they are for, to the ``[F, H]`` of this rank's tokens."""
        received = self.context.exchange(rows, self.sent, self.received)
        return received.index_select(0, self.order)


def _own_media(
    whole: Packed, owner: torch.Tensor, context: Context
) -> tuple[tuple[Medium, ...], torch.Tensor, FeatureExchange | None]:
    """The media that this rank encodes, the rows that it sends, and the exchange, if any."""
    if not whole.media:
        return (), torch.zeros(0, dtype=torch.int64), None
    parts = [part for medium in whole.media for part in frame_parts(medium, context.size)]
    tokens = torch.tensor([part.tokens for _, part in parts])
    encoder = torch.tensor([rank for rank, _ in parts])
    # Of every feature row of all media: who encodes it, and as which of its rows.
    encoder_of = encoder.repeat_interleave(tokens)
    row_of = torch.zeros_like(encoder_of)
    for rank in range(context.size):
        mine = encoder_of == rank
        row_of[mine] = torch.arange(int(mine.sum()))
    source, target = encoder_of[whole.feature_rows], owner[whole.feature_slots]
    rows = row_of[whole.feature_rows]
    ranks = range(context.size)
    mine, here = source == context.rank, target == context.rank
    sent = [rows[mine & (target == rank)] for rank in ranks]
    received = tuple(int((here & (source == rank)).sum()) for rank in ranks)
    arrival = torch.argsort(source[here], stable=True)  # of the placeholders, by sender
    order = torch.empty_like(arrival).index_copy_(0, arrival, torch.arange(len(arrival)))
    exchange = FeatureExchange(context, tuple(map(len, sent)), received, order)
    own = tuple(part for rank, part in parts if rank == context.rank)
    return own, torch.cat(sent), exchange


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
