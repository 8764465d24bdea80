"""HTTP servers of this package: a port to listen on, and uvicorn on it, within limits.

A server shares its process with a run, whose descriptors and memory it must not use up.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from functools import partial
from typing import Any

from mmr1.extras import needs_extra

with needs_extra("serve", "an HTTP server of mmr1"):
    import uvicorn
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState

BACKLOG = 2048
"""Connections that may wait until they are accepted."""
SHUTDOWN_S = 2
"""Seconds that requests in work have after Ctrl-C."""
SHARE = 4
"""One of so many descriptors of the process may be a connection."""
HEADERS_S, BODY_S = 10.0, 60.0
"""Seconds that a client may take to send the headers of a request, and its body."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; ``port`` 0 picks a free port.

    Raises:
        ValueError: The port is taken or not allowed, or the host is not this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"{host} port {port} cannot be used ({error}); choose another with --port"
        ) from error


def http_server(app: Any) -> uvicorn.Server:
    """A server of an ASGI application that logs only what goes wrong.

    ``run(sockets=[listen(...)])`` serves until Ctrl-C, which it raises as KeyboardInterrupt, or
    until ``should_exit`` is set.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=partial(BoundedConnection, {}),  # type: ignore[arg-type]
            ws="none",
            log_config=None,  # uvicorn's would close every other handler of the process
            log_level="warning",
            access_log=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
    )


class BoundedConnection(asyncio.Protocol):
    """A connection that is closed when it is silent too long, or while there are too many.

    uvicorn limits requests; a connection without one it holds for ever. Of too many the oldest
    silent one is closed, so that those who ask are served.

    Args:
        all_: The connections of the server, the oldest first.
        server_state, others: Arguments that uvicorn gives its own connections.
    """

    def __init__(
        self, all_: dict[BoundedConnection, None], server_state: ServerState, **others: Any
    ) -> None:
        self._http = H11Protocol(server_state=server_state, **others)
        self._all = all_
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take the connection, in the place of a silent one if there are too many."""
        self._http.connection_made(transport)
        self._all[self] = None
        self._watch()
        if len(self._all) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // SHARE:
            next(one for one in self._all if one.silent).abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self._all.pop(self, None)
        self._http.transport.abort()

    @property
    def silent(self) -> bool:
        """True while no request is under way."""
        return self._http.cycle is None or self._http.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Pass on what has come."""
        self._http.data_received(data)

    def eof_received(self) -> None:
        """Pass on the end of what comes."""
        self._http.eof_received()

    def pause_writing(self) -> None:
        """Pass on that the client reads slowly."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client reads again."""
        self._http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """End the connection."""
        self._all.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._http.connection_lost(error)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HEADERS_S, self._close_if_silent, self._http.cycle)

    def _close_if_silent(self, before: Any) -> None:
        """Close the connection if no request has come since it was asked for the last time."""
        if self._http.cycle is before and self.silent:
            self.abort()
        else:
            self._watch()


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body of a request.

    Raises:
        HTTPException: If it has more than ``limit`` bytes (413) or comes too slowly (408).
    """
    declared = request.headers.get("content-length", "")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            if not declared.isdecimal() or int(declared) <= limit:
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        break
                else:
                    return bytes(body)
    except TimeoutError:
        raise HTTPException(408, f"the request took more than {BODY_S:g} s to come") from None
    raise HTTPException(413, f"the request is longer than {limit:,} bytes; send fewer items in one")
