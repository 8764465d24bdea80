"""Agent programs that tests train: they know nothing of mmr1 but its server."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import time
from contextlib import suppress

from openai import AsyncOpenAI, OpenAI
from PIL import Image

from mmr1.types import Sample
from mmr1_contrib.agents.chat_messages import chat_messages

ZOOM = {"type": "function", "function": {"name": "zoom", "parameters": {"type": "object"}}}


def uri(colour: tuple[int, int, int], pixel: int | None = None) -> str:
    image = Image.new("RGB", (56, 56), colour)
    if pixel is not None:
        image.putpixel((3, 5), (pixel, 0, 0))
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def shown(url: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url}}


async def turns(client: AsyncOpenAI, sample: Sample, count: int = 3, pixel: int = 0) -> float:
    """A conversation that shows a picture after each turn."""
    messages = chat_messages(sample)
    for number in range(count):
        answer = await client.chat.completions.create(model="policy", messages=messages)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        seen = [{"type": "text", "text": f"Look, {number}."}, shown(uri((200, 9, 9), pixel))]
        messages.append({"role": "user", "content": seen})
    return float(len(messages))


def plain(client: OpenAI, sample: Sample) -> None:
    """One request of a program that is not async, with a client of its own."""
    own = OpenAI()
    own.chat.completions.create(model="policy", messages=chat_messages(sample))


async def measured(client: AsyncOpenAI, sample: Sample) -> float:
    """Two turns of three tokens at most; the sum of the log-probs that the client was told."""
    messages, total = chat_messages(sample), 0.0
    for _ in range(2):
        answer = await client.chat.completions.create(
            model="policy", messages=messages, max_tokens=3, logprobs=True
        )
        (choice,) = answer.choices
        total += sum(token.logprob for token in choice.logprobs.content)
        messages += [choice.message, {"role": "user", "content": "Sure?"}]
    return total


async def forks(client: AsyncOpenAI, sample: Sample) -> float:
    """Two conversations side by side, and a judge of their answers."""

    async def ask(messages: list[dict]) -> str:
        answer = await client.chat.completions.create(model="policy", messages=messages)
        return answer.choices[0].message.content or ""

    messages = chat_messages(sample)
    answers = await asyncio.gather(ask(messages), ask(messages))
    read = [{"type": "text", "text": " or ".join(answers)}, shown(uri((9, 200, 9)))]
    await ask([{"role": "system", "content": "Judge."}, {"role": "user", "content": read}])
    return 1.0


async def rewrites(client: AsyncOpenAI, sample: Sample) -> float:
    """Says in its second request that the policy said something else."""
    messages = chat_messages(sample)
    await client.chat.completions.create(model="policy", messages=messages)
    messages.append({"role": "assistant", "content": "Seven."})
    messages.append({"role": "user", "content": "Sure?"})
    await client.chat.completions.create(model="policy", messages=messages)
    return 1.0


async def writes_on(client: AsyncOpenAI, sample: Sample) -> float:
    """Writes text behind what the policy said."""
    messages = chat_messages(sample)
    answer = await client.chat.completions.create(model="policy", messages=messages)
    said = (answer.choices[0].message.content or "") + "</code>"
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    await client.chat.completions.create(model="policy", messages=messages)
    return 1.0


async def by_name(client: AsyncOpenAI, sample: Sample) -> float:
    """Misbehaves as its record says."""
    messages = chat_messages(sample)
    kind = sample.meta.get("kind", "good")
    if kind == "silent":
        return 1.0
    if kind != "flood":
        await client.chat.completions.create(model="policy", messages=messages)
    if kind == "hang":
        time.sleep(10**6)
    if kind == "raise":
        raise RuntimeError("no such page")
    if kind == "die":
        os._exit(3)
    while kind == "flood":
        with suppress(Exception):
            await client.chat.completions.create(model="policy", messages=messages)
    return 1.0
