"""POST a JSON body to one of several servers: deadlines, retries, bounded replies.

A reply is read up to a limit that counts bytes after decompression, and how deep its JSON may nest
is checked before it is parsed. Callers without an event loop have one in a separate thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import threading
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx

from mmr1.logs import report_fault
from mmr1.rewards.http.addresses import Address, secrets_of, without_secrets
from mmr1.types import Status

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)

_ERROR_BYTES = 800  # of a reply that is an error
_TOLD = 400  # characters of it that a message shows
_BACKOFF_S = 0.25
_LONGEST_WAIT_S = 60.0  # that a server may ask for by Retry-After


def refuses(status: int) -> bool:
    """True of the HTTP status of an error that another attempt would meet too."""
    return 400 <= status < 500 and status not in (408, 425, 429)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call, with secrets hidden.

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
        """The number of servers."""
        return len(self._addresses)

    async def ask(
        self, body: bytes, parse: Callable[[Any], Answer], reply_bytes: int, first: int = 0
    ) -> Answer | Failure:
        """The result of ``parse`` for the first good reply.

        Args:
            body: The request's JSON.
            parse: Reads a reply's JSON; its ValueError is a failure of that server.
            reply_bytes: The longest reply, in bytes after decompression.
            first: Number of the server that is asked first.
        """
        if self._client is None:
            # The deadline is this class's; httpx's time-outs are per byte received.
            try:
                self._client = httpx.AsyncClient(timeout=None, headers=self._headers)
            except (ImportError, ValueError) as error:  # it reads HTTP_PROXY and the like
                told = f"the environment's proxy cannot be used: {error}"
                return Failure(Status.ERROR, told, final=True)
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
            report_fault(logger, f"remote/{kind}", message, level=logging.INFO)
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
        """The reason why a response, whose body is unread, is not an answer, or None."""
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
        error = f"HTTP {code} {self.hide(' '.join(text.split()))[:_TOLD]}"
        return Failure(Status.ERROR, error, refuses(code), _retry_after(response))


def _retry_after(response: httpx.Response) -> float:
    """The Retry-After header in seconds; 0 where it is missing or a date."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_WAIT_S) if text.isascii() and text.isdigit() else 0.0


def _checked_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    checked = {str(name): str(value).strip() for name, value in headers.items()}
    for name, value in checked.items():
        if not (value.isascii() and value.isprintable()):  # the value itself may be a secret
            raise ValueError(f"the header {name!r} is not one line of ASCII")
    return checked


MAX_DEPTH = 32
MAX_CONTAINERS = 1_000_000  # lists and objects; an empty one is two bytes here and fifty in memory

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{\]}]', re.DOTALL)


def read_json(data: bytes, *, finite: bool = False) -> Any:
    """Parse JSON whose nesting and number of lists and objects are bounded.

    Args:
        data: The text.
        finite: Refuse numbers that are not, such as NaN and 1e400.

    Raises:
        ValueError: If the data is not JSON in UTF-8, nests deeper than ``MAX_DEPTH``, or holds more
            than ``MAX_CONTAINERS`` lists and objects.
    """
    depth = containers = 0
    for token in _TOKEN.finditer(data):
        kind = token[0][:1]
        if kind in b"[{":
            depth, containers = depth + 1, containers + 1
            if depth > MAX_DEPTH:
                raise ValueError(f"its JSON nests deeper than {MAX_DEPTH} levels")
            if containers > MAX_CONTAINERS:
                raise ValueError(f"its JSON holds more than {MAX_CONTAINERS:,} lists and objects")
        elif kind in b"]}":
            depth -= 1
    decoder = _FINITE if finite else json.JSONDecoder()
    try:
        return decoder.decode(data.decode())
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


_FINITE = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class ReplyTooLargeError(ValueError):
    """The reply is longer than its limit."""


async def read_reply(response: httpx.Response, limit: int) -> bytes:
    """A streamed reply's body.

    Args:
        response: A response whose body has not been read.
        limit: The most bytes it may have, in bytes, compressed or not.

    Raises:
        ReplyTooLargeError: If the reply is longer than ``limit``.
        ValueError: If the reply's compression is neither gzip nor deflate, or is broken.
        httpx.HTTPError: The connection failed.
    """
    body, ended = await _read(response, limit + 1)
    if not ended:
        raise ReplyTooLargeError(f"its reply is longer than {limit:,} bytes")
    return body


async def read_start(response: httpx.Response, size: int) -> bytes:
    """The first bytes of a streamed reply, ``size`` at most. Raises as ``read_reply``."""
    body, _ = await _read(response, size)
    return body[:size]


async def _read(response: httpx.Response, size: int) -> tuple[bytes, bool]:
    """The body and whether it ended before it had ``size`` bytes, compressed or not."""
    body, received = bytearray(), 0
    decoder = _Decoder(response.headers.get("Content-Encoding", ""))
    async for chunk in response.aiter_raw():
        received += len(chunk)
        body += decoder.decode(chunk, size - len(body))
        if max(received, len(body)) >= size:
            return bytes(body), False
    decoder.finish()
    return bytes(body), True


class _Decoder:
    """Undoes a content encoding, never past the number of bytes asked for."""

    def __init__(self, encoding: str) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ValueError(f"its reply is compressed as {name[:40]!r}; gzip and deflate are read")
        compressed = name not in ("", "identity")
        self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB) if compressed else None

    def decode(self, chunk: bytes, size: int) -> bytes:
        if self._zlib is None:
            return chunk[:size]
        try:
            return self._zlib.decompress(chunk, size)
        except zlib.error as error:
            raise ValueError(f"its compressed reply is broken: {error}") from error

    def finish(self) -> None:
        if self._zlib is not None and not self._zlib.eof:
            raise ValueError("its compressed reply ends early")


Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines from any thread, also one whose own event loop is running.

    The thread starts with the first coroutine and ends with ``close``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """The coroutine's result; it is cancelled when the caller is interrupted."""
        with self._lock:  # so that close cancels all that was begun
            if self._closed:
                coroutine.close()
                raise RuntimeError("the servers are no longer asked")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel the coroutines under way, run the last one, and end the thread for good."""
        with self._lock:
            loop, thread, self._closed = self._loop, self._thread, True
        if loop is None or thread is None or loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        asyncio.run_coroutine_threadsafe(last(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="json-post", daemon=True
            )
            self._thread.start()
        return self._loop


async def _cancel_others() -> None:
    """Cancel all coroutines of this loop but this one, and wait until they have ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
