"""POST a JSON body to one of several servers: deadlines, retries, bounded replies."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx

from mmr1.faults import tell_fault
from mmr1.rewards.http.addresses import Address, secrets_of, without_secrets
from mmr1.rewards.http.bounded_json import read_json
from mmr1.rewards.http.bounded_reply import read_reply, read_start
from mmr1.types import Status

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)

_ERROR_BYTES = 800  # of a reply that is an error
_BACKOFF_S = 0.25
_LONGEST_WAIT_S = 60.0  # that a server may ask for by Retry-After
_PASSING = (408, 425, 429)  # client errors that another attempt may not meet


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call gave no answer; secrets are hidden.

    Attributes:
        status: ``TIMEOUT`` or ``ERROR``.
        error: One line that names the server.
        final: Any server would refuse the same body.
        wait_s: Seconds that the server asks to be left alone.
    """

    status: Status
    error: str
    final: bool = False
    wait_s: float = 0.0


class JsonPost:
    """Asks servers that answer alike. A call that fails is asked of the next one after a pause.

    Redirects are not followed.

    Args:
        addresses: The servers.
        headers: Sent with every request.
        retries: Further attempts after the first. The pause between them doubles; a server's
            Retry-After, up to 60 s, makes it longer.
        timeout_s: Deadline of one call in seconds, from connecting to the reply's last byte.

    Raises:
        ValueError: A header is not one line of ASCII.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        headers: Mapping[str, Any],
        *,
        retries: int,
        timeout_s: float,
    ) -> None:
        self._addresses = list(addresses)
        self._headers = _checked_headers(headers)
        self._secrets = secrets_of(self._addresses, self._headers)
        self._retries = retries
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    @property
    def servers(self) -> int:
        """How many there are."""
        return len(self._addresses)

    async def ask(
        self, body: bytes, parse: Callable[[Any], Answer], reply_bytes: int, first: int = 0
    ) -> Answer | Failure:
        """What ``parse`` makes of the first good reply.

        Args:
            body: The request's JSON.
            parse: Reads a reply's JSON; its ValueError is a failure of that server.
            reply_bytes: The longest reply, in bytes after decompression.
            first: Number of the server that is asked first.
        """
        if self._client is None:
            # The deadline is this class's; httpx's time-outs are per byte received.
            self._client = httpx.AsyncClient(timeout=None, headers=self._headers)
        failure = Failure(Status.ERROR, "was not asked")
        for attempt in range(self._retries + 1):
            if attempt:
                pause = _BACKOFF_S * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)
                await asyncio.sleep(max(pause, failure.wait_s))
            address = self._addresses[(first + attempt) % len(self._addresses)]
            answer = await self._call(self._client, address, body, parse, reply_bytes)
            if not isinstance(answer, Failure):
                return answer
            failure = replace(answer, error=self.hide(answer.error))
            kind = "timeout" if failure.status is Status.TIMEOUT else "error"
            message = f"attempt {attempt + 1}: {failure.error}"
            tell_fault(logger, f"remote/{kind}", message, level=logging.INFO)
            if failure.final:
                break
        return failure

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def hide(self, text: str) -> str:
        """The text without the credentials of addresses and headers."""
        return without_secrets(text, self._secrets)

    async def _call(
        self,
        client: httpx.AsyncClient,
        address: Address,
        body: bytes,
        parse: Callable[[Any], Answer],
        reply_bytes: int,
    ) -> Answer | Failure:
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
                    if (failure := await self._refusal(response)) is not None:
                        return replace(failure, error=f"{address.shown}: {failure.error}")
                    return parse(read_json(await read_reply(response, reply_bytes)))
                finally:
                    await response.aclose()
        except TimeoutError:
            error = f"{address.shown}: no answer within {self._timeout_s:g} s"
            return Failure(Status.TIMEOUT, error)
        except (httpx.HTTPError, httpx.StreamError, ValueError) as error:
            told = str(error) or type(error).__name__
            return Failure(Status.ERROR, f"{address.shown}: {told}")

    async def _refusal(self, response: httpx.Response) -> Failure | None:
        """Why a response without a body read yet is no answer, or None."""
        code = response.status_code
        if response.has_redirect_location:
            host = httpx.URL(response.headers["Location"]).host or "another path"
            error = (
                f"HTTP {code}, a redirect to {host}, which is not followed; give that address "
                "instead"
            )
            return Failure(Status.ERROR, error)
        if response.is_success:
            return None
        text = (await read_start(response, _ERROR_BYTES)).decode(errors="replace")
        error = f"HTTP {code} {self.hide(text)[:200]}"
        final = response.is_client_error and code not in _PASSING
        return Failure(Status.ERROR, error, final, _retry_after(response))


def _retry_after(response: httpx.Response) -> float:
    """The Retry-After header in seconds; 0 where it is missing or a date."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_WAIT_S) if text.isascii() and text.isdigit() else 0.0


def _checked_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    checked = {str(name): str(value).strip() for name, value in headers.items()}
    for name, value in checked.items():
        if not (value.isascii() and value.isprintable()):  # the value itself may be a secret
            raise ValueError(f"a remote reward's header {name!r} is not one line of ASCII")
    return checked
