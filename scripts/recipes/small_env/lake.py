"""FrozenLake, drawn plainly as ``lake:PlainLake-v0``, and blank as ``lake:BlankLake-v0``.

Its own drawing is light, and takes a model that begins with random weights far more steps to read.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SIDE = 56
"""Pixels of a side of a picture."""
WALKER, FLAG = (255, 255, 255), (255, 0, 0)


class Plain(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A white square for the walker and a red one for the flag, on black."""

    def render(self) -> Any:
        lake: Any = self.unwrapped
        rows, columns = lake.desc.shape
        picture = np.zeros((SIDE, SIDE, 3), np.uint8)
        flag = tuple(np.argwhere(lake.desc == b"G")[0])
        for (row, column), colour in ((flag, FLAG), (divmod(lake.s, columns), WALKER)):
            down = slice(SIDE * row // rows, SIDE * (row + 1) // rows)
            picture[down, SIDE * column // columns : SIDE * (column + 1) // columns] = colour
        return picture


class Blank(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The same walks, of which the pictures show nothing."""

    def render(self) -> Any:
        return np.zeros((SIDE, SIDE, 3), np.uint8)


def plain(**options: Any) -> gymnasium.Env[Any, Any]:
    return Plain(gymnasium.make("FrozenLake-v1", **options))


def blank(**options: Any) -> gymnasium.Env[Any, Any]:
    return Blank(gymnasium.make("FrozenLake-v1", **options))


gymnasium.register("PlainLake-v0", plain, max_episode_steps=100)
gymnasium.register("BlankLake-v0", blank, max_episode_steps=100)
