"""One rank's tokens of a packed sequence that a context has cut, for layers that know of neither.

Cut and causal attention are those of ``context_packing.py``. Embeddings and towers see the whole
sequence on every rank; the language model is given the rank's own tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmr1.trainer.forward.any_model.layout import NotSharedError, lengths_of_groups
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.context_packing import ContextLayout, Cut, cut_layout
from mmr1.trainer.forward.packing import AttentionLayout


@dataclass(frozen=True)
class OwnRows:
    """A rank's p tokens of a group's prompt, and s of m of its suffixes.

    Attributes:
        prompt: ``[p]`` int64, among the rank's tokens.
        places: ``[p]`` int64, in the prompt.
        index: ``[m, C]`` int64, among the rank's tokens; beyond its end a suffix repeats its last.
        steps: ``[m, C]`` int64, in their suffix.
        suffixes: ``[m]`` int64, numbers of the suffixes in the group.
        real: ``[s]`` int64, which of the ``m * C`` are not a repetition.
    """

    prompt: torch.Tensor
    places: torch.Tensor
    index: torch.Tensor
    steps: torch.Tensor
    suffixes: torch.Tensor
    real: torch.Tensor


@dataclass(frozen=True)
class Part:
    """One rank's n tokens of a packed sequence of T.

    Attributes:
        context: The ranks that have the others.
        causal: For layers whose attention is causal and nothing else.
        tokens: T.
        rows: ``[n]`` int64, the tokens' places in the sequence; padding behind it repeats its last.
        groups: What the rank has of each group.
        order: ``[n]`` int64: the tokens of one group after the other, and then the padding, in the
            order in which the rank has them.
        padding: ``[2, ...]`` int64, the padding among the rank's tokens, and behind the sequence.
        gathered: ``[padded]`` int64, the index of each token among those of all ranks.
    """

    context: Context
    causal: ContextLayout
    tokens: int
    rows: torch.Tensor
    groups: tuple[OwnRows, ...]
    order: torch.Tensor
    padding: torch.Tensor
    gathered: torch.Tensor

    @staticmethod
    def of(plain: AttentionLayout, context: Context, device: torch.device) -> Part:
        tokens = sum(plain.prefixes.q_lengths) + sum(plain.suffixes.q_lengths)
        cut = Cut(tokens, context.size)
        own, gathered = cut.tokens_of(context.rank), cut.gathered()
        here = _Here(gathered, context.rank, 2 * cut.chunk)
        groups, placed = [], []
        prompt, suffix = 0, sum(plain.prefixes.q_lengths)
        for length, suffixes in lengths_of_groups(plain):
            rows = _own_rows(here, prompt, length, suffix, suffixes)
            groups.append(rows)
            placed += [rows.prompt, rows.index.flatten()[rows.real]]
            prompt, suffix = prompt + length, suffix + sum(suffixes)
        behind = (own >= tokens).nonzero()[:, 0]
        order = torch.cat([*placed, behind]).argsort()

        def there(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=True)

        return Part(
            context,
            cut_layout(plain, cut, context, device),
            tokens,
            there(own.clamp(max=tokens - 1)),
            tuple(OwnRows(**{n: there(t) for n, t in vars(rows).items()}) for rows in groups),
            there(order),
            there(torch.stack([behind, own[behind]])),
            there(gathered),
        )

    @property
    def own_tokens(self) -> int:
        return len(self.rows)

    def read(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which rows ``[N]`` of the sequence are here, bool, and where among the rank's tokens."""
        index = self.gathered[rows]
        here = index // self.own_tokens == self.context.rank
        return here, index[here] % self.own_tokens

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The language model's arguments for the rank's tokens, from those for the sequence.

        Raises:
            NotSharedError: It is given something of which a rank's part is not known.
        """
        return {name: self._own(name, value, given) for name, value in given.items()}

    def _own(self, name: str, value: Any, given: Mapping[str, Any]) -> Any:
        if name == "position_ids":
            return value.index_select(-1, self.rows)
        if name == "deepstack_visual_embeds" and value is not None:
            seen = given["visual_pos_masks"][0]
            rows = (seen.cumsum(0) - 1)[self.rows[seen[self.rows]]]
            return [features.index_select(0, rows) for features in value]
        if type(value) is torch.Tensor and value.shape[:2] == (1, self.tokens):
            return value.index_select(1, self.rows)
        if any(type(x) is torch.Tensor and x.dim() for x in _values(value)):
            raise NotSharedError(f"ranks do not cut '{name}', which its language model is given")
        return value


def _values(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list | tuple) else [value]


@dataclass(frozen=True)
class _Here:
    """Finds a rank's tokens among those of the sequence."""

    gathered: torch.Tensor
    rank: int
    tokens: int

    def places(self, start: int, length: int) -> torch.Tensor:
        """Which of ``length`` tokens from ``start`` on the rank has."""
        owner = self.gathered[start : start + length] // self.tokens
        return (owner == self.rank).nonzero()[:, 0]

    def index(self, rows: torch.Tensor) -> torch.Tensor:
        return self.gathered[rows] % self.tokens


def _own_rows(
    here: _Here, prompt: int, length: int, suffix: int, suffixes: Sequence[int]
) -> OwnRows:
    """Of a group whose prompt and suffixes begin at these rows."""
    places = here.places(prompt, length)
    starts = torch.tensor([0, *suffixes], dtype=torch.int64).cumsum(0) + suffix
    found = [here.places(int(starts[i]), n) for i, n in enumerate(suffixes)]
    numbers = torch.tensor([i for i, own in enumerate(found) if len(own)], dtype=torch.int64)
    counts = torch.tensor([len(own) for own in found if len(own)], dtype=torch.int64)
    longest = int(counts.max()) if len(counts) else 0
    steps = torch.zeros(len(numbers), longest, dtype=torch.int64)
    for row, own in zip(steps, (own for own in found if len(own)), strict=True):
        row[: len(own)], row[len(own) :] = own, own[-1]
    return OwnRows(
        prompt=here.index(prompt + places),
        places=places,
        index=here.index(starts[numbers][:, None] + steps),
        steps=steps,
        suffixes=numbers,
        real=(torch.arange(longest) < counts[:, None]).flatten().nonzero()[:, 0],
    )
