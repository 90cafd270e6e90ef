"""Restricts which files a process may open, with Landlock (Linux 5.13 and later).

Implemented with ctypes: it takes three system calls. The libraries on PyPI, as of November 2026, are a pre-release
(landlock 1.0.0.dev5), younger than a year (py-landlock 0.1, landlockpy 0.2), or need Linux 6.7 and a binary
of their own (sandlock); and as an extra they would be missing on most machines.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
_QUERY_VERSION, _PATH_BENEATH = 1, 1
_NO_NEW_PRIVILEGES = 38
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # version: how many rights about files it knows
# What TensorFlow reads when its first op runs: the number and kind of processors, and its own name.
MACHINE = (
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/self/cmdline", "/dev/urandom"),
    *("/sys/bus/cpu", "/sys/bus/node", "/sys/devices/system/cpu", "/sys/devices/system/node"),
)
_NETWORK, _OTHERS = 3, 3  # TCP, from version 4 on; signals and sockets of other processes, from version 6 on


def version() -> int:
    """Return the version that the kernel has; 0 where it has none."""
    if sys.platform != "linux":
        return 0
    return max(0, _libc().syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_QUERY_VERSION)))


def restrict(paths: Iterable[str]) -> None:
    """Let this process read these files and folders only, and what describes the machine, and write none.

    It must have one thread only.

    Raises:
      OSError: If the kernel has no Landlock.
    """
    known = version()
    if not known:
        raise OSError(95, "this kernel has no Landlock")
    # Landlock requires this; it fails where the seccomp filter has set it before.
    _libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    handled = (1 << _RIGHTS.get(known, 16)) - 1
    fields = [handled, *([_NETWORK] if known >= 4 else []), *([_OTHERS] if known >= 6 else [])]
    described = struct.pack(f"={len(fields)}Q", *fields)
    rules = _call(_CREATE, ctypes.c_char_p(described), ctypes.c_size_t(len(described)), ctypes.c_uint32(0))
    try:
        for path in (*MACHINE, *paths):
            _allow(rules, path)
        _call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # without a rule it cannot be read, and reading it raises
    try:
        mode = os.fstat(opened).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or path in MACHINE:  # a link would allow what it points to
            rights = _READ_FILE | _READ_FOLDER if stat.S_ISDIR(mode) else _READ_FILE
            rule = struct.pack("=Qi", rights, opened)
            _call(_ADD, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), ctypes.c_char_p(rule), ctypes.c_uint32(0))
    finally:
        os.close(opened)


def _call(number: int, *arguments: object) -> int:
    found = _libc().syscall(number, *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return found


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
