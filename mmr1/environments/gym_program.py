"""An environment of Gymnasium as an agent program: its pictures in, names of actions out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from mmr1.environments.chat_messages import chat_messages, picture_part
from mmr1.environments.pictures import png
from mmr1.types import MediaRef, Sample


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
        id: As Gymnasium names it.
        actions: The names of actions 0, 1, ..., as the policy writes them.
        make: Keyword arguments of ``gymnasium.make``.
        max_steps: Turns at most.
        bad_action: Reward of a turn that names none; the environment then stays as it is.
    """
    import gymnasium
    import openai

    named = re.compile("|".join(rf"\b{re.escape(a)}\b" for a in actions), re.IGNORECASE)
    numbers = {action.lower(): number for number, action in enumerate(actions)}
    environment = gymnasium.make(id, render_mode="rgb_array", **(make or {}))
    environment.reset(seed=int(sample.meta["seed"]) if "seed" in sample.meta else None)
    messages = chat_messages(sample)
    said = messages[-1]["content"]
    text = [{"type": "text", "text": said}] if isinstance(said, str) else said
    messages[-1]["content"] = [*text, _picture(environment)]
    total = 0.0
    for _ in range(max_steps):
        try:
            answer = await client.chat.completions.create(model="policy", messages=messages)
        except openai.BadRequestError:  # a limit of the run
            break
        told = answer.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": told})
        if not (found := named.findall(told)):
            total += bad_action
            names = ", ".join(actions)
            messages.append({"role": "user", "content": f"Write one of: {names}."})
            continue
        _, reward, ended, cut, _ = environment.step(numbers[found[-1].lower()])
        total += float(reward)
        if ended or cut:
            break
        messages.append({"role": "user", "content": [_picture(environment)]})
    environment.close()
    return total


def _picture(environment: Any) -> dict[str, Any]:
    return picture_part(MediaRef("image", data=png(Image.fromarray(environment.render()))))
