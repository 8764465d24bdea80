"""Rows and block layouts of attention, and the tolerances that they are held to."""

import torch

from mmr1.attention import (
    Blocks,
)
from mmr1.trainer.forward.packing import AttentionLayout

CPU = torch.device("cpu")


SCALE = 0.3


# In float64, where only rounding is left: of at most 240 terms of about 1, at 1e-16 each. In
# float32 the sums differ by up to 1e-5, by another amount on another processor.
EXACT = {"atol": 1e-12, "rtol": 0}


def rows(total, heads, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (total, heads, 32)
    return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)


def shared_layout(groups):
    """Layout and ``[T, T]`` mask of groups given as ``(prompt length, completion lengths)``."""
    prompts = tuple(prompt for prompt, _ in groups)
    suffixes = tuple(length for _, lengths in groups for length in lengths)
    layout = AttentionLayout(
        prefixes=Blocks(prompts, prompts, causal=True, device=CPU),
        suffixes=Blocks(suffixes, suffixes, causal=True, device=CPU),
        shared=Blocks(tuple(sum(ls) for _, ls in groups), prompts, causal=False, device=CPU),
    )
    prefix_of = [g for g, prompt in enumerate(prompts) for _ in range(prompt)]
    owner = [(g, None) for g in prefix_of]
    for g, (_, lengths) in enumerate(groups):
        for i, length in enumerate(lengths):
            owner += [(g, i)] * length
    allowed = torch.tensor(
        [
            [k <= q and a[0] == b[0] and b[1] in (None, a[1]) for k, b in enumerate(owner)]
            for q, a in enumerate(owner)
        ]
    )
    return layout, allowed
