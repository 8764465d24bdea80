"""Pass rates: sample answers from a served model and count the right ones.

The model is served over the OpenAI chat API, for example by ``vllm serve``, so that this package
needs no rollout engine.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mmr1.config import RewardsConfig
from mmr1.rewards import CompositeReward, RewardItem, build_composite_reward
from mmr1.types import MediaRef, Sample, TextPart

ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Server:
    """An OpenAI-compatible server to sample from.

    Attributes:
        url: Base URL, up to and including ``/v1``.
        model: The model's name on the server.
        temperature: Sampling temperature.
        max_tokens: Length limit of one answer.
        timeout_s: Seconds for one request.
    """

    url: str
    model: str
    temperature: float = 1.0
    max_tokens: int = 1024
    timeout_s: float = 600.0

    def answers(self, sample: Sample, count: int) -> list[str]:
        """``count`` sampled answers.

        Raises:
            ValueError: The server does not answer, or its answer cannot be read.
        """
        body = {
            "model": self.model,
            "messages": [chat_message(m.role, m.parts) for m in prompt_of(sample)],
            "n": count,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                    choices = json.load(response)["choices"]
                return [choice["message"]["content"] for choice in choices]
            except (OSError, KeyError, ValueError) as error:
                # Retry only connection errors, which a busy server causes; a wrong answer is final.
                if isinstance(error, OSError) and attempt < ATTEMPTS:
                    time.sleep(0.5 * attempt)
                    continue
                raise ValueError(f"{self.url} gives no answers for {sample.id}: {error}") from error
        raise AssertionError("the last attempt returns or raises")


def prompt_of(sample: Sample) -> Sequence[Any]:
    """The conversation without a demonstration at its end."""
    last = len(sample.messages) - (sample.messages[-1].role == "assistant")
    return sample.messages[:last]


def chat_message(role: str, parts: Sequence[TextPart | MediaRef]) -> dict[str, Any]:
    """A message of the chat API, with media as data URLs."""
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": part.text})
            continue
        mime = "video/mp4" if part.kind == "video" else "image/png"
        address = f"data:{mime};base64,{base64.b64encode(part.read()).decode()}"
        content.append({"type": f"{part.kind}_url", f"{part.kind}_url": {"url": address}})
    return {"role": role, "content": content}


def pass_rates(
    samples: Iterable[Sample], server: Server, count: int, parallel: int = 16
) -> Iterator[float]:
    """Each sample's mean reward over ``count`` sampled answers, in their order.

    The samples are taken as they are needed.

    Raises:
        ValueError: The server fails, or a sample's reward cannot be computed.
    """
    config = RewardsConfig.model_validate({"functions": {"auto": 1.0}})
    with ThreadPoolExecutor(parallel) as pool, build_composite_reward(config) as composite_reward:
        answered = _answered(samples, server, count, pool, 2 * parallel)
        while batch := list(islice(answered, 2 * parallel)):
            yield from _graded(composite_reward, batch)


def _answered(
    samples: Iterable[Sample],
    server: Server,
    count: int,
    pool: ThreadPoolExecutor,
    ahead: int,
) -> Iterator[tuple[Sample, list[str]]]:
    """Each sample with its answers; ``ahead`` more are requested at any time."""
    pending: deque[tuple[Sample, Future[list[str]]]] = deque()
    try:
        for sample in samples:
            pending.append((sample, pool.submit(server.answers, sample, count)))
            if len(pending) > ahead:
                first, answers = pending.popleft()
                yield first, answers.result()
        while pending:
            first, answers = pending.popleft()
            yield first, answers.result()
    finally:
        for _, answers in pending:
            answers.cancel()


def _graded(
    composite_reward: CompositeReward, batch: Sequence[tuple[Sample, list[str]]]
) -> list[float]:
    items = [
        RewardItem(completion=text, sample=sample, group=number)
        for number, (sample, texts) in enumerate(batch)
        for text in texts
    ]
    rates: list[list[float]] = [[] for _ in batch]
    for item, reward in zip(items, composite_reward.score(items), strict=True):
        if reward.value is None:
            raise ValueError(f"{item.sample.id}: no valid reward: {reward.error}")
        rates[item.group].append(reward.value)
    return [sum(values) / len(values) if values else 0.0 for values in rates]
