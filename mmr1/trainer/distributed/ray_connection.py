"""The connection to Ray: a local cluster for this process alone, or one that runs already."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1")
_OPTIONS: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


def start_local_cluster(workers: int) -> None:
    """Start a Ray that listens on loopback only and asks for a token that only we have.

    Raises:
        ValueError: This version of Ray would listen on other interfaces too.
    """
    import ray

    # A token of this process: Ray's default is a file that other programs of the user can read too.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.pop("RAY_AUTH_MODE", None)  # Ray then switches authentication on
    # Ray only counts cores; it does not bind actors to them. So a laptop may run more actors.
    cores = max(os.cpu_count() or 1, workers)
    with _loopback_allowed():
        ray.init(
            address="local",  # even if another cluster runs on this machine
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            num_cpus=cores,
            **_OPTIONS,
        )
    if (address := ray.util.get_node_ip_address()) not in LOOPBACK:
        ray.shutdown()
        raise ValueError(
            f"Ray {ray.__version__} listens on {address}, not on loopback only; install ray 2.60"
        )


def join_cluster(address: str) -> None:
    """Join the cluster at ``address``, with the token that the environment names.

    Raises:
        ValueError: If no cluster is at the address, or it refuses the token.
    """
    import ray

    try:
        _connect_once(address)
        ray.init(address=address, **_OPTIONS)
    except (OSError, ray.exceptions.AuthenticationError) as error:
        raise ValueError(
            f"resources.ray.address={address}: cannot connect to a Ray cluster "
            f"({error}). Start one with scripts/launch/ray_cluster.sh. If it runs, it may ask for "
            "a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from error
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        logger.warning(
            "the Ray cluster at %s asks for no token: whoever reaches its ports can run code on "
            "it. See 'Networks and tokens' in docs/scaling.md",
            address,
        )


def _connect_once(address: str) -> None:
    """Raise OSError if no server listens at ``HOST:PORT``; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextmanager
def _loopback_allowed() -> Iterator[None]:
    """Let Ray keep 127.0.0.1 as the address of a node.

    On Linux ``ray.init`` replaces it by an address that other machines reach, and Ray listens on
    all interfaces unless the address of its node is 127.0.0.1. Ray has a switch for this, which is
    read from the environment when Ray is imported; the import may be long ago.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
