"""Whatever happens during a save, the old tape or the new one is there, whole, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from files.store.versions import left_behind, save, version_of
from retrotape.errors import TapeWriteError
from retrotape.files.store import Stored, write
from retrotape.files.store import _blobs as blobs
from retrotape.io import _replace as replace


def error_of(path: Path, version: int, **form) -> TapeWriteError | None:
    """Save; return the error, if there is one."""
    try:
        save(path, version, **form)
    except TapeWriteError as error:
        return error
    return None


@pytest.fixture(params=["file", "folder"])
def form(request, tmp_path) -> dict:
    return {} if request.param == "file" else {"store": tmp_path / "store"}


# ------------------------------------------------------------------ every call to the operating system fails once


class FailingSystem:
    """The module `os`, but the call number `at` of those that change something fails."""

    CALLS = ("open", "write", "fsync", "replace", "link", "unlink", "lseek", "mkdir", "close", "scandir")

    def __init__(self, at: int, code: int) -> None:
        self._left, self._code = at, code
        self.failed: str | None = None

    def __getattr__(self, name: str):
        real = getattr(os, name)
        if name not in self.CALLS:
            return real

        def call(*args, **kwargs):
            self._left -= 1
            if self._left == 0:
                self.failed = name
                if name == "close":
                    real(*args)  # the kernel closes a file even where it says that it could not
                raise OSError(self._code, os.strerror(self._code))
            return real(*args, **kwargs)

        return call


@pytest.mark.parametrize("first", [False, True])
def test_when_any_call_fails_the_old_tape_is_there_or_the_new_one(form, first, tmp_path, monkeypatch):
    path = tmp_path / "a.tape"
    failed = set()
    for at in itertools.count(1):
        if first:
            subprocess.run(["rm", "-rf", str(path), str(tmp_path / "store")], check=True)
        else:
            save(path, 1, **form)
        system = FailingSystem(at, errno.ENOSPC)
        with monkeypatch.context() as patch:
            patch.setattr(replace, "os", system)
            patch.setattr(blobs, "os", system)
            version = 2 + at % 100
            error = error_of(path, version, **form)
        if error is not None:
            assert error.errno == errno.ENOSPC
            assert "no space left on device" in str(error)
        failed.add(system.failed)
        if first and error and not (path / "tape.json" if form else path).exists():
            assert not path.exists() or os.listdir(path) == []
        else:
            assert version_of(path) in ({1, version} if error else {version})
        if system.failed not in ("unlink", "close"):  # what could not be removed is left for the next save
            assert left_behind(tmp_path) == []
        if system.failed is None:
            break
    assert {"open", "write", "fsync", "replace", "lseek" if not form else "mkdir"} <= failed
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.ENOSPC, "no space left on device. Free some space there, or save to another disk; what was there"),
        (errno.EDQUOT, "disk quota exceeded. Free some space"),
        (errno.EFBIG, "file too large. Free some space"),
        (errno.EROFS, "read-only file system. Save to a directory that you may write to; '.*' is not"),
        (errno.EACCES, "permission denied. Save to a directory that you may write to"),
        (errno.EIO, "input/output error. Try again, or save to another disk; what was there before is untouched"),
    ],
)
def test_an_error_of_the_system_says_what_to_do(code, text, form, tmp_path, monkeypatch):
    monkeypatch.setattr(replace, "os", FailingSystem(2, code))
    with pytest.raises(TapeWriteError, match=text) as caught:
        save(tmp_path / "a.tape", 1, **form)
    assert caught.value.errno == code
    assert isinstance(caught.value.__cause__, OSError)


def test_a_directory_that_disappears_during_the_save(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()

    def data():
        for item in folder.iterdir():
            item.unlink()
        folder.rmdir()
        return b"x"

    with pytest.raises(TapeWriteError, match=r"no such file or directory. Create the directory first"):
        write(folder / "a.tape", {}, [Stored("x", "int8", (1,), data)], {})


# ------------------------------------------------------------------ disks that are full, for real


def run(code: str, *args: object, **more) -> subprocess.CompletedProcess:
    code = "import sys; sys.path[:0] = " + repr([str(Path(__file__).parents[2])]) + "\n" + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, **more)


def test_a_limit_on_the_size_of_files(form, tmp_path):
    """A process that may not write more than a megabyte into one file."""
    path = tmp_path / "a.tape"
    save(path, 1, **form)
    done = run(
        """
        import resource
        from pathlib import Path
        from retrotape.errors import TapeWriteError
        from files.store.versions import save
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        form = {"store": sys.argv[2]} if len(sys.argv) > 2 else {}
        try:
            save(Path(sys.argv[1]), 2, size=2_000_000, **form)
        except TapeWriteError as error:
            print(error)
        """,
        path,
        *form.values(),
    )
    assert "file too large. Free some space there" in done.stdout, done.stderr
    assert version_of(path) == 1
    assert left_behind(tmp_path) == []


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(tiny_disk):
    path = tiny_disk / "a.tape"
    save(path, 1)
    with pytest.raises(
        TapeWriteError, match=r"no space left on device. Free some space there, or save to another disk"
    ):
        save(path, 2, size=1_000_000)
    assert version_of(path) == 1
    assert left_behind(tiny_disk) == []
    save(path, 3, size=20_000)
    assert version_of(path) == 3


def test_a_full_disk_and_a_store(tiny_disk):
    path, store = tiny_disk / "a.tape", tiny_disk / "store"
    save(path, 1, store=store)
    with pytest.raises(TapeWriteError, match="no space left on device"):
        save(path, 2, size=1_000_000, store=store)
    assert version_of(path) == 1
    assert left_behind(tiny_disk) == []


def test_a_directory_that_may_not_be_written_to(form, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; the failing calls above stand for this")
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o500)
    with pytest.raises(TapeWriteError, match=f"permission denied. Save to a directory .*{folder}' is not"):
        save(folder / "a.tape", 1, **form)
    folder.chmod(0o700)


# ------------------------------------------------------------------ processes that die

SAVE_FOR_EVER = """
import os, random
from pathlib import Path
from files.store.versions import save
form = {"store": sys.argv[2]} if len(sys.argv) > 2 else {}
path = Path(sys.argv[1])
print("ready", flush=True)
numbers = random.Random(os.getpid())
while True:
    # Always another content, so that a store has something to write too.
    save(path, numbers.randrange(1, 256), size=numbers.randrange(1, 300_000), **form)
