"""A reward over HTTP, in OpenRLHF's protocol.

``POST {"query": [...], "prompts": [...], "labels": [...]}`` is answered by ``{"rewards": [...]}``,
one number for each query (prompt and completion in one text).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mmr1.rewards.builtin.remote import RemoteConfig
from mmr1.rewards.http.addresses import parse_address
from mmr1.rewards.http.post import Failure, JsonPost, LoopThread
from mmr1.rewards.item import RewardItem, invalid
from mmr1.rewards.plugins.values import rewards_of
from mmr1.types import Reward, Status

REPLY_BYTES = 1 << 20  # the longest reply after decompression: this,
REPLY_BYTES_PER_ITEM = 4 << 10  # and this for every item that was sent


class RemoteReward:
    """A reward function behind one or several HTTP servers, which share the items equally.

    A reply may have 1 MiB and 4 KiB for every item that was sent, counted after decompression, and
    32 levels of nesting. Redirects are not followed.

    A share that fails is asked of the next server after a pause that doubles, so the longest wait
    is ``(retries + 1) * timeout_s`` and the pauses. ``user:password@`` in an address is sent as
    basic authentication and never shown.

    Raises:
        ValueError: An address is none.
    """

    columns = ("every column",)

    def __init__(self, section: RemoteConfig, timeout_s: float) -> None:
        self._rows = section.rows
        self._post = JsonPost(
            [parse_address(url) for url in section.urls],
            section.headers,
            retries=section.retries,
            timeout_s=timeout_s,
        )
        self._thread = LoopThread()

    def score(self, items: Sequence[RewardItem], values: Sequence[Any]) -> list[Reward]:
        """One reward per item; a share without an answer has no valid reward."""
        if not items:
            return []
        size = -(-len(items) // self._post.servers)
        shares = [items[start : start + size] for start in range(0, len(items), size)]
        answers = self._thread.run(self._ask_all(shares))
        return [self._shown(reward) for share in answers for reward in share]

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """Accept every gold answer: only the server can read it."""
        return [None] * len(items)

    def close(self) -> None:
        self._thread.close(self._post.close)

    async def _ask_all(self, shares: Sequence[Sequence[RewardItem]]) -> list[list[Reward]]:
        tasks = (self._ask(server, share) for server, share in enumerate(shares))
        return list(await asyncio.gather(*tasks))

    async def _ask(self, server: int, items: Sequence[RewardItem]) -> list[Reward]:
        try:
            body = json.dumps(self._body(items), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            return [invalid(Status.ERROR, f"a record cannot be sent as JSON: {error}")] * len(items)
        parse = partial(_rewards, expected=len(items), hide=self._post.hide)
        longest = REPLY_BYTES + len(items) * REPLY_BYTES_PER_ITEM
        answer = await self._post.ask(body, parse, longest, first=server)
        if isinstance(answer, Failure):
            return [invalid(answer.status, answer.error)] * len(items)
        return answer

    def _body(self, items: Sequence[RewardItem]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "query": [item.prompt + item.completion for item in items],
            "prompts": [item.prompt for item in items],
            "labels": [item.sample.answer for item in items],
        }
        return {**body, "rows": [to_row(item) for item in items]} if self._rows else body

    def _shown(self, reward: Reward) -> Reward:
        if reward.error is None:
            return reward
        return invalid(reward.status, self._post.hide(reward.error))


def remote(section: RemoteConfig, place: Any) -> RemoteReward:
    """Return the reward behind the servers of a section.

    Raises:
        ValueError: An address is none.
    """
    try:
        return RemoteReward(section, section.timeout_s or place.scoring.timeout_s)
    except ValueError as error:
        raise ValueError(f"rewards.{place.name}.url: {error}") from error


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
        "messages": [dict(message) for message in item.messages],
        "tool_calls": [dict(call) for call in item.tool_calls],
        "environment_reward": item.environment_reward,
    }
    return {name: value for name, value in row.items() if value not in (None, [], "")}


def _rewards(answer: Any, expected: int, hide: Callable[[str], str]) -> list[Reward]:
    """A server's answer; its ``status`` and ``error`` lists are those of ``mmr1 reward serve``."""
    rewards = rewards_of(answer, expected, batch=True)
    detail = answer if isinstance(answer, dict) else {}
    statuses, errors = detail.get("status"), detail.get("error")
    if not (isinstance(statuses, list) and isinstance(errors, list)):
        return rewards
    if not len(statuses) == len(errors) == expected:
        return rewards
    return [
        reward if error is None else invalid(_invalid_status(status), hide(str(error)))
        for reward, status, error in zip(rewards, statuses, errors, strict=True)
    ]


def _invalid_status(name: Any) -> Status:
    """A status that goes with an error; unknown names become ERROR."""
    try:
        status = Status(str(name))
    except ValueError:
        return Status.ERROR
    return Status.ERROR if status.valid else status
