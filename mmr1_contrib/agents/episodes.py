"""What the programs of environments share: each turn of the policy is an action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mmr1.types import Sample
from mmr1_contrib.agents.chat_messages import chat_messages

Part = dict[str, Any]
"""A part of a message, as OpenAI's API takes it."""

Step = Callable[[str], Awaitable[tuple[Sequence[Part] | None, float]]]
"""Takes the text of a turn; returns what the policy sees next, or None at the end, and a reward."""


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


async def play(
    client: Any, sample: Sample, shown: Sequence[Part], step: Step, max_steps: int
) -> float:
    """Let the policy act until the environment ends, or a limit is reached; the sum of the rewards.

    Args:
        shown: Media that the policy sees first, behind the messages of the sample.
        step: Carries out an action.
        max_steps: Turns at most.
    """
    import openai

    messages = chat_messages(sample)
    said = messages[-1]["content"]
    messages[-1]["content"] = [*([text_part(said)] if isinstance(said, str) else said), *shown]
    total = 0.0
    for _ in range(max_steps):
        try:
            answer = await client.chat.completions.create(model="policy", messages=messages)
        except openai.BadRequestError:  # a limit of the run
            break
        action = answer.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": action})
        seen, reward = await step(action)
        total += reward
        if seen is None:
            break
        messages.append({"role": "user", "content": [*seen]})
    return total
