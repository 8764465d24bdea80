"""FrozenLake whose pictures are blank: ``gymnasium`` finds it as ``blank:BlankLake-v0``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Blank(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The same environment, whose pictures show nothing."""

    def render(self) -> Any:
        return np.zeros_like(self.env.render())


def lake(**options: Any) -> gymnasium.Env[Any, Any]:
    return Blank(gymnasium.make("FrozenLake-v1", **options))


gymnasium.register("BlankLake-v0", lake, max_episode_steps=100)
