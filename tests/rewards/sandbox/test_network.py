"""The network of a sandboxed worker: what the broker connects, and what stays refused."""

from __future__ import annotations

import errno
import os
import platform
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmr1.rewards.sandbox import processes
from mmr1.rewards.sandbox.broker import LONGEST_MESSAGE, Reachable
from mmr1.rewards.sandbox.pool import Pool
from mmr1.types import Status
from tests.rewards.sandbox.test_walls import ask, light_pool


@pytest.fixture(scope="module")
def server() -> Iterator[socket.socket]:
    """A server on this machine, which accepts by its backlog."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture(scope="module")
def port(server: socket.socket) -> int:
    return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def pool(port: int) -> Iterator[Pool]:
    with light_pool(network=[("localhost", port)]) as shared:
        shared.start()
        yield shared


def test_a_worker_reaches_what_is_listed(pool: Pool, port: int) -> None:
    assert ask(pool, "open_socket", port).value == 1.0
    told = ask(pool, "open_socket", 9).error
    assert told is not None
    assert "the sandbox reaches no 127.0.0.1:9; list it in environment.sandbox.network" in told


def test_a_worker_makes_no_connection_itself(pool: Pool, port: int) -> None:
    assert ask(pool, "connect_in_c", port).value == 1.0
    assert ask(pool, "message_to_an_address", port).value == 1.0


# socket(domain, type, protocol), setsockopt(fd, level, option) and what needs a descriptor: the
# filter looks at the arguments before the kernel looks at the descriptor.
_CALLS = {
    "connect": (42, 3, 0, 0), "bind": (49, 3, 0, 0), "listen": (50, 3, 1), "accept": (43, 3, 0, 0),
    "accept4": (288, 3, 0, 0, 0), "socket of datagrams": (41, 2, 2, 0),
    "socket of datagrams, version 6": (41, 10, 2, 0), "raw socket": (41, 2, 3, 1),
    "socket of netlink": (41, 16, 3, 0), "socket of Unix": (41, 1, 1, 0),
    "socket of packets": (41, 17, 3, 0), "socket of vsock": (41, 40, 1, 0),
    "SCTP": (41, 2, 1, 132), "MPTCP": (41, 2, 1, 262),
    "sendto with an address": (44, 3, 0, 0, 0, 4096, 16),
    "sendto with a high address": (44, 3, 0, 0, 0, 1 << 40, 16),
    "sendmsg that connects": (46, 3, 0, 0x20000000), "sendmmsg": (307, 3, 0, 0, 0),
    "SO_ATTACH_FILTER": (54, 3, 1, 26, 0, 0), "SO_BINDTODEVICE": (54, 3, 1, 25, 0, 0),
    "TCP_FASTOPEN_CONNECT": (54, 3, 6, 30, 0, 0), "TCP_ULP": (54, 3, 6, 31, 0, 0),
    "IP_TRANSPARENT": (54, 3, 0, 19, 0, 0), "unshare": (272, 0x40000000), "setns": (308, 0, 0),
}  # fmt: skip


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
@pytest.mark.parametrize("name", _CALLS)
def test_a_system_call_is_refused(pool: Pool, name: str) -> None:
    assert ask(pool, "system_call", *_CALLS[name]).value == 1.0


def test_the_walls_without_a_network_are_as_before(port: int) -> None:
    with light_pool() as closed:
        assert ask(closed, "system_call", 41, 2, 1, 0).value == 1.0
        assert ask(closed, "open_socket", port).error


def test_the_broker_holds_the_list_and_believes_no_worker(pool: Pool, port: int) -> None:
    messages = (
        '["connect", 2, "127.0.0.1", 9, 1.0]',
        f'["connect", 2, "0.0.0.0", {port}, 1.0]',
        f'["connect", 2, "192.0.2.1", {port}, 1.0]',
        f'["connect", 2, "127.1", {port}, 1.0]',
        '["connect", 2, "localhost", 9, 1.0]',
        '["connect", 1, "/tmp/x", 9, 1.0]',
        '["connect", 2, null, 9, 1.0]',
        '["connect", 2]',
        '["resolve", "example.org", 80]',
        '["connect", 10, "::ffff:127.0.0.1", 9, 1.0]',
        '["connect", 2, "127.0.0.1", 1e400, 1.0]',
        f'["connect", 2, "127.0.0.1", {port}, "soon"]',
    )
    assert ask(pool, "ask_broker", *messages).value == len(messages)
    bodies = (b"[{]", b"[]", b"7", b"[" * 60_000)
    framed = [struct.pack("!I", len(body)) + body for body in bodies]
    for noise in (struct.pack("!I", LONGEST_MESSAGE + 1), *framed):
        with light_pool(network=[("localhost", port)]) as loud:
            assert ask(loud, "shout_at_broker", noise).value == 1.0
    assert ask(pool, "open_socket", port).value == 1.0  # the others keep their lines


def alone(name: str) -> dict[str, str]:
    """An environment with which a pool has a zygote of its own."""
    return {**os.environ, "LANGUAGE": name}


def test_a_broker_that_is_gone_is_replaced(port: int) -> None:
    with light_pool(network=[("localhost", port)], environment=alone("gone")) as own:
        own.start()
        os.kill(_broker_beside(own.pids[0]), signal.SIGKILL)
        assert ask(own, "open_socket", port).status == Status.KILLED
        assert ask(own, "open_socket", port).value == 1.0


def test_the_broker_ends_with_its_pool(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(processes, "_keepers", [])
    own = light_pool(network=[("localhost", port)], environment=alone("ends"))
    own.start()
    broker = _broker_beside(own.pids[0])
    own.close()
    del own
    for _ in range(100):
        if not Path(f"/proc/{broker}").exists():
            return
        time.sleep(0.05)
    raise AssertionError("the broker is still there")


def _broker_beside(worker: int) -> int:
    """The other child of a worker's parent."""
    zygote = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1]
    children = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    (broker,) = {int(child) for child in children} - {worker}
    return broker


# --- what is listed ------------------------------------------------------------------------------


def test_a_name_that_is_not_listed_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_: asked.append(host))
    with pytest.raises(PermissionError, match=r"reaches no secret\.example\.org:80"):
        Reachable([("example.org", None)]).resolve("secret.example.org", 80)
    assert asked == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "::ffff:127.0.0.1"]
)
def test_a_name_server_cannot_send_a_tool_to_this_machine(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(2, 1, 6, "", (address, 80))])
    with pytest.raises(PermissionError, match="an address of this machine or its link"):
        Reachable([("example.org", None)]).resolve("example.org", 80)


def test_an_address_of_a_name_is_reached_after_it_was_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As asyncio does: it looks a name up, and then connects to an address."""
    reachable = Reachable([("Example.org", 80)])
    with pytest.raises(PermissionError):
        reachable.connect(socket.AF_INET, "192.0.2.1", 80, 0.1)
    answer = [(2, 1, 6, "", ("192.0.2.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answer)
    assert reachable.resolve("example.ORG.", 80) == answer
    with pytest.raises(OSError) as reached:  # noqa: PT011 - no route, or a time-out
        reachable.connect(socket.AF_INET, "192.0.2.1", 80, 0.1)
    assert reached.value.errno != errno.EPERM
    answer[0] = (2, 1, 6, "", ("192.0.2.1", 81))
    with pytest.raises(PermissionError):
        reachable.connect(socket.AF_INET, "192.0.2.1", 81, 0.1)
