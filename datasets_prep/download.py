"""Download remote media, only from hosts that the user allows."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Sequence
from email.message import Message
from typing import IO, Any, get_args
from urllib.parse import urlsplit

from mmr1.data.forms.columns import is_media_column
from mmr1.types import MediaKind

MAX_BYTES = 256 * 1024**2
TIMEOUT_S = 30.0


class _StayOnHost(urllib.request.HTTPRedirectHandler):
    """Refuses redirects to hosts that were not allowed."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self._hosts = hosts

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        check_host(newurl, self._hosts)
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


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
        hosts: Those that may be asked.
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
        ValueError: Its host, or that of a redirect, is not allowed; the download fails; or it has
            more than :data:`MAX_BYTES`.
    """
    check_host(address, hosts)
    opener = urllib.request.build_opener(_StayOnHost(hosts))
    try:
        with opener.open(address, timeout=TIMEOUT_S) as response:
            data = response.read(MAX_BYTES + 1)
    except (urllib.error.URLError, OSError) as error:
        raise ValueError(f"remote media '{address}' cannot be downloaded: {error}") from error
    if len(data) > MAX_BYTES:
        raise ValueError(f"remote media '{address}' is larger than {MAX_BYTES:,} bytes")
    return bytes(data)
