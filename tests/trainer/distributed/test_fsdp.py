"""How ranks meet, without starting any."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import psutil
import pytest

from mmr1.trainer.distributed.cluster import hung_or_lost
from mmr1.trainer.distributed.errors import HungError, TransferError, WorkerLostError
from mmr1.trainer.distributed.fsdp import PROGRESS, watched
from mmr1.trainer.distributed.network import use_interface_of

NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@pytest.fixture(autouse=True)
def unset(monkeypatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def interfaces() -> dict[str, str]:
    """Name of the interface by IPv4 address."""
    return {
        a.address: name
        for name, own in psutil.net_if_addrs().items()
        for a in own
        if a.family == socket.AF_INET
    }


def test_gloo_and_nccl_use_the_interface_of_the_nodes_address():
    for address, name in interfaces().items():
        for variable in NAMES:
            os.environ.pop(variable, None)
        use_interface_of(address)
        assert [os.environ[variable] for variable in NAMES] == [name, f"={name}"]


def test_what_the_user_set_stays_but_on_loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    others = [address for address in interfaces() if not address.startswith("127.")]
    for address in others[:1]:
        use_interface_of(address)
        assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
    use_interface_of("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == interfaces()["127.0.0.1"]


def test_an_address_that_no_interface_has_is_left_alone():
    use_interface_of("203.0.113.7")
    assert not set(NAMES) & set(os.environ)


def test_a_rank_that_nccl_ends_has_hung_if_it_wrote_its_stacks(tmp_path):
    lost, begin = WorkerLostError("rank 1 died"), time.time() - 1
    (tmp_path / "rank_0.stacks").touch()  # of a call that was going on
    assert hung_or_lost(lost, tmp_path, begin) is lost
    (tmp_path / "rank_1.stacks").write_text("Timeout (0:27:00)!")
    explained = hung_or_lost(lost, tmp_path, begin)
    assert isinstance(explained, HungError)
    assert "rank_1.stacks; --resume continues" in str(explained)
    assert "rank 1 died" in str(explained)
    os.utime(tmp_path / "rank_1.stacks", (begin - 10, begin - 10))  # of an earlier start
    assert hung_or_lost(lost, tmp_path, begin) is lost


def test_an_engine_that_is_gone_is_not_taken_for_a_rank(tmp_path):
    """Both are told of by a connection that is reset."""
    with pytest.raises(WorkerLostError), watched(60, tmp_path / "rank_0.stacks"):
        raise RuntimeError("Connection reset by peer")
    with pytest.raises(TransferError), watched(60, tmp_path / "rank_0.stacks"):
        raise TransferError("Connection reset by peer")
    with (
        pytest.raises(WorkerLostError, match="engine 1: timed out"),
        watched(60, tmp_path / "rank_0.stacks"),
    ):
        raise WorkerLostError("engine 1: timed out")


def wait_for_stacks(stacks: Path) -> None:
    before = stacks.stat().st_size
    while stacks.stat().st_size == before:
        time.sleep(0.05)


def hang(stacks: Path) -> None:
    wait_for_stacks(stacks)
    raise RuntimeError("Timed out waiting 1000ms for recv operation to complete")


def test_a_call_that_was_only_long_leaves_no_stacks(tmp_path):
    """They would make an engine that is lost later look like a rank that hung."""
    stacks = tmp_path / "rank_0.stacks"
    with watched(1, stacks):
        wait_for_stacks(stacks)
    assert not stacks.exists()
    with pytest.raises(HungError), watched(1, stacks):
        hang(stacks)
    of_the_hang = stacks.read_text()
    with watched(1, stacks):
        wait_for_stacks(stacks)
    assert stacks.read_text() == of_the_hang


def test_stacks_are_of_a_rank_that_makes_no_progress(tmp_path):
    """Of the call that hangs, and not of the many before it."""
    stacks, limit = tmp_path / "rank_0.stacks", 3
    with watched(limit, stacks):
        begin = last = time.monotonic()
        while last - begin < limit and time.monotonic() - last < limit / 2:
            last = time.monotonic()
            PROGRESS.heartbeat()
            time.sleep(0.1)
        assert not stacks.stat().st_size
        wait_for_stacks(stacks)
