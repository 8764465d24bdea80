"""The body of an HTTP reply, read up to a limit that counts bytes after decompression."""

from __future__ import annotations

import zlib

import httpx

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class ReplyTooLargeError(ValueError):
    """The reply is longer than its limit."""


async def read_reply(response: httpx.Response, limit: int) -> bytes:
    """A streamed reply's body.

    Args:
        response: A response whose body has not been read.
        limit: The most bytes it may have, in bytes, compressed or not.

    Raises:
        ReplyTooLargeError: It has more.
        ValueError: Its compression is neither gzip nor deflate, or is broken.
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
