"""Combine a processor's arguments of single sequences into those of a model's forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import pad

Piece = tuple[int, Mapping[str, torch.Tensor]]
"""So many tokens of a sequence, and the arguments of what is shown in them."""


def of_tokens(name: str, argument: torch.Tensor, tokens: int) -> bool:
    """True if an argument has an entry for each of so many tokens."""
    return argument.shape[:2] == (1, tokens)


def joined(pieces: Sequence[Piece]) -> dict[str, torch.Tensor]:
    """The arguments of pieces that follow each other in one sequence.

    One with an entry for each token is 0 where a piece has none. Everything else is put together
    along the first dimension: processors have batches, images or patches there.

    Raises:
        ValueError: An argument has more than a number for each token, or its parts do not fit.
    """
    found = {}
    for name in dict.fromkeys(name for _, arguments in pieces for name in arguments):
        given = [(tokens, arguments[name]) for tokens, arguments in pieces if name in arguments]
        if not all(of_tokens(name, argument, tokens) for tokens, argument in given):
            found[name] = _stacked(name, [argument for _, argument in given])
            continue
        _check_numbers(name, given[0][1])
        missing = given[0][1].new_zeros(1, 1)
        every = (arguments.get(name, missing.expand(1, tokens)) for tokens, arguments in pieces)
        found[name] = torch.cat([*every], 1)
    return found


def arguments_of_rows(
    rows: Sequence[Sequence[Piece]], width: int, device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The arguments of a batch of sequences, each of pieces that follow each other.

    Args:
        rows: Rows; tokens that follow the pieces of a row are those of a text.
        width: Tokens of the longest sequence.
        device: Where the model is.
        dtype: Data type of the model.

    Raises:
        ValueError: If :func:`joined` raises it.
    """
    whole = [joined(pieces) for pieces in rows]
    lengths = [sum(tokens for tokens, _ in pieces) for pieces in rows]
    given = {}
    for name in dict.fromkeys(name for row in whole for name in row):
        parts = [(n, row[name]) for n, row in zip(lengths, whole, strict=True) if name in row]
        if all(of_tokens(name, part, tokens) for tokens, part in parts):
            none = parts[0][1].new_zeros(1, 0)
            every = (row.get(name, none) for row in whole)
            tensor = torch.cat([pad(part, (0, width - part.shape[1])) for part in every])
        else:
            tensor = _stacked(name, [part for _, part in parts])
        given[name] = tensor.to(device, dtype if tensor.is_floating_point() else None)
    return given


def _check_numbers(name: str, argument: torch.Tensor) -> None:
    if argument.dim() > 2:
        raise ValueError(
            f"the model takes '{name}' of shape {tuple(argument.shape)} for each token of the "
            "prompt, and nothing says how that continues; such a model needs a family of its own "
            "(docs/models.md)"
        )


def _stacked(name: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors along the first dimension. Pictures with fewer parts or pixels than others are
    padded with 0, as processors do.
    """
    most = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    if all([*part.shape[1:]] == most for part in parts):
        return torch.cat([*parts])
    if not (parts[0].is_floating_point() or name.endswith("_mask")):
        raise ValueError(
            f"the model takes '{name}' of shapes {[tuple(part.shape) for part in parts]}, and "
            "nothing says how pictures of several sizes go together; let tools return pictures of "
            "the size of those in the prompt, or take a family of docs/models.md"
        )
    filled = []
    for part in parts:
        missing = [n - have for n, have in zip(most, part.shape[1:], strict=True)]
        filled.append(pad(part, [x for n in reversed(missing) for x in (0, n)]))
    return torch.cat(filled)
