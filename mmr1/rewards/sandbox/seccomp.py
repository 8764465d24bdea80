"""The system call filter of a worker, seccomp(2).

The filter lists what a computing Python needs and refuses the rest with EPERM. So no file is opened
for writing, no socket is made, and no process is started, signalled (kill, tgkill, rt_sigqueueinfo,
pidfd_send_signal), traced (ptrace, process_vm_readv, process_vm_writev) or slowed (setpriority,
sched_setscheduler). prctl, seccomp, io_uring, bpf, perf_event_open, userfaultfd, memfd_create,
mount, setns, unshare and whatever comes with a later kernel are refused by not being listed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct

PR_SET_SECCOMP = 22  # prctl(2)
SECCOMP_MODE_FILTER = 2

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
    "dup": (32, 23),
    # On the ends of a pair only: no other socket can be made.
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "exit": (60, 93),
    "uname": (63, 160),
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
    "getdents64": (217, 61),
    "restart_syscall": (219, 128),
    "exit_group": (231, 94),
    "epoll_wait": (232, -1),
    "epoll_ctl": (233, 21),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "set_robust_list": (273, 99),
    "epoll_pwait": (281, 22),
    "eventfd2": (290, 19),
    "epoll_create1": (291, 20),
    "pipe2": (293, 59),
    "getcpu": (309, 168),
    "getrandom": (318, 278),
    "statx": (332, 291),
    "rseq": (334, 293),
    "faccessat2": (439, 439),
}
# Allowed with some arguments only, below.
_OPEN, _OPENAT, _IOCTL, _FCNTL = (2, -1), (257, 56), (16, 29), (72, 25)
_CLOCKS = ((228, 113), (229, 114), (230, 115))  # clock_gettime, clock_getres, clock_nanosleep
_MADVISE, _FADVISE64, _SCHED_GETAFFINITY = (28, 233), (221, 223), (204, 123)
_SOCKETPAIR, _CLONE, _CLONE3, _PRLIMIT64 = (53, 199), (56, 220), (435, 435), (302, 261)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# open(2): O_TMPFILE has O_RDWR in it, and O_ASYNC would send signals (see _F_COMMANDS).
_OPEN_FOR_WRITING = (
    os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_ASYNC", 0)
)
# ioctl(2), how Python makes a stream non-blocking. Not FIOASYNC, FIOSETOWN and SIOCSPGRP, which
# do what fcntl's O_ASYNC and F_SETOWN do; not TIOCSTI, which types into a terminal.
_FIONBIO = 0x5421
# fcntl(2): copies of a descriptor and its flags. Not F_SETOWN, F_SETOWN_EX and F_SETSIG, nor
# F_SETFL with O_ASYNC: together they have the kernel send any signal, SIGKILL too, to any process
# of the same user. Not F_NOTIFY and F_SETLEASE, which signal too; no locks, which others wait for.
_F_COMMANDS = (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL)
_O_ASYNC = getattr(os, "O_ASYNC", 0)
# clock_gettime(2): a clock with this bit is that of a process by its id.
_CLOCK_OF_A_PROCESS = 0x80000000
# madvise(2), posix_fadvise(2): these put pages that others read out of memory, or for root out of
# use: MADV_PAGEOUT, MADV_HWPOISON, MADV_SOFT_OFFLINE; POSIX_FADV_DONTNEED.
_ADVICE_ON_MEMORY, _ADVICE_ON_FILES = (21, 100, 101), (4,)
# socketpair(2): asyncio wakes its loop through a pair of streams; datagrams could go elsewhere.
_AF_UNIX, _NOT_A_STREAM = 1, 2 | 4
# clone(2): the flags of a thread as glibc and musl (CLONE_DETACHED, without effect) make it:
# VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID. No namespaces.
_CLONE_THREAD, _FLAGS_OF_A_THREAD = 0x10000, 0x3D0F00 | 0x400000

# Classic BPF: load a word, jump if equal, if any bit is set, return.
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSE, _ABSENT = _ERRNO | 1, _ERRNO | 38  # EPERM, ENOSYS
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


def filter_system_calls(threads: bool = True) -> None:
    """Install the filter for this process and all it will ever be; needs no_new_privs.

    Args:
        threads: Threads may be started; processes never.

    Raises:
        OSError: The machine or the kernel has none.
    """
    if platform.machine() not in _ARCHITECTURES:
        raise OSError(f"there is no system call filter for {platform.machine()}")
    program = _program(*_ARCHITECTURES[platform.machine()], threads)
    described = _SockFprog(len(program) // 8, program)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _program(column: int, architecture: int, threads: bool) -> bytes:
    """The filter; a system call's number is equal to at most one of the numbers in it."""
    program = [
        _instruction(_LOAD, _ARCH),
        _instruction(_JUMP_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    rules = {numbers[column]: _return(_ALLOW) for numbers in _ALLOWED.values()}
    rules |= {
        _OPEN[column]: [*_argument(1), *_if_any(_OPEN_FOR_WRITING, _REFUSE), *_return(_ALLOW)],
        _OPENAT[column]: [*_argument(2), *_if_any(_OPEN_FOR_WRITING, _REFUSE), *_return(_ALLOW)],
        _IOCTL[column]: [*_argument(1), *_if_equal(_FIONBIO, _ALLOW), *_return(_REFUSE)],
        _FCNTL[column]: _fcntl_rule(),
        _SOCKETPAIR[column]: [
            *_argument(1),
            *_if_any(_NOT_A_STREAM, _REFUSE),
            *_argument(0),
            *_if_equal(_AF_UNIX, _ALLOW),
            *_return(_REFUSE),
        ],
        _CLONE[column]: [
            *_argument(0),
            *_if_any(0xFFFFFFFF ^ _FLAGS_OF_A_THREAD, _REFUSE),
            *_if_any(_CLONE_THREAD, _ALLOW if threads else _REFUSE),
            *_return(_REFUSE),
        ],
        **{clock[column]: _clock_rule() for clock in _CLOCKS},
        _MADVISE[column]: _advice_rule(2, _ADVICE_ON_MEMORY),
        _FADVISE64[column]: _advice_rule(3, _ADVICE_ON_FILES),
        # Of this process: that of another would tell whether it is there.
        _SCHED_GETAFFINITY[column]: [
            *_argument(0),
            *_if_equal(0, _ALLOW),
            *_if_equal(os.getpid(), _ALLOW),
            *_return(_REFUSE),
        ],
        # Its flags lie in memory, where a filter cannot read; glibc falls back to clone.
        _CLONE3[column]: _return(_ABSENT),
        # prlimit(2), as getrlimit is made of it: this process (0) and no new limits.
        _PRLIMIT64[column]: [
            *(i for half in (0, 4, 16, 20) for i in _if_not_zero(_ARGUMENTS + half)),
            *_return(_ALLOW),
        ],
    }
    for number, rule in rules.items():
        if number >= 0:
            program += [_instruction(_JUMP_EQUAL, number, 0, len(rule)), *rule]
    return b"".join([*program, *_return(_REFUSE)])


def _fcntl_rule() -> list[bytes]:
    rule = _argument(1)
    for command in _F_COMMANDS:
        rule += _if_equal(command, _ALLOW)
    set_flags = [*_argument(2), *_if_any(_O_ASYNC, _REFUSE), *_return(_ALLOW)]
    rule += [_instruction(_JUMP_EQUAL, fcntl.F_SETFL, 0, len(set_flags)), *set_flags]
    return rule + _return(_REFUSE)


def _clock_rule() -> list[bytes]:
    return [*_argument(0), *_if_any(_CLOCK_OF_A_PROCESS, _REFUSE), *_return(_ALLOW)]


def _advice_rule(argument: int, refused: tuple[int, ...]) -> list[bytes]:
    rules = (i for advice in refused for i in _if_equal(advice, _REFUSE))
    return [*_argument(argument), *rules, *_return(_ALLOW)]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _return(result: int) -> list[bytes]:
    return [_instruction(_RETURN, result)]


def _argument(index: int) -> list[bytes]:
    """Load the lower half of an argument: all are ints, or flags that the kernel cuts to it."""
    return [_instruction(_LOAD, _ARGUMENTS + 8 * index)]


def _if_equal(value: int, result: int) -> list[bytes]:
    return [_instruction(_JUMP_EQUAL, value, 0, 1), *_return(result)]


def _if_any(flags: int, result: int) -> list[bytes]:
    return [_instruction(_JUMP_SET, flags, 0, 1), *_return(result)]


def _if_not_zero(offset: int) -> list[bytes]:
    """Refuse unless this word is 0."""
    return [_instruction(_LOAD, offset), _instruction(_JUMP_EQUAL, 0, 1, 0), *_return(_REFUSE)]
