"""What the process of an isolated tape cannot do: everything is tried inside of a process that is confined so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import retrotape as rt
from helpers.processes import PYTHON
from retrotape.files.isolated import Confinement, _confinement, _landlock, _launch, _seccomp

pytestmark = pytest.mark.skipif(not _seccomp.is_known(), reason="there is no filter for this system")
SOURCE = str(Path(rt.__file__).parents[1])

ATTEMPTS = """
import ctypes, json, mmap, os, signal, socket, subprocess, sys, threading
from retrotape.files.isolated import confine
folder, parent, tried = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
os.chdir(folder)
libc = ctypes.CDLL(None, use_errno=True)
page = mmap.mmap(-1, 4096)

def call(name, *args):
    if getattr(libc, name)(*args) == -1:
        raise OSError(ctypes.get_errno(), name)

def raw(number, *args):
    if libc.syscall(number, *args) == -1:
        raise OSError(ctypes.get_errno(), number)

def thread():
    done = []
    started = threading.Thread(target=done.append, args=(1,))
    started.start()
    started.join()
    assert done

ATTEMPTS = {
    "read the tape": lambda: open("tape").read(),
    "write the tape": lambda: open("tape", "r+"),
    "read another file": lambda: open("other").read(),
    "read a file of the system": lambda: open("/etc/passwd").read(),
    "read its own memory": lambda: open("/proc/self/mem", "rb"),
    "read the parent's environment": lambda: open(f"/proc/{parent}/environ", "rb").read(),
    "list a folder": lambda: os.listdir("."),
    "make a file": lambda: open("made", "w"),
    "make a folder": lambda: os.mkdir("folder"),
    "remove a file": lambda: os.unlink("other"),
    "rename a file": lambda: os.rename("other", "moved"),
    "link to a file": lambda: os.link("other", "linked"),
    "change a file's rights": lambda: os.chmod("other", 0o777),
    "cut a file": lambda: os.truncate("tape", 0),
    "a socket": lambda: socket.socket(),
    "a Unix socket": lambda: socket.socket(socket.AF_UNIX),
    "a socket pair": lambda: socket.socketpair(),
    "fork": lambda: os.fork() or os._exit(0),
    "start a program": lambda: subprocess.run(["/bin/true"], check=True),
    "become a program": lambda: os.execv("/bin/true", ["true"]),
    "signal the parent": lambda: os.kill(parent, 0),
    "signal the parent's thread": lambda: call("tgkill", parent, parent, 0),
    "trace the parent": lambda: call("ptrace", 0x4206, parent, 0, 0),
    "read the parent's memory": lambda: raw(310, parent, 0, 0, 0, 0, 0),
    "the parent's limits": lambda: __import__("resource").prlimit(parent, 7),
    "its own limits": lambda: __import__("resource").setrlimit(7, (32, 32)),
    "io_uring": lambda: raw(425, 1, ctypes.create_string_buffer(120)),
    "a namespace": lambda: call("unshare", 0x10000000),
    "mount": lambda: call("mount", b"none", folder.encode(), b"tmpfs", 0, 0),
    "bpf": lambda: raw(321, 0, 0, 0),
    "keys": lambda: raw(250, 0, -3, 0),
    "memory of others": lambda: raw(319, b"x", 0),
    "its dumpability": lambda: call("prctl", 4, 1, 0, 0, 0),
    "x32's numbers": lambda: raw(0x40000000 + 41, 2, 1, 0),
    "a thread": thread,
    "memory": lambda: bytearray(2**24),
    "more memory": lambda: bytearray(2**33),
}
confinement = confine(2**30, 5.0, lambda: [os.path.abspath("tape")])
found = {}
for name in tried or ATTEMPTS:
    try:
        ATTEMPTS[name]()
        found[name] = "done"
    except BaseException as error:
        found[name] = type(error).__name__
