"""Groups as one packed sequence: every prompt, every image and every completion once.

``[trunk 1 | ... | trunk G | branch 1 | ... | branch B]``, see ``attention.py``. A group with a
single completion has nothing to share: its completion goes on in its trunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from mmr1.trainer.attention import AttentionLayout
from mmr1.trainer.sequences import GroupInput, completion_batch
from mmr1.trainer.varlen import Blocks
from mmr1.vision.prepare import PreparedMedia

Read = Literal["before", "at"]


@dataclass(frozen=True)
class Packed:
    """One packed sequence of T tokens, holding N completion tokens to be read.

    Attributes:
        ids: ``[T]`` int64.
        positions: ``[4, T]`` int64: place within the sequence, then the three M-RoPE rows.
        layout: Who attends to whom.
        rows: ``[N]`` int64, where the hidden state of each completion token is read; completions
            in order, and within them tokens in order.
        mask: ``[B, R]`` bool, where those N values go in a padded batch.
        targets: ``[N]`` int64, the completion tokens.
        media: Every image and video once, by digest.
        feature_rows: ``[F]`` int64, row in the concatenated features of ``media`` for each
            placeholder token; a medium that two prompts show occurs twice.
        feature_slots: ``[F]`` int64, those placeholder tokens.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    layout: AttentionLayout
    rows: torch.Tensor
    mask: torch.Tensor
    targets: torch.Tensor
    media: tuple[PreparedMedia, ...]
    feature_rows: torch.Tensor
    feature_slots: torch.Tensor


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
    fed = [
        [row if read == "at" else row[:-1] for row in group.completions] for group in groups
    ]
    alone = [len(group.completions) == 1 for group in groups]
    trunks = [
        torch.cat([group.prompt_ids, *rows]) if single else group.prompt_ids
        for group, rows, single in zip(groups, fed, alone)
    ]
    branches = [row for rows, single in zip(fed, alone) if not single for row in rows]
    layout = _layout(trunks, fed, alone, device)
    ids_t, mask = completion_batch(groups)
    media, feature_rows, feature_slots = _place_media(groups, trunks, placeholder_ids)
    return Packed(
        ids=torch.cat([*trunks, *branches]).to(device),
        positions=_positions(groups, trunks, branches, alone).to(device),
        layout=layout,
        rows=_read_rows(groups, trunks, alone, read).to(device),
        mask=mask.to(device),
        targets=ids_t[mask].to(device),
        media=media,
        feature_rows=feature_rows.to(device),
        feature_slots=feature_slots.to(device),
    )


def _layout(
    trunks: Sequence[torch.Tensor],
    fed: Sequence[Sequence[torch.Tensor]],
    alone: Sequence[bool],
    device: torch.device,
) -> AttentionLayout:
    trunk_lengths = tuple(len(trunk) for trunk in trunks)
    per_group = [[] if single else [len(row) for row in rows] for rows, single in zip(fed, alone)]
    branch_lengths = tuple(length for lengths in per_group for length in lengths)
    return AttentionLayout(
        trunks=Blocks(trunk_lengths, trunk_lengths, causal=True, device=device),
        branches=Blocks(branch_lengths, branch_lengths, causal=True, device=device),
        shared=Blocks(tuple(map(sum, per_group)), trunk_lengths, causal=False, device=device),
    )


def _positions(
    groups: Sequence[GroupInput],
    trunks: Sequence[torch.Tensor],
    branches: Sequence[torch.Tensor],
    alone: Sequence[bool],
) -> torch.Tensor:
    """``[4, T]``. Every branch goes on where its prompt ended, as if it were the only one."""
    pieces = []
    starts = []  # of each branch: in the sequence, and in M-RoPE
    for group, trunk, single in zip(groups, trunks, alone):
        length, next_position = len(group.prompt_ids), int(group.prompt_positions.max()) + 1
        more = torch.arange(len(trunk) - length) + next_position
        rope = torch.cat([group.prompt_positions, more.expand(3, -1)], dim=1)
        pieces.append(torch.cat([torch.arange(len(trunk))[None], rope]))
        if not single:
            starts += [(length, next_position)] * len(group.completions)
    if branches:
        lengths = torch.tensor([len(branch) for branch in branches])
        in_sequence, in_rope = torch.tensor(starts).T
        steps = _steps(lengths)
        rope = (steps + in_rope.repeat_interleave(lengths)).expand(3, -1)
        pieces.append(torch.cat([(steps + in_sequence.repeat_interleave(lengths))[None], rope]))
    return torch.cat(pieces, dim=1)


def _steps(lengths: torch.Tensor) -> torch.Tensor:
    """0, 1, ..., lengths[0] - 1, 0, 1, ..., lengths[1] - 1, ..."""
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)


def _read_rows(
    groups: Sequence[GroupInput],
    trunks: Sequence[torch.Tensor],
    alone: Sequence[bool],
    read: Read,
) -> torch.Tensor:
    """``[N]``. Token t of a completion is read at its own row, or one before it."""
    firsts = []  # row of token 0 and of token 1 of each completion, as far as they exist
    lengths = []
    trunk_start, branch_start = 0, sum(len(trunk) for trunk in trunks)
    for group, trunk, single in zip(groups, trunks, alone):
        last = trunk_start + len(group.prompt_ids) - 1
        for row in group.completions:
            own = last + 1 if single else branch_start
            firsts.append((own, own + 1) if read == "at" else (last, own))
            lengths.append(len(row))
            if not single:
                branch_start += len(row) if read == "at" else max(len(row) - 1, 0)
        trunk_start += len(trunk)
    lengths_t = torch.tensor(lengths)
    token_0, token_1 = torch.tensor(firsts).T.repeat_interleave(lengths_t, dim=1)
    steps = _steps(lengths_t)
    return torch.where(steps == 0, token_0, token_1 + steps - 1)


def _place_media(
    groups: Sequence[GroupInput],
    trunks: Sequence[torch.Tensor],
    placeholder_ids: Sequence[int],
) -> tuple[tuple[PreparedMedia, ...], torch.Tensor, torch.Tensor]:
    distinct: dict[str, PreparedMedia] = {}
    first_row: dict[str, int] = {}
    total = trunk_start = 0
    rows, slots = [], []
    placeholders = torch.tensor(list(placeholder_ids))
    for group, trunk in zip(groups, trunks):
        expected = 0
        for medium in group.media:
            if medium.digest not in distinct:
                distinct[medium.digest], first_row[medium.digest] = medium, total
                total += medium.tokens
            start = first_row[medium.digest]
            rows.append(torch.arange(start, start + medium.tokens))
            expected += medium.tokens
        found = torch.isin(trunk, placeholders).nonzero()[:, 0]
        if len(found) != expected:
            raise ValueError(
                f"a prompt and its completions hold {len(found)} vision placeholders where its "
                f"media have {expected} tokens; a sampled placeholder cannot be fed back, so "
                "forbid them in sampling"
            )
        slots.append(found + trunk_start)
        trunk_start += len(trunk)
    none = torch.zeros(0, dtype=torch.int64)
    return tuple(distinct.values()), torch.cat([none, *rows]), torch.cat([none, *slots])
