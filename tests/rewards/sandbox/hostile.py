"""Jobs that try to get out, for the workers to run."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from pathlib import Path


def one() -> float:
    return 1.0


def echo(number: float) -> float:
    return number


def pid() -> float:
    return float(os.getpid())


def write_file(path: str) -> float:
    Path(path).write_text("out")
    return 1.0


def delete_file(path: str) -> float:
    Path(path).unlink()
    return 1.0


def open_socket(port: int) -> float:
    socket.create_connection(("127.0.0.1", port), timeout=1).close()
    return 1.0


def fork() -> float:
    if os.fork() == 0:
        os._exit(0)
    return 1.0


def run_program() -> float:
    return float(subprocess.run(["/bin/true"], check=True).returncode)


def kill_parent() -> float:
    os.kill(os.getppid(), signal.SIGKILL)
    return 1.0


def allocate(gib: int) -> float:
    return float(len(bytearray(gib << 30)))


def hang() -> float:
    while True:
        pass


def hang_in_c() -> float:
    ctypes.CDLL(None).pause()
    ctypes.CDLL(None).sleep(1000)
    return 1.0


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return 1.0


def exit_process() -> float:
    os._exit(7)


def segfault() -> float:
    return float(ctypes.string_at(0)[0])


def many_files() -> float:
    files = [open("/proc/self/status") for _ in range(1000)]  # noqa: SIM115, PTH123
    return float(len(files))


def send_a_pickle() -> float:
    """A taken-over worker answers with a pickle and a wrong length."""
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, b"\x00\x00\x00\x05\x80\x04N.\n")
        except OSError:
            continue
    return 1.0


def claim_a_gigabyte() -> float:
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, b"\x7f\xff\xff\xff")
        except OSError:
            continue
    time.sleep(60)
    return 1.0


def lambdify() -> float:
    import sympy

    return float(sympy.lambdify(sympy.Symbol("x"), sympy.Symbol("x"))(1))


def raise_limits() -> float:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return 1.0
