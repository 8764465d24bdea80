"""Three-row rotary positions (M-RoPE, Qwen2-VL, arXiv 2409.12191): time, height and width."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch

from mmr1.vision.prepare import Medium


def mrope_positions(
    prompt_ids: Sequence[int], grids: Iterable[torch.Tensor], placeholder_ids: Collection[int]
) -> torch.Tensor:
    """Positions of an expanded prompt: ``[3, P]`` int64.

    Text advances all rows together. A run of placeholders spans its grid from the next free
    position on, and what follows starts after the largest position of any row, as in the releases
    of Qwen2-VL and Qwen2.5-VL and in vLLM. (transformers 5 steps over the larger *spatial* side
    only, which differs for videos that last longer than they are wide; positions are therefore
    always passed to the model.)

    Args:
        grids: ``[3, tokens]`` positions from 0 of each run of placeholders.
    """
    runs: list[torch.Tensor] = []
    remaining = iter(grids)
    start, index = 0, 0
    while index < len(prompt_ids):
        if prompt_ids[index] in placeholder_ids:
            run = next(remaining) + start
        else:
            length = _text_run(prompt_ids, index, placeholder_ids)
            run = (start + torch.arange(length)).expand(3, -1)
        runs.append(run)
        index += run.shape[1]
        start = int(run.max()) + 1
    return torch.cat(runs, dim=1) if runs else torch.zeros(3, 0, dtype=torch.int64)


def grid_positions(medium: Medium, frames: int, positions_per_frame: float = 1.0) -> torch.Tensor:
    """Positions ``[3, tokens]``, from 0, of some temporal patches of a medium."""
    _, h, w = medium.grid
    time = (torch.arange(frames, dtype=torch.float64) * positions_per_frame).long()
    axes = (time, torch.arange(h // medium.merge), torch.arange(w // medium.merge))
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).reshape(3, -1)


def _text_run(prompt_ids: Sequence[int], start: int, placeholder_ids: Collection[int]) -> int:
    """Number of text tokens from ``start`` to the next placeholder or the end."""
    end = start
    while end < len(prompt_ids) and prompt_ids[end] not in placeholder_ids:
        end += 1
    return end - start