print(json.dumps([list(confinement), found]), flush=True)
os._exit(0)
"""


def confined(tmp_path, before: str = "", *tried: str) -> tuple[Confinement, dict[str, str]]:
    (tmp_path / "tape").write_text("tape")
    (tmp_path / "other").write_text("other")
    real = {**_launch.environment(dict(os.environ)), "PYTHONPATH": SOURCE}
    python, env = (PYTHON, {**os.environ, "PYTHONPATH": SOURCE}) if before else (sys.executable, real)
    command = [python, "-c", before + ATTEMPTS, str(tmp_path), str(os.getpid()), *tried]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert ran.returncode == 0, ran.stderr
    known, found = json.loads(ran.stdout)
    return Confinement(*known), found


ALLOWED = {"read the tape", "a thread", "memory"}


def test_everything_but_the_tape_is_denied(tmp_path):
    confinement, found = confined(tmp_path)
    if not _landlock.version():
        pytest.skip("this kernel has no Landlock")
    assert {name for name, how in found.items() if how == "done"} == ALLOWED
    assert found.pop("more memory") == "MemoryError"
    assert found.pop("its own limits") == "ValueError"  # what Python makes of EPERM there
    denied = {name: how for name, how in found.items() if name not in ALLOWED}
    assert set(denied.values()) <= {"PermissionError"}, denied
    assert (tmp_path / "tape").read_text() == "tape"
    assert sorted(os.listdir(tmp_path)) == ["other", "tape"]
    assert confinement.is_complete
    assert str(confinement) == (
        "network: denied (seccomp); files: only the tape and this library, read-only (Landlock); "
        "processes: denied (seccomp); memory: 1.1 GB; time: 5 s a query"
    )


NO_LANDLOCK = "from retrotape.files.isolated import _landlock\n_landlock.version = lambda: 0\n"
NO_SECCOMP = "from retrotape.files.isolated import _seccomp\n_seccomp.is_known = lambda: False\n"
THREADS = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"


@pytest.mark.parametrize("before", [NO_LANDLOCK, THREADS])
def test_where_files_are_not_confined_it_says_so(tmp_path, before):
    confinement, found = confined(tmp_path, before, "read another file", "make a file", "fork", "a socket")
    assert list(found.values()) == ["done", "PermissionError", "PermissionError", "PermissionError"]
    assert not confinement.is_complete
    assert confinement.files == "NOT confined: every file can be read, none written (seccomp, no Landlock)"


def test_where_nothing_is_there_it_says_so(tmp_path):
    confinement, found = confined(tmp_path, NO_LANDLOCK + NO_SECCOMP, "a socket", "read another file")
    assert set(found.values()) == {"done"}
    assert confinement.network == confinement.processes == "NOT confined"
    assert not confinement.is_complete


def test_strict_raises_where_it_is_not_complete(tmp_path, monkeypatch):
    class Process:
        def __init__(self, *args):
            self.confinement = Confinement("NOT confined", "NOT confined", "NOT confined", None, 60.0)
            self.closed = False

        def ask(self, *args, **options):
            return "a tape", []

        def close(self):
            closed.append(self)

    closed: list = []
    monkeypatch.setattr("retrotape.tape.isolated.Process", Process)
    (tmp_path / "a.tape").write_bytes(b"")
    assert rt.load(tmp_path / "a.tape", isolate=True) == "a tape"
    assert not closed
    with pytest.raises(
        rt.errors.IsolationError,
        match=r"This system cannot confine the process completely: network: NOT confined; .*memory: NOT confined; "
        r"time: 60 s a query\. To load the file nevertheless: `rt\.load\(path, isolate=True\)`",
    ):
        rt.load(tmp_path / "a.tape", isolate="strict")
    assert len(closed) == 1


def test_a_system_without_limits_is_told(monkeypatch):
    monkeypatch.setattr(_confinement.sys, "platform", "darwin")
    assert not _confinement.limit_memory(2**30)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_sound(machine):
    """Every jump stays inside, and every path ends."""
    program = _seccomp.program(machine, 77)
    for at, (what, so, else_, _) in enumerate(program):
        if what in (0x15, 0x45):
            assert at + 1 + max(so, else_) < len(program)
    assert program[-1] == (0x06, 0, 0, 0x00050001)
    assert len(program) < 4096


def simulate(program, number, arguments=(), architecture=0xC000003E):
    """Run a filter as the kernel does, and return its verdict."""
    words = {0: number, 4: architecture}
    for position, value in enumerate((*arguments, 0, 0, 0, 0, 0, 0)[:6]):
        words[16 + 8 * position], words[20 + 8 * position] = value & 0xFFFFFFFF, value >> 32
    at, register = 0, 0
    while True:
        what, so, else_, value = program[at]
        if what == 0x06:
            return value
        if what == 0x20:
            register, at = words[value], at + 1
        else:
            hit = register == value if what == 0x15 else register & value
            at += 1 + (so if hit else else_)


ALLOW, EPERM, EACCES, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x0005000D, 0x00050026, 0x80000000


@pytest.mark.parametrize(
    ("number", "arguments", "verdict"),
    [
        (0, (), ALLOW),
        (41, (), EPERM),  # socket
        (57, (), EPERM),  # fork
        (59, (), EPERM),  # execve
        (56, (0x3D0F00,), ALLOW),  # a thread
        (56, (0x01200011,), EPERM),  # a process
        (435, (), ENOSYS),
        (257, (0, 0, os.O_RDONLY | os.O_CLOEXEC), ALLOW),
        (257, (0, 0, os.O_RDWR), EACCES),
        (2, (0, os.O_WRONLY | os.O_CREAT), EACCES),
        (234, (77, 78, 6), ALLOW),  # a signal to itself
        (234, (76, 76, 6), EPERM),
        (302, (0, 7, 0), ALLOW),
        (302, (0, 7, 1 << 32), EPERM),  # a pointer, of which the lower half is 0
        (302, (5, 7, 0), EPERM),
        (157, (15,), ALLOW),
        (157, (4,), EPERM),
        (72, (3, 3), ALLOW),  # the flags of a descriptor
        (72, (3, 8), EPERM),  # its owner, who gets signals
        (72, (3, 10), EPERM),  # and which ones
        (9999, (), EPERM),
    ],
)
def test_verdicts_of_the_filter(number, arguments, verdict):
    assert simulate(_seccomp.program("x86_64", 77), number, arguments) == verdict
    assert simulate(_seccomp.program("x86_64", 77), number, arguments, 0x40000003) == KILL  # 32 bits
