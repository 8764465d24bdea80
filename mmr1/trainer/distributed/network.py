"""The address of this machine in the cluster, and the network interface that has it."""

from __future__ import annotations

import ipaddress
import os

import psutil


def node_address() -> str:
    """The address by which Ray reaches this machine."""
    import ray

    address: str = ray.util.get_node_ip_address()
    return address


def use_interface_of(address: str) -> None:
    """Let Gloo and NCCL use the network interface that has this address of this machine.

    Gloo would take the address of the machine's name, which on Debian is 127.0.1.1, and NCCL the
    first interface it finds. What the user has set stays, but for ranks that meet on loopback. An
    address that no interface has, as behind a translating router, is left to them.
    """
    interfaces = psutil.net_if_addrs().items()
    names = [name for name, own in interfaces if any(a.address == address for a in own)]
    if not names:
        return
    # NCCL takes a name for the beginning of names, unless it follows a "=".
    chosen = {"GLOO_SOCKET_IFNAME": names[0], "NCCL_SOCKET_IFNAME": f"={names[0]}"}
    if ipaddress.ip_address(address).is_loopback:
        os.environ.update(chosen)
    for variable, name in chosen.items():
        os.environ.setdefault(variable, name)
