"""Sizes of pictures at the edges of a budget."""

from __future__ import annotations

import math

import numpy as np


def odd_sizes(count: int) -> list[tuple[int, int]]:
    """Sizes from 1 to 3,000 pixels a side, thin strips and tiny images among them."""
    rng = np.random.default_rng(7)
    sizes = [(int(math.exp(a)), int(math.exp(b))) for a, b in rng.uniform(0, 8, (count * 4, 2))]
    fine = [(w, h) for w, h in sizes if max(w, h) <= 200 * min(w, h) and w * h < 2_000_000]
    return [(1, 1), (17, 17), (13, 14), (28, 28), (2000, 10), (10, 2000), (12, 1000), *fine][:count]
