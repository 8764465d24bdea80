"""Jobs that try to get out, for the workers to run."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import fcntl
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import threading
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


def slow_echo(seconds: float, number: float) -> float:
    time.sleep(seconds)
    return number


def exit_process() -> float:
    os._exit(7)


def segfault() -> float:
    return float(ctypes.string_at(0)[0])


def many_files() -> float:
    files = [open("/proc/self/status") for _ in range(1000)]  # noqa: SIM115, PTH123
    return float(len(files))


def lambdify() -> float:
    import sympy

    return float(sympy.lambdify(sympy.Symbol("x"), sympy.Symbol("x"))(1))


def raise_limits() -> float:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return 1.0


def channel() -> int:
    """The descriptor that leads to the pool."""
    for descriptor in range(3, 64):
        try:
            if socket_type(descriptor):
                return descriptor
        except OSError:
            continue
    raise AssertionError("there is no channel")


def socket_type(descriptor: int) -> bool:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("socket:")


def forge(*bodies: str | bytes) -> float:
    """Frames of one's own on the pool's channel, read before the honest one is sent."""
    for body in bodies:
        data = body.encode() if isinstance(body, str) else body
        os.write(channel(), struct.pack("!I", len(data)) + data)
    time.sleep(0.5)
    return 1.0


def forge_for_this_job(rows: str) -> float:
    """A frame that carries this job's own number, which a taken-over worker can look up."""
    import sys

    frame = sys._getframe()
    while "number" not in frame.f_locals:
        frame = frame.f_back  # type: ignore[assignment]
    return forge(f"[{frame.f_locals['number']}, {rows}]")


def forge_later() -> float:
    """A thread that this job leaves behind answers in the place of the jobs after it."""
    answer = json.dumps([0, [[1.0, "ok", None, {}]]]).encode()

    def write() -> None:
        time.sleep(0.2)
        os.write(channel(), struct.pack("!I", len(answer)) + answer)

    threading.Thread(target=write, daemon=True).start()
    return 0.0


def claim_a_gigabyte() -> float:
    os.write(channel(), b"\x7f\xff\xff\xff")
    time.sleep(60)
    return 1.0


def open_descriptors() -> float:
    """How many there are besides standard input, output, error and the channel."""
    return float(sum(Path(f"/proc/self/fd/{n}").exists() for n in range(3, 256)) - 1)


def own_environment() -> float:
    """Fails with the names of the environment, for a test to read."""
    raise KeyError(" ".join(sorted(os.environ)))


def read_file(path: str) -> float:
    return float(len(Path(path).read_bytes()) > 0)


def list_folder(path: str) -> float:
    return float(len(list(Path(path).iterdir())) > 0)


def set_async_owner(pid: int) -> float:
    """Have the kernel kill another process when something can be read from a pipe."""
    reader, writer = os.pipe()
    refused = 0
    for command, argument in (
        (fcntl.F_SETOWN, pid),
        (getattr(fcntl, "F_SETSIG", 10), signal.SIGKILL),
        (fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK),
    ):
        try:
            fcntl.fcntl(reader, command, argument)
        except PermissionError:
            refused += 1
    os.write(writer, b"x")
    time.sleep(0.1)
    return float(refused)


def harmless_fcntl() -> float:
    reader, _ = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    assert fcntl.fcntl(reader, fcntl.F_GETFL) & os.O_NONBLOCK
    return float(fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 3) > reader)


def questions_of_oneself() -> float:
    """1.0 where a process may ask for its CPUs, its clocks and its files."""
    cpus = os.sched_getaffinity(0) == os.sched_getaffinity(os.getpid()) != set()
    clocks = time.process_time() >= 0 and time.thread_time() >= 0 and time.monotonic() > 0
    time.sleep(0.001)
    with mmap.mmap(-1, 4096) as memory, Path(os.__file__).open("rb") as file:
        memory.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    return float(cpus and clocks)


def system_call(number: int, *arguments: int) -> float:
    """1.0 where the call is refused with EPERM."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if result >= 0:
        return 0.0
    return float(ctypes.get_errno() == errno.EPERM)


def control(command: int) -> float:
    """1.0 where this ioctl is refused with EPERM."""
    reader, _ = os.pipe()
    try:
        fcntl.ioctl(reader, command, struct.pack("i", os.getpid()))
    except PermissionError as error:
        return float(error.errno == errno.EPERM)
    return 0.0


def start_a_thread() -> float:
    done: list[float] = []
    thread = threading.Thread(target=lambda: done.append(1.0))
    thread.start()
    thread.join()
    return done[0]


def find_library() -> float:
    """1.0 where a library that is nowhere is not found, and no compiler is asked for it."""
    return float(ctypes.util.find_library("no_such_library") is None)


def use_cpu(seconds: float) -> float:
    """Turn for so many seconds of this process's CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return 1.0
