"""A reward over HTTP, in OpenRLHF's protocol.

``POST {"query": [...], "prompts": [...], "labels": [...]}`` is answered by ``{"rewards": [...]}``,
one number for each query (prompt and completion in one text).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from mmr1.rewards.item import RewardItem, invalid
from mmr1.rewards.plugins.addresses import (
    Address,
    parse_address,
    secrets_of,
    without_secrets,
)
from mmr1.rewards.plugins.bounded_json import read_json
from mmr1.rewards.plugins.bounded_reply import read_reply, read_start
from mmr1.rewards.plugins.dialects import rewards_of
from mmr1.rewards.plugins.event_loop import LoopThread
from mmr1.types import Reward, Status

REPLY_BYTES = 1 << 20  # the longest reply after decompression: this,
REPLY_BYTES_PER_ITEM = 4 << 10  # and this for every item that was sent
_ERROR_BYTES = 800  # of a reply that is an error
_BACKOFF_S = 0.25
_OPTIONS = ("urls", "retries", "rows", "headers")
_PASSING = (408, 425, 429)  # client errors that another attempt may not meet


class RemoteReward:
    """A reward function behind one or several HTTP servers, which share the items equally.

    A reply may have 1 MiB and 4 KiB for every item that was sent, counted after decompression, and
    32 levels of nesting. Redirects are not followed.

    Args:
        url: The server, or several separated by commas. ``user:password@`` in it is sent as basic
            authentication and never shown.
        options: ``urls`` (more servers), ``retries`` (2), ``headers``, and ``rows``: send the
            whole records too, as ``"rows"``, which ``mmr1 reward serve`` reads and others ignore.
        timeout_s: Deadline of one call in seconds, from connecting to the reply's last byte. A
            share that fails is asked of the next server after a pause that doubles, so the longest
            wait is ``(retries + 1) * timeout_s`` and the pauses.

    Raises:
        ValueError: An option is unknown, or an address is none.
    """

    def __init__(self, url: str, options: Mapping[str, Any], *, timeout_s: float) -> None:
        for name in options:
            if name not in _OPTIONS:
                raise ValueError(
                    f"a remote reward has no option '{name}'; it has: {', '.join(_OPTIONS)}"
                )
        urls = [part.strip() for part in url.split(",")] + [str(u) for u in options.get("urls", ())]
        self._addresses = [parse_address(text) for text in urls]
        self._headers = _checked_headers(options.get("headers") or {})
        self._secrets = secrets_of(self._addresses, self._headers)
        self._retries = int(options.get("retries", 2))
        self._rows = bool(options.get("rows", False))
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None
        self._thread = LoopThread()

    def score(self, items: Sequence[RewardItem], values: Sequence[Any]) -> list[Reward]:
        """One reward per item; a share without an answer has no valid reward."""
        if not items:
            return []
        size = -(-len(items) // len(self._addresses))
        shares = [items[start : start + size] for start in range(0, len(items), size)]
        answers = self._thread.run(self._ask_all(shares))
        return [self._shown(reward) for share in answers for reward in share]

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """Nothing is checked: only the server knows what its golds are."""
        return [None] * len(items)

    def close(self) -> None:
        if self._client is not None:
            self._thread.run(self._client.aclose())
            self._client = None
        self._thread.close()

    async def _ask_all(self, shares: Sequence[Sequence[RewardItem]]) -> list[list[Reward]]:
        if self._client is None:
            # The deadline is this class's; httpx's time-outs are per byte received.
            self._client = httpx.AsyncClient(timeout=None, headers=self._headers)
        tasks = (self._ask(self._client, server, share) for server, share in enumerate(shares))
        return list(await asyncio.gather(*tasks))

    async def _ask(
        self, client: httpx.AsyncClient, server: int, items: Sequence[RewardItem]
    ) -> list[Reward]:
        """Ask one server after another until one answers."""
        try:
            body = json.dumps(self._body(items), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            return [invalid(Status.ERROR, f"a record cannot be sent as JSON: {error}")] * len(items)
        failure = _Failure(Status.ERROR, "was not asked")
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(_BACKOFF_S * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))
            address = self._addresses[(server + attempt) % len(self._addresses)]
            answer = await self._call(client, address, body, len(items))
            if not isinstance(answer, _Failure):
                return answer
            failure = answer
            if failure.final:
                break
        return [invalid(failure.status, failure.error)] * len(items)

    async def _call(
        self, client: httpx.AsyncClient, address: Address, body: bytes, count: int
    ) -> list[Reward] | _Failure:
        """One call of one server, within the deadline."""
        request = client.build_request(
            "POST",
            address.url,
            content=body,
            headers={"Content-Type": "application/json", "Accept-Encoding": "gzip, deflate"},
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await client.send(request, auth=address.auth, stream=True)
                try:
                    return await self._answer(response, count)
                except _ReplyError as error:
                    return _Failure(Status.ERROR, f"{address.shown}: {error}", error.final)
                finally:
                    await response.aclose()
        except TimeoutError:
            return _Failure(
                Status.TIMEOUT, f"{address.shown}: no answer within {self._timeout_s:g} s"
            )
        except (httpx.HTTPError, httpx.StreamError, ValueError) as error:
            told = str(error) or type(error).__name__
            return _Failure(Status.ERROR, f"{address.shown}: {told}")

    async def _answer(self, response: httpx.Response, count: int) -> list[Reward]:
        """The rewards in a response whose body has not been read."""
        if response.has_redirect_location:
            host = httpx.URL(response.headers["Location"]).host or "another path"
            raise _ReplyError(
                f"HTTP {response.status_code}, a redirect to {host}, which is not followed; "
                "give that address instead",
                final=False,
            )
        if not response.is_success:
            text = (await read_start(response, _ERROR_BYTES)).decode(errors="replace")
            final = response.is_client_error and response.status_code not in _PASSING
            raise _ReplyError(f"HTTP {response.status_code} {self._hide(text)[:200]}", final)
        body = await read_reply(response, REPLY_BYTES + count * REPLY_BYTES_PER_ITEM)
        return _rewards(read_json(body), count, self._hide)

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
        return invalid(reward.status, self._hide(reward.error))

    def _hide(self, text: str) -> str:
        return without_secrets(text, self._secrets)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a call gave no rewards; ``final`` where any server would refuse the same body."""

    status: Status
    error: str
    final: bool = False


class _ReplyError(Exception):
    """A reply that is an HTTP error."""

    def __init__(self, message: str, final: bool) -> None:
        super().__init__(message)
        self.final = final


def _checked_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    checked = {str(name): str(value).strip() for name, value in headers.items()}
    for name, value in checked.items():
        if not (value.isascii() and value.isprintable()):  # the value itself may be a secret
            raise ValueError(f"a remote reward's header {name!r} is not one line of ASCII")
    return checked


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
    """A status that goes with an error; what a server calls otherwise is an error."""
    try:
        status = Status(str(name))
    except ValueError:
        return Status.ERROR
    return Status.ERROR if status.valid else status
