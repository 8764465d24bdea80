"""Hidden states of completions: what a forward gives, and what every head takes.

``packed.py`` computes them; ``scores.py`` makes log-probs of them, critic and reward model numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mmr1.trainer.forward.context import Context

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
    """

    shape: tuple[int, int]
    places: torch.Tensor
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class CompletionStates:
    """The N completion tokens of a batch, or those that a rank has of it, sequences in group order.

    Attributes:
        hidden: ``[N, H]``, the final hidden states, as the output embedding takes them.
        targets: ``[N]`` int64, the tokens.
        padded: Where they go in a padded batch.
    """

    hidden: torch.Tensor
    targets: torch.Tensor
    padded: PaddedRows


def to_rows(values: torch.Tensor, padded: PaddedRows) -> torch.Tensor:
    """``[N]`` values in completion order to ``[B, R]``, 0 beyond the ends: of all ranks' tokens."""
    rows = values.new_zeros(padded.shape).index_put(tuple(padded.places), values)
    return rows if padded.context is None else padded.context.join(rows)
