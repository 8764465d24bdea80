"""How ranks meet, without starting any."""

from __future__ import annotations

import os
import socket
import time

import psutil
import pytest

from mmr1.trainer.distributed.cluster import hung_or_lost
from mmr1.trainer.distributed.errors import HungError, TransferError, WorkerLostError
from mmr1.trainer.distributed.fsdp import watched
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
    assert "rank_1.stacks; --resume goes on" in str(explained)
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