"""


@contextlib.contextmanager
def child(*args: object):
    code = "import sys; sys.path[:0] = " + repr([str(Path(__file__).parents[2])]) + SAVE_FOR_EVER
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_killed_at_any_moment_the_old_tape_is_there_or_the_new_one(kind, tmp_path):
    path = tmp_path / "a.tape"
    form = {} if kind == "file" else {"store": tmp_path / "store"}
    save(path, 1, **form)
    moments = random.Random(0)
    kills = stale = 0
    while kills < 20 or (not stale and kills < 200):  # at least one of them has to die in the middle
        with child(path, *form.values()) as process:
            time.sleep(moments.uniform(0, 0.04))
            process.send_signal(signal.SIGKILL)
        kills += 1
        assert 0 < version_of(path) < 256
        stale += len(left_behind(tmp_path))
        assert len(left_behind(tmp_path)) <= 2
    assert stale
    save(path, 3, **form)
    assert version_of(path) == 3
    assert left_behind(tmp_path) == []


def test_a_reader_never_sees_half_a_tape_while_another_process_saves(form, tmp_path):
    path = tmp_path / "a.tape"
    save(path, 1, **form)
    seen = set()
    with child(path, *form.values()):
        end = time.monotonic() + 20
        while time.monotonic() < end and len(seen) < 10:
            seen.add(version_of(path))
    assert len(seen) == 10


def test_two_processes_may_save_at_once(form, tmp_path):
    path = tmp_path / "a.tape"
    save(path, 1, **form)
    with child(path, *form.values()) as one, child(path, *form.values()) as other:
        for _ in range(50):
            assert 0 < version_of(path) < 256
        assert one.poll() is None
        assert other.poll() is None


# ------------------------------------------------------------------ file systems


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def no_links(*args):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(replace.os, "link", no_links)
    save(tmp_path / "a.tape", 1, overwrite=False)
    with pytest.raises(TapeWriteError, match="it exists already"):
        save(tmp_path / "a.tape", 2, overwrite=False)
    with pytest.raises(FileExistsError):
        replace._rename_without_overwriting(str(tmp_path / "x"), str(tmp_path / "a.tape"))
    assert version_of(tmp_path / "a.tape") == 1
    assert left_behind(tmp_path) == []


def test_the_data_are_on_the_disk_before_the_name_and_the_name_before_we_return(form, tmp_path, monkeypatch):
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.replace

    def note_fsync(descriptor):
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_replace(old, new):
        calls.append(("replace", os.path.realpath(old)))
        rename(old, new)

    monkeypatch.setattr(replace.os, "fsync", note_fsync)
    monkeypatch.setattr(replace.os, "replace", note_replace)
    save(tmp_path / "a.tape", 1, **form)
    renamed = [number for number, call in enumerate(calls) if call[0] == "replace"]
    assert renamed
    for number in renamed:
        assert calls[number - 1] == ("fsync", calls[number][1])
    last = renamed[-1]
    folder = tmp_path / "a.tape" if form else tmp_path
    assert ("fsync", str(folder.resolve())) in calls[last:]
    if form:  # the names of what tape.json names are there before it is
        assert ("fsync", str((tmp_path / "store").resolve())) in calls[:last]


def test_an_error_after_the_tape_is_there_does_not_say_that_it_is_not(form, tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path / "a.tape" if form else tmp_path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    save(tmp_path / "a.tape", 1, **form)
    monkeypatch.setattr(replace.os, "fsync", fsync)
    text = r"input/output error\. The new tape is there, but may be lost if the power fails: save it again\."
    with pytest.raises(TapeWriteError, match=text):
        save(tmp_path / "a.tape", 2, **form)
    assert version_of(tmp_path / "a.tape") == 2


def test_a_directory_that_cannot_be_synced(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "not for directories")
        real(descriptor)

    monkeypatch.setattr(replace.os, "fsync", fsync)
    save(tmp_path / "a.tape", 1)
    assert version_of(tmp_path / "a.tape") == 1
