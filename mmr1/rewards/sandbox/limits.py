"""What a worker takes away from itself before it reads its first job.

An answer is attacker-controlled text and the verifier a large program, so the worker assumes that
code of the answer will run in it. Resource limits and PDEATHSIG always hold on Linux; the seccomp
filter and the network namespace are added where the system lets us. The filter lists what a
computing Python needs and refuses the rest: no file is opened for writing, no socket is made, no
process is started, signalled or traced.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
from dataclasses import dataclass

from mmr1.lifetime import die_with

GIB = 1 << 30

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
CLONE_NEWNET, CLONE_NEWUSER, CLONE_THREAD = 0x40000000, 0x10000000, 0x00010000


@dataclass(frozen=True, slots=True)
class Limits:
    """The resource limits of one worker.

    Attributes:
        memory: Bytes of address space.
        open_files: File descriptors.
    """

    memory: int = GIB
    open_files: int = 64


def drop_network() -> bool:
    """Move this single-threaded process into an empty network namespace; False if not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    return any(libc.unshare(flags) == 0 for flags in (CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNET))


def contain(limits: Limits, parent: int) -> bool:
    """Apply every limit to the calling process; returns whether the system call filter holds.

    Args:
        limits: Memory and file limits.
        parent: Process id whose death must end this process; if it is already gone, exit.
    """
    die_with(parent)
    libc = ctypes.CDLL(None, use_errno=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits.open_files, limits.open_files))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return _filter_system_calls(libc)


# System call numbers as (x86-64, arm64); -1 where the architecture has none.
# https://github.com/torvalds/linux: arch/x86/entry/syscalls/syscall_64.tbl and
# include/uapi/asm-generic/unistd.h
_ALLOWED: dict[str, tuple[int, int]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "stat": (4, -1),
    "fstat": (5, 80),
    "lstat": (6, -1),
    "poll": (7, -1),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, -1),
    "select": (23, -1),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "dup": (32, 23),
    # On the ends of a pair only: no other socket can be made.
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "exit": (60, 93),
    "uname": (63, 160),
    "fcntl": (72, 25),
    "getcwd": (79, 17),
    "readlink": (89, -1),
    "gettimeofday": (96, 169),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "sigaltstack": (131, 132),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "gettid": (186, 178),
    "time": (201, -1),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "getdents64": (217, 61),
    "restart_syscall": (219, 128),
    "fadvise64": (221, 223),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "epoll_wait": (232, -1),
    "epoll_ctl": (233, 21),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "set_robust_list": (273, 99),
    "get_robust_list": (274, 100),
    "epoll_pwait": (281, 22),
    "eventfd2": (290, 19),
    "epoll_create1": (291, 20),
    "pipe2": (293, 59),
    "getcpu": (309, 168),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "statx": (332, 291),
    "rseq": (334, 293),
    "faccessat2": (439, 439),
}
_CLONE, _CLONE3, _OPEN, _OPENAT = (56, 220), (435, 435), (2, -1), (257, 56)
_SOCKETPAIR, _NOT_A_STREAM = (53, 199), 2 | 4  # asyncio wakes its loop through a pair of streams
_IOCTL, _FIONBIO = (16, 29), 0x5421  # how Python makes a stream non-blocking
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_OPEN_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Classic BPF: load a word, jump if equal, jump if any bit is set, return.
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _return_for(number: int, result: int) -> list[bytes]:
    return [_instruction(_JUMP_EQUAL, number, 0, 1), _instruction(_RETURN, result)]


def _by_flags(number: int, argument: int, flags: int, if_set: int, if_clear: int) -> list[bytes]:
    """Decide a system call by whether any of these bits is set in one of its arguments."""
    return [
        _instruction(_JUMP_EQUAL, number, 0, 4),
        _instruction(_LOAD, _ARGUMENTS + 8 * argument),
        _instruction(_JUMP_SET, flags, 0, 1),
        _instruction(_RETURN, if_set),
        _instruction(_RETURN, if_clear),
    ]


def _by_value(number: int, argument: int, value: int, if_other: int) -> list[bytes]:
    """Allow a system call with one value of an argument only."""
    return [
        _instruction(_JUMP_EQUAL, number, 0, 4),
        _instruction(_LOAD, _ARGUMENTS + 8 * argument),
        _instruction(_JUMP_EQUAL, value, 0, 1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, if_other),
    ]


def _program(column: int, architecture: int) -> bytes:
    program = [
        _instruction(_LOAD, _ARCH),
        _instruction(_JUMP_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    for numbers in _ALLOWED.values():
        if numbers[column] >= 0:
            program += _return_for(numbers[column], _ALLOW)
    refuse = _ERRNO | _EPERM
    if _OPEN[column] >= 0:
        program += _by_flags(_OPEN[column], 1, _OPEN_FOR_WRITING, refuse, _ALLOW)
    program += _by_flags(_OPENAT[column], 2, _OPEN_FOR_WRITING, refuse, _ALLOW)
    program += _by_value(_IOCTL[column], 1, _FIONBIO, refuse)
    program += _by_flags(_SOCKETPAIR[column], 1, _NOT_A_STREAM, refuse, _ALLOW)
    program += _by_flags(_CLONE[column], 0, CLONE_THREAD, _ALLOW, refuse)
    # glibc falls back to clone, whose flags a filter can read.
    program += _return_for(_CLONE3[column], _ERRNO | _ENOSYS)
    return b"".join([*program, _instruction(_RETURN, refuse)])


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _filter_system_calls(libc: ctypes.CDLL) -> bool:
    if platform.machine() not in _ARCHITECTURES:
        return False
    program = _program(*_ARCHITECTURES[platform.machine()])
    described = _SockFprog(len(program) // 8, program)
    return libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0) == 0
