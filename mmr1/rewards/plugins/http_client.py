"""A reward over HTTP, in OpenRLHF's protocol.

``POST {"query": [...], "prompts": [...], "labels": [...]}`` is answered by ``{"rewards": [...]}``,
one number for each query (prompt and completion in one text).
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from mmr1.rewards.item import RewardItem, invalid
from mmr1.rewards.plugins.dialects import rewards_of
from mmr1.types import Reward, Status

_BACKOFF_S = 0.25
_OPTIONS = ("urls", "retries", "rows", "headers")


def is_url(use: str) -> bool:
    return use.startswith(("http://", "https://"))


class RemoteReward:
    """A reward function behind one or several HTTP servers, which share the items equally.

    Args:
        url: The server, or several separated by commas.
        options: ``urls`` (more servers), ``retries`` (2), ``headers``, and ``rows``: also send
            the records, as ``"rows"``, which ``mmr1 reward serve`` reads and others ignore.
        timeout_s: Seconds for one answer. A share that fails goes to the next server, after a
            pause that doubles each time.

    Raises:
        ValueError: An option is unknown.
    """

    def __init__(self, url: str, options: Mapping[str, Any], *, timeout_s: float) -> None:
        for name in options:
            if name not in _OPTIONS:
                names = ", ".join(_OPTIONS)
                raise ValueError(f"a remote reward has no option '{name}'; it has: {names}")
        self._urls = [u.strip() for u in url.split(",")] + [str(u) for u in options.get("urls", ())]
        for server in self._urls:
            if not is_url(server) or not httpx.URL(server).host:
                raise ValueError(f"remote reward: {server!r} is no http address")
        self._retries = int(options.get("retries", 2))
        self._rows = bool(options.get("rows", False))
        self._client = httpx.Client(timeout=timeout_s, headers=options.get("headers"))

    def score(self, items: Sequence[RewardItem], values: Sequence[Any]) -> list[Reward]:
        """One reward per item; a share without an answer has no valid reward."""
        if not items:
            return []
        size = -(-len(items) // len(self._urls))
        shares = [items[start : start + size] for start in range(0, len(items), size)]
        with ThreadPoolExecutor(len(shares)) as threads:
            rewards = list(threads.map(self._ask, range(len(shares)), shares))
        return [reward for of_share in rewards for reward in of_share]

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """Nothing is checked: only the server knows what its golds are."""
        return [None] * len(items)

    def close(self) -> None:
        self._client.close()

    def _ask(self, server: int, items: Sequence[RewardItem]) -> list[Reward]:
        """Send a share of the items to one server after another until one answers."""
        error, status = "", Status.ERROR
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(_BACKOFF_S * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))
            url = self._urls[(server + attempt) % len(self._urls)]
            try:
                response = self._client.post(url, json=self._body(items))
                response.raise_for_status()
                return _rewards(response.json(), len(items))
            except httpx.TimeoutException:
                error, status = f"{url}: no answer in time", Status.TIMEOUT
            except httpx.HTTPStatusError as failure:
                error, status = f"{url}: {_describe(failure.response)}", Status.ERROR
                if failure.response.is_client_error:
                    break  # it would refuse the same body again
            except (httpx.HTTPError, ValueError) as failure:
                error, status = f"{url}: {failure}", Status.ERROR
        return [invalid(status, error)] * len(items)

    def _body(self, items: Sequence[RewardItem]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "query": [item.prompt + item.completion for item in items],
            "prompts": [item.prompt for item in items],
            "labels": [item.sample.answer for item in items],
        }
        return {**body, "rows": [to_row(item) for item in items]} if self._rows else body


def to_row(item: RewardItem) -> dict[str, Any]:
    """An item as a row of ``mmr1 reward score``, media left out."""
    row = {
        **item.sample.meta,
        "id": item.sample.id,
        "completion": item.completion,
        "answer": item.sample.answer,
        "task": item.sample.task,
        "source": item.sample.source,
        "question": item.sample.question,
        "prompt": item.prompt,
        "token_ids": list(item.token_ids),
        "truncated": item.truncated,
        "group": item.group,
        "media_sizes": [list(size) for size in item.media_sizes],
    }
    return {name: value for name, value in row.items() if value not in (None, [], "")}


def _rewards(answer: Any, expected: int) -> list[Reward]:
    """A server's answer as rewards; ``mmr1 reward serve`` adds ``status`` and ``error`` lists."""
    rewards = rewards_of(answer, expected, batch=True)
    detail = answer if isinstance(answer, dict) else {}
    statuses, errors = detail.get("status"), detail.get("error")
    if not (isinstance(statuses, list) and isinstance(errors, list)):
        return rewards
    return [
        reward if error is None else invalid(Status(status), str(error))
        for reward, status, error in zip(rewards, statuses, errors, strict=True)
    ]


def _describe(response: httpx.Response) -> str:
    return f"HTTP {response.status_code} {response.text[:200]}"
