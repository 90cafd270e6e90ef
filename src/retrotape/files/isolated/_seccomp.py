"""Restricts which system calls a process may make, with a seccomp filter (Linux).

The filter is a list of what is allowed, and everything else fails with EPERM: no sockets, no new processes, no signals
to others, no writing to files by name, no bypass of the filter (io_uring, another architecture's numbers).

Implemented with ctypes, in about a hundred lines, because nothing on PyPI is suitable: pyseccomp (last release January
2021) needs libseccomp on the system, and an optional dependency would be missing on most machines.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_SET_FILTER, _EVERY_THREAD = 1, 1
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # of BPF: load a word, jump if equal, jump if a bit is set
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the data that the kernel passes to the filter

_THREAD = 0x00010000  # CLONE_THREAD: a thread of this process, not a new process
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NAME_OF_THREAD, _NAME_OF_MEMORY = 15, 0x53564D41  # of prctl
_FCNTLS = (0, 1, 2, 3, 4, 1030)  # copies of descriptors, their flags: no owner, no signals, no locks, no leases
_IOCTLS = (0x5401, 0x5450, 0x5451, 0x541B)  # is it a terminal; close on exec or not; how much is there to read

# Name: number on x86_64 and on aarch64, -1 where there is none.
_PLAIN = {
    # reading and writing of open files; opening of others is limited by Landlock
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "preadv": (295, 69),
    "preadv2": (327, 286),
    "lseek": (8, 62),
    "close": (3, 57),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "stat": (4, -1),
    "lstat": (6, -1),
    "statx": (332, 291),
    "dup": (32, 23),
    "dup3": (292, 24),
    "access": (21, -1),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, -1),
    "readlinkat": (267, 78),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "fadvise64": (221, 223),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    # memory
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    "mincore": (27, 232),
    "mbind": (237, 235),
    "get_mempolicy": (239, 236),
    "membarrier": (324, 283),
    # threads of this process
    "futex": (202, 98),
    "futex_waitv": (449, 449),
    "set_robust_list": (273, 99),
    "get_robust_list": (274, 100),
    "set_tid_address": (218, 96),
    "rseq": (334, 293),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126),
    "getcpu": (309, 168),
    "arch_prctl": (158, -1),
    # its end, and signals to itself
    "exit": (60, 93),
    "exit_group": (231, 94),
    "restart_syscall": (219, 128),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
    # time, waiting, and what kind of machine this is
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, -1),
    "times": (100, 153),
    "getrusage": (98, 165),
    "getrlimit": (97, 163),
    "poll": (7, -1),
    "ppoll": (271, 73),
    "select": (23, -1),
    "pselect6": (270, 72),
    "epoll_wait": (232, -1),
    "epoll_pwait": (281, 22),
    "epoll_ctl": (233, 21),
    "epoll_create1": (291, 20),
    "eventfd2": (290, 19),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getrandom": (318, 278),
    "uname": (63, 160),
    "sysinfo": (99, 179),
}
_CHECKED = {
    "fcntl": (72, 25),
    "open": (2, -1),
    "openat": (257, 56),
    "clone": (56, 220),
    "clone3": (435, 435),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "tgkill": (234, 131),
    "ioctl": (16, 29),
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, number of the architecture
_SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def is_known() -> bool:
    """Return whether there is a filter for this system."""
    return sys.platform == "linux" and platform.machine() in _MACHINES and sys.maxsize > 2**32


def restrict() -> None:
    """Restrict every thread of this process to the allowed system calls, permanently.

    Raises:
      OSError: If the system has no such filters.
    """
    machine = platform.machine()
    code = b"".join(struct.pack("=HBBI", *one) for one in program(machine, os.getpid()))
    held = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("=H6xQ", len(code) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    failed = libc.syscall(_SECCOMP_CALL[machine], _SET_FILTER, _EVERY_THREAD, ctypes.c_char_p(described))
    if failed:
        raise OSError(ctypes.get_errno() or errno.EINVAL, "seccomp")


def program(machine: str, pid: int) -> list[_Instruction]:
    """Return the filter for a machine, as instructions of BPF."""
    column, architecture = _MACHINES[machine]
    rules = _rules(pid)
    found = [_load(_ARCHITECTURE), (_EQUAL, 1, 0, architecture), _end(_KILL), _load(_NUMBER)]
    for numbers in _PLAIN.values():
        if numbers[column] >= 0:
            found += [(_EQUAL, 0, 1, numbers[column]), _end(_ALLOW)]
    for name, numbers in _CHECKED.items():
        if numbers[column] >= 0:
            found += [(_EQUAL, 0, len(rules[name]), numbers[column]), *rules[name]]
    return [*found, _end(_DENY | errno.EPERM)]


def _rules(pid: int) -> dict[str, list[_Instruction]]:
    """Return the instructions for each call whose arguments are checked."""
    return {
        "fcntl": _if_one_of(1, _FCNTLS),
        "open": _unless_any(1, _WRITES, errno.EACCES),
        "openat": _unless_any(2, _WRITES, errno.EACCES),
        "clone": [_load(_ARGUMENTS), (_ANY_BIT, 0, 1, _THREAD), _end(_ALLOW), _end(_DENY | errno.EPERM)],
        "clone3": [_end(_DENY | errno.ENOSYS)],  # its flags are not visible to the filter; libraries fall back to clone
        "prctl": _if_one_of(0, (_NAME_OF_THREAD, _NAME_OF_MEMORY)),
        # limits of this process can be read, not set
        "prlimit64": [
            *(_load(_ARGUMENTS), (_EQUAL, 1, 0, 0), _end(_DENY | errno.EPERM)),
            *(_load(_ARGUMENTS + 16), (_EQUAL, 1, 0, 0), _end(_DENY | errno.EPERM)),
            *(_load(_ARGUMENTS + 20), (_EQUAL, 1, 0, 0), _end(_DENY | errno.EPERM)),
            _end(_ALLOW),
        ],
        "sched_setaffinity": _if_one_of(0, (0,)),
        "tgkill": _if_one_of(0, (pid,)),
        "ioctl": _if_one_of(1, _IOCTLS),
    }


def _unless_any(argument: int, bits: int, error: int) -> list[_Instruction]:
    return [_load(_ARGUMENTS + 8 * argument), (_ANY_BIT, 0, 1, bits), _end(_DENY | error), _end(_ALLOW)]


def _if_one_of(argument: int, values: tuple[int, ...]) -> list[_Instruction]:
    tests = [step for value in values for step in ((_EQUAL, 0, 1, value), _end(_ALLOW))]
    return [_load(_ARGUMENTS + 8 * argument), *tests, _end(_DENY | errno.EPERM)]


def _load(offset: int) -> _Instruction:
    return _LOAD, 0, 0, offset


def _end(verdict: int) -> _Instruction:
    return _RETURN, 0, 0, verdict
