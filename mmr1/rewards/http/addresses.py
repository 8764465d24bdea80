"""Addresses of servers, with their credentials kept out of messages."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

_SHORTEST_SECRET = 4  # characters; hiding "a" would make every message unreadable
_HIDDEN = "***"


def is_url(use: str) -> bool:
    return use.startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class Address:
    """One server.

    Attributes:
        url: Without credentials: httpx logs the address of every request.
        auth: User name and password from the address, or None.
        shown: Address in messages: without credentials and query.
    """

    url: httpx.URL
    auth: tuple[str, str] | None
    shown: str


def parse_address(text: str) -> Address:
    """An address as the user wrote it. Raises ValueError when it is none."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"an address is not readable: {error}") from None
    if not is_url(text) or not url.host:
        place = f"{url.scheme}://{url.host}" if url.scheme else text.rpartition("@")[2]
        raise ValueError(f"{place!r} is not an http address")
    auth = (url.username, url.password) if url.userinfo else None
    bare = url.copy_with(userinfo=b"")
    return Address(bare, auth, str(bare.copy_with(query=None, fragment=None)))


def key_headers(variable: str | None) -> dict[str, str]:
    """The header with the key that an environment variable holds; None: no header.

    Raises:
        ValueError: If the environment variable is not set.
    """
    if variable is None:
        return {}
    if not (key := os.environ.get(variable)):
        raise ValueError(f"the environment variable {variable} is not set")
    return {"Authorization": f"Bearer {key}"}


def secrets_of(addresses: list[Address], headers: Mapping[str, str]) -> tuple[str, ...]:
    """The texts that no message may show, the longest first."""
    secrets: set[str] = set()
    for value in headers.values():
        secrets |= {value, value.rpartition(" ")[2]}  # "Bearer TOKEN" and TOKEN
    for address in addresses:
        if address.auth is not None:
            pair = ":".join(address.auth)
            secrets |= {*address.auth, pair, base64.b64encode(pair.encode()).decode()}
        secrets |= set(address.url.params.values())
    return tuple(sorted((s for s in secrets if len(s) >= _SHORTEST_SECRET), key=len, reverse=True))


def without_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """The text with each secret hidden; a server may send back what it was sent."""
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return text
