"""HTTP servers of this package: a port to listen on, and uvicorn on it."""

from __future__ import annotations

import socket
from typing import Any

from mmr1.extras import needs_extra

with needs_extra("serve", "an HTTP server of mmr1"):
    import uvicorn

BACKLOG = 2048
"""Connections that may wait until they are accepted."""
SHUTDOWN_S = 2
"""Seconds that requests in work have after Ctrl-C."""


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
            log_config=None,  # uvicorn's would close every other handler of the process
            log_level="warning",
            access_log=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
    )
