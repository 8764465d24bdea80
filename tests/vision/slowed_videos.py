"""Videos of which parts are slowed down."""

from __future__ import annotations

SLOWING = [i / 25 for i in range(40)] + [1.6 + 0.21 * i for i in range(20)]


"""A phone that runs out of light: 5.59 s, and two thirds of the frames in the first 1.6 s."""
