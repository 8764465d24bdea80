"""Download remote media, only from hosts that the user allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args
from urllib.parse import urlsplit

import httpx

from mmr1.data.forms.columns import is_media_column
from mmr1.types import MediaKind

MAX_BYTES = 256 * 1024**2
TIMEOUT_S = 30.0


def check_host(address: str, hosts: tuple[str, ...]) -> None:
    """Raise ValueError unless the address is http(s) on one of the hosts."""
    url = urlsplit(address)
    if url.scheme not in ("http", "https") or url.hostname not in hosts:
        raise ValueError(
            f"remote media '{address}': allow the host with --allow-host {url.hostname}"
        )


def fetch_media(value: Any, hosts: tuple[str, ...], more: Sequence[str] = ()) -> Any:
    """The row with each http(s) address of a medium replaced by the downloaded bytes.

    Args:
        value: The row. Its media are in the media columns, in ``path``, and in the parts of chat
            messages.
        hosts: Hosts that may be asked.
        more: More columns with media.
    """
    if not isinstance(value, dict):
        return value
    return {
        k: _fetched(v, hosts) if is_media_column(k) or k == "path" or k in more
        else _in_messages(v, hosts) if k in _CHATS
        else v
        for k, v in value.items()
    }  # fmt: skip


_CHATS = ("messages", "prompt", "conversations")


def _in_messages(value: Any, hosts: tuple[str, ...]) -> Any:
    """Messages with the media of their parts downloaded."""
    if isinstance(value, list):
        return [_in_messages(item, hosts) for item in value]
    if isinstance(value, dict) and value.get("type") in get_args(MediaKind):
        return {k: _fetched(v, hosts) if k != "type" else v for k, v in value.items()}
    if isinstance(value, dict) and value.get("type") in [
        f"{kind}_url" for kind in get_args(MediaKind)
    ]:
        held = value[value["type"]]
        address = held.get("url") if isinstance(held, dict) else held
        return {**value, value["type"]: _fetched(address, hosts)}
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        return {**value, "content": _in_messages(value["content"], hosts)}
    return value


def _fetched(value: Any, hosts: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_fetched(item, hosts) for item in value]
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return {"bytes": download(value, hosts)}
    return value


def download(address: str, hosts: tuple[str, ...]) -> bytes:
    """The bytes at an address.

    Raises:
        ValueError: If the host, or that of a redirect, is not allowed; the download fails; or it
            has more than :data:`MAX_BYTES`.
    """
    data = bytearray()
    checks = {"request": [lambda request: check_host(str(request.url), hosts)]}
    try:
        with (
            httpx.Client(event_hooks=checks, follow_redirects=True, timeout=TIMEOUT_S) as client,
            client.stream("GET", address) as response,
        ):
            response.raise_for_status()
            for piece in response.iter_bytes():
                data += piece
                if len(data) > MAX_BYTES:
                    raise ValueError(f"remote media '{address}' is larger than {MAX_BYTES:,} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(f"remote media '{address}' cannot be downloaded: {error}") from error
    return bytes(data)
