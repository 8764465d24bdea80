"""The arguments of a model's own forward for several completions of one prompt."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def of_tokens(argument: torch.Tensor, prompt: int) -> bool:
    """Has an argument an entry for each token of a prompt of that length?"""
    return argument.shape[:2] == (1, prompt)


def arguments_of_rows(
    arguments: Mapping[str, torch.Tensor],
    prompt: int,
    rows: int,
    width: int,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, torch.Tensor]:
    """What a processor made for one prompt, for so many sequences that begin with it.

    Args:
        arguments: Of one prompt, such as ``pixel_values``; without the token ids and their mask.
        prompt: Tokens of the prompt.
        rows: Sequences.
        width: Tokens of the longest sequence.
        device: Where the model is.
        dtype: Of the model.

    Returns:
        An argument with an entry for each token has 0 at what follows the prompt. Everything else
        is there once for each sequence, along the first dimension: processors put batches, images
        or patches there.

    Raises:
        ValueError: An argument has more than a number for each token.
    """
    given = {}
    for name, tensor in arguments.items():
        if of_tokens(tensor, prompt):
            if tensor.dim() > 2:
                raise ValueError(
                    f"the model takes '{name}' of shape {tuple(tensor.shape)} for each token of "
                    "the prompt, and nothing says how that goes on; such a model needs a family of "
                    "its own (docs/models.md)"
                )
            followed = torch.nn.functional.pad(tensor, (0, width - prompt))
            repeated = followed.expand(rows, -1)
        else:
            repeated = torch.cat([tensor] * rows)
        given[name] = repeated.to(device, dtype if tensor.is_floating_point() else None)
    return given
