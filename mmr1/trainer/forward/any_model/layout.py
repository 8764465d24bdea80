"""The places of groups' tokens in a packed sequence, for layers that know nothing of groups.

The sequence is that of ``packing.py``: ``[prefix 1 | ... | prefix G | suffix 1 | ... | suffix B]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from mmr1.trainer.forward.packing import AttentionLayout, Layout, Packed

if TYPE_CHECKING:
    from mmr1.trainer.forward.any_model.part import Part


class PrefixSharingError(ValueError):
    """A model's own code does something that completions of one prompt cannot share."""


@dataclass(frozen=True)
class GroupRows:
    """The rows of one group: P of its prompt and S of its n suffixes, which follow each other.

    Attributes:
        prompt: Rows of the prompt.
        suffixes: Rows of all suffixes.
        index: ``[n, C]`` int64, rows by suffix and step; beyond its end a suffix repeats its last.
        real: ``[S]`` int64, which of the ``n * C`` are not a repetition.
    """

    prompt: slice
    suffixes: slice
    index: torch.Tensor
    real: torch.Tensor

    @property
    def longest(self) -> int:
        return self.index.shape[1]

    @property
    def starts(self) -> torch.Tensor:
        """The row in which each row's suffix begins: ``[S]`` int64."""
        return self.index[:, :1].expand_as(self.index).flatten()[self.real]

    def padded(self, packed: torch.Tensor) -> torch.Tensor:
        """``[T, ...]`` to the suffixes' ``[n, C, ...]``."""
        rows = packed.index_select(0, self.index.flatten())
        return rows.unflatten(0, self.index.shape)

    def unpadded(self, padded: torch.Tensor) -> torch.Tensor:
        """``[n, C, ...]`` to ``[S, ...]``."""
        return padded.flatten(0, 1).index_select(0, self.real)


@dataclass(frozen=True)
class SharedLayout:
    """A packed sequence of T tokens, and a record of what layers did with it.

    Attributes:
        plain: Who attends to whom, in the whole sequence.
        groups: Groups in the order of their prompts, and of their suffixes.
        places: ``[T]`` int64, the place of each token in its own sequence.
        shows: There are pictures in suffixes.
        part: The tokens of this rank; None where it has all of them.
        calls: Class of the attention module, for each call with this layout.
        dense: Class of it, for each call that the kernels of causal attention do not compute.
        stray: Module that saw the sequence without the layout.
    """

    plain: AttentionLayout
    groups: tuple[GroupRows, ...]
    places: torch.Tensor
    shows: bool = False
    part: Part | None = None
    calls: list[str] = field(default_factory=list)
    dense: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return len(self.places)

    @property
    def own_tokens(self) -> int:
        """The tokens that the layers see here."""
        return self.tokens if self.part is None else self.part.own_tokens

    @property
    def causal(self) -> Layout:
        """Return the mask for layers whose attention is causal and nothing else."""
        return self.plain if self.part is None else self.part.causal

    def continued(self, positions: torch.Tensor) -> torch.Tensor:
        """A model's own positions ``[..., T]`` of the sequence, as if each group were alone.

        A suffix continues where its prompt ends. Inside it they are the model's own.
        """
        prompts, suffixes = [], []
        for group in self.groups:
            start, end = group.prompt.start, group.prompt.stop
            first = positions[..., start : start + 1]
            prompts.append(positions[..., start:end] - first)
            after = positions[..., end : end + 1] - first
            own = positions[..., group.suffixes]
            suffixes.append(after + own - positions[..., group.starts])
        return torch.cat([*prompts, *suffixes], -1)

    @staticmethod
    def of(packed: Packed, shows: bool = False, part: Part | None = None) -> SharedLayout:
        plain = packed.layout
        assert isinstance(plain, AttentionLayout), "the whole sequence is packed"
        places = packed.positions[0]
        return SharedLayout(plain, tuple(_groups(plain, places.device)), places, shows, part)


def _groups(plain: AttentionLayout, device: torch.device) -> Iterator[GroupRows]:
    prompt, suffix = 0, sum(plain.prefixes.q_lengths)
    for length, lengths in lengths_of_groups(plain):
        index, real = _padding(lengths, suffix)
        total = sum(lengths)
        rows = slice(prompt, prompt + length), slice(suffix, suffix + total)
        yield GroupRows(*rows, index.to(device), real.to(device))
        prompt, suffix = prompt + length, suffix + total


def lengths_of_groups(plain: AttentionLayout) -> Iterator[tuple[int, list[int]]]:
    """Return the tokens of each group's prompt, and of each suffix that has any."""
    remaining = iter([length for length in plain.suffixes.q_lengths if length])
    for length, total in zip(plain.prefixes.q_lengths, plain.shared.q_lengths, strict=True):
        lengths: list[int] = []
        while sum(lengths) < total:
            lengths.append(next(remaining))
        yield length, lengths


def _padding(lengths: Sequence[int], start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``GroupRows.index`` and ``GroupRows.real`` of suffixes that begin at a row."""
    of_suffix = torch.tensor(lengths, dtype=torch.int64)
    steps = torch.arange(max(lengths, default=0))
    starts = of_suffix.cumsum(0) - of_suffix + start
    index = starts[:, None] + torch.minimum(steps, of_suffix[:, None] - 1)
    return index, (steps < of_suffix[:, None]).flatten().nonzero()[:, 0]
