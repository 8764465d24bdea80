"""Refuse requests to a reward server by their token, origin and size."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Guard:
    """The conditions for answering a request.

    Attributes:
        hosts: Names that it may ask for; any if None. A page in a browser reaches a server on the
            same machine under a name of its own (DNS rebinding).
        token: The bearer token, or the password of basic authentication; None asks for none.
    """

    hosts: frozenset[str] | None = LOOPBACK
    token: str | None = None

    def refusal(self, headers: Mapping[str, str], *, posts: bool) -> tuple[int, str] | None:
        """The HTTP status and the reason why a request is not answered, or None."""
        host = headers.get("host", "")
        if self.hosts is not None and _name(host) not in self.hosts:
            return 421, "this server has another name; ask for it as it is told at its start"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "requests of pages of other servers are not answered"
        if not posts:
            return None
        if self.token is not None and not _shows(headers.get("authorization", ""), self.token):
            return 401, "send the token: 'Authorization: Bearer TOKEN', or http://any:TOKEN@host"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "send JSON, with 'Content-Type: application/json'"
        return None


def guard_of(host: str, token: str | None) -> Guard:
    """The guard of a server that listens at this address."""
    return Guard(LOOPBACK | {host} if is_loopback(host) else None, token)


def is_loopback(host: str) -> bool:
    """True if only this machine reaches a server on this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _name(host: str) -> str:
    """A ``Host`` header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _shows(authorization: str, token: str) -> bool:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(value.strip().encode(), token.encode())
