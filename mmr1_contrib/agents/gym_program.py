"""An environment of Gymnasium as an agent program: its pictures in, names of actions out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from mmr1.environments.pictures import png
from mmr1.types import MediaRef, Sample
from mmr1_contrib.agents.chat_messages import picture_part
from mmr1_contrib.agents.episodes import Part, play, text_part


async def run(
    client: Any,
    sample: Sample,
    *,
    id: str,
    actions: Sequence[str],
    make: Mapping[str, Any] | None = None,
    max_steps: int = 16,
    bad_action: float = 0.0,
) -> float:
    """Act until the environment ends; the sum of its rewards.

    The policy reads the messages of the sample with the first picture behind them, and then a
    picture after each action. The last action that a turn names is taken.

    Args:
        id: Name by which Gymnasium knows the environment.
        actions: The names of actions 0, 1, ..., as the policy writes them.
        make: Keyword arguments of ``gymnasium.make``.
        max_steps: Turns at most.
        bad_action: Reward of a turn that names none; the environment then stays as it is.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would look for a screen
    import gymnasium

    named = re.compile("|".join(rf"\b{re.escape(a)}\b" for a in actions), re.IGNORECASE)
    numbers = {action.lower(): number for number, action in enumerate(actions)}
    environment = gymnasium.make(id, render_mode="rgb_array", **(make or {}))
    environment.reset(seed=int(sample.meta["seed"]) if "seed" in sample.meta else None)

    async def step(text: str) -> tuple[list[Part] | None, float]:
        if not (found := named.findall(text)):
            return [text_part(f"Write one of: {', '.join(actions)}.")], bad_action
        _, reward, ended, cut, _ = environment.step(numbers[found[-1].lower()])
        return None if ended or cut else [_picture(environment)], float(reward)

    try:
        return await play(client, sample, [_picture(environment)], step, max_steps)
    finally:
        environment.close()


def _picture(environment: Any) -> Part:
    return picture_part(MediaRef("image", data=png(Image.fromarray(environment.render()))))
