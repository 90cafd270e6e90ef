"""How workers save one tape together; here each worker is a thread, and messages are in a dictionary."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import retrotape as rt
from retrotape.files import meeting, store
from retrotape.files.meeting import Meeting
from retrotape.files.shard_folder import ShardFolder, shard_folder


class Board:
    """The messages of all workers."""

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}
        self._changed = threading.Condition()
        self.failed: dict[int, str] = {}
        self.is_down = False

    def post(self, key: str, text: str) -> None:
        with self._changed:
            if self.is_down:
                raise ConnectionError("connection refused")
            self._messages[key] = text
            self._changed.notify_all()

    def forget(self, folder: str) -> None:
        with self._changed:
            for key in [key for key in self._messages if key.startswith(f"{folder}/")]:
                del self._messages[key]

    def size(self) -> int:
        return len(self._messages)

    def read(self, key: str, seconds: float) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._messages or self.is_down, seconds)
            if self.is_down:
                raise ConnectionError("connection refused")
            return self._messages.get(key)


class Worker:
    """A worker, as `Job` is one in a process."""

    def __init__(self, board: Board, worker: int, workers: int = 3) -> None:
        self.worker, self.workers, self.next_save, self._board = worker, workers, [0], board
        self.post, self.read, self.forget = board.post, board.read, board.forget

    def failed(self) -> dict[int, str]:
        return dict(self._board.failed) if self.worker == 0 else {}


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> ShardFolder:
    if request.param == "local":
        return shard_folder(tmp_path / "job")
    fsspec = pytest.importorskip("fsspec", reason="an extra of the package")
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]  # empty folders of other tests
    return shard_folder("memory://bucket/job/")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait longer than necessary where somebody does not come."""
    monkeypatch.setattr(meeting, "_SLACK", 0.5)
    monkeypatch.setattr(meeting, "_POLL", 0.02)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def shard_of(worker: int) -> Callable[[str, str], int]:
    def write(path: str, run: str) -> int:
        return Path(path).write_bytes(f"shard {worker} of {run}".encode())

    return write


def save(
    folder: ShardFolder, job: Any, write: Any = None, timeout: float = 30.0, overwrite: bool = True, **options: Any
) -> int:
    one = Meeting(job, folder, timeout, options)
    folder.check(overwrite)
    return one.save(10, write or shard_of(job.worker), overwrite)


def start(pool: ThreadPoolExecutor, folder: ShardFolder, jobs: list[Worker], **options: Any) -> list[Future[int]]:
    return [pool.submit(save, folder, job, **options) for job in jobs]


def jobs_on(board: Board, count: int = 3) -> list[Worker]:
    return [Worker(board, worker, count) for worker in range(count)]


def whole(folder: ShardFolder) -> bool:
    """Return whether there is a tape, with every shard that its manifest names."""
    run = folder.run()
    return run is not None and all(
        f"shard-0000{worker}-of-00003-{run[:8]}.tape" in folder.names() for worker in range(3)
    )


def problem_of(future: Future[int]) -> rt.errors.MissingWorkerError:
    error = future.exception(30)
    assert isinstance(error, rt.errors.MissingWorkerError), error
    return error


def test_everybody_saves(folder: ShardFolder, pool: ThreadPoolExecutor):
    jobs = jobs_on(Board())
    sizes = [future.result(30) for future in start(pool, folder, jobs)]
    first = folder.run()
    assert first is not None
    assert sizes == [len(f"shard 0 of {first}")] * 3
    assert len(folder.names()) == 4
    # Again: another run takes its place, and its shards are gone.
    assert all(future.result(30) for future in start(pool, folder, jobs))
    assert folder.run() not in (first, None)
    assert len(folder.names()) == 4
    assert not any(first[:8] in name for name in folder.names())


def test_a_tape_is_not_replaced_without_permission(folder: ShardFolder, pool: ThreadPoolExecutor):
    jobs = jobs_on(Board())
    assert all(future.result(30) for future in start(pool, folder, jobs))
    for future in start(pool, folder, jobs, overwrite=False):
        with pytest.raises(rt.errors.TapeWriteError, match="it exists already"):
            future.result(30)


@pytest.mark.parametrize("absent", [0, 2])
def test_a_worker_does_not_come(folder: ShardFolder, pool: ThreadPoolExecutor, absent: int):
    jobs = jobs_on(Board())
    for future in start(pool, folder, [job for job in jobs if job.worker != absent], timeout=0.5):
        error = problem_of(future)
        assert list(error.workers) == [absent]
        assert f"worker {absent} of 3 has not called save within" in str(error)
        assert "Call `tape.save` on every worker, at the same place" in str(error)
    assert folder.run() is None
    # The others have given up on that save: whoever comes late is told so, at once.
    late = problem_of(pool.submit(save, folder, jobs[absent]))
    assert late.workers == {absent: "called save too late: the other workers have given up on it"}
    # All have called it once now, and meet at the next call.
    assert all(future.result(30) for future in start(pool, folder, jobs))
    assert whole(folder)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_worker_cannot_write(folder: ShardFolder, pool: ThreadPoolExecutor, failing: int):
    def write(path: str, run: str) -> int:
        raise OSError("no space left on device")

    jobs = jobs_on(Board())
    futures = [pool.submit(save, folder, job, write if job.worker == failing else None) for job in jobs]
    with pytest.raises(OSError, match="no space left"):
        futures[failing].result(30)
    for worker in {0, 1, 2} - {failing}:
        error = problem_of(futures[worker])
        assert error.workers == {failing: "could not save: OSError: no space left on device"}
    assert folder.run() is None
    assert all(future.result(30) for future in start(pool, folder, jobs))
    assert len(folder.names()) == 4  # nothing is left of the attempt


def test_a_worker_cannot_prepare(folder: ShardFolder, pool: ThreadPoolExecutor):
    jobs = jobs_on(Board())
    Meeting(jobs[2], folder, 1.0).abandon(ValueError("names= gives the name 'x' twice."))
    for future in start(pool, folder, jobs[:2]):
        assert problem_of(future).workers == {2: "could not save: ValueError: names= gives the name 'x' twice."}


def test_the_leader_cannot_prepare(folder: ShardFolder, pool: ThreadPoolExecutor):
    jobs = jobs_on(Board())
    Meeting(jobs[0], folder, 1.0).abandon(ValueError("bad name"))
    for future in start(pool, folder, jobs[1:]):
        assert problem_of(future).workers == {0: "could not save: ValueError: bad name"}
    assert all(future.result(30) for future in start(pool, folder, jobs))


def test_a_worker_is_known_to_have_failed(folder: ShardFolder, pool: ThreadPoolExecutor):
    board = Board()
    board.failed[1] = "stopped sending heartbeats"
    began = time.monotonic()
    for future in start(pool, folder, jobs_on(board)[::2], timeout=60.0):
        assert problem_of(future).workers == {1: "failed: stopped sending heartbeats"}
    assert time.monotonic() - began < 30  # nobody waits for it


def test_the_leader_does_not_respond(folder: ShardFolder):
    board = Board()
    board.is_down = True
    with pytest.raises(rt.errors.MissingWorkerError, match="worker 0 of 3 failed: connection refused"):
        save(folder, Worker(board, 1))


def test_the_leader_fails_after_publishing(folder: ShardFolder, pool: ThreadPoolExecutor, monkeypatch):
    """The others see the manifest: the tape is saved."""
    board = Board()
    jobs = jobs_on(board)
    post = Meeting._post

    def fail(self: Meeting, what: str, *args: Any) -> None:
        if what == "outcome":
            board.is_down = True
        post(self, what, *args)

    monkeypatch.setattr(Meeting, "_post", fail)
    futures = start(pool, folder, jobs)
    assert all(future.result(30) for future in futures)
    assert whole(folder)


def test_the_manifest_is_there_although_publishing_failed(folder: ShardFolder, pool: ThreadPoolExecutor, monkeypatch):
    """As if the name of the file could not be flushed to the disk after the rename."""
    publish = type(folder).publish

    def fail(self: ShardFolder, *args: Any) -> None:
        publish(self, *args)
        raise OSError("input/output error")

    monkeypatch.setattr(type(folder), "publish", fail)
    assert all(future.result(30) for future in start(pool, folder, jobs_on(Board())))
    assert whole(folder)


@pytest.mark.parametrize("worker", range(3))
@pytest.mark.parametrize("what", ["here", "run", "shard", "outcome"])
def test_a_message_cannot_be_sent(folder: ShardFolder, pool: ThreadPoolExecutor, monkeypatch, worker: int, what: str):
    """There is no tape, or a whole one, and nobody reports that it is saved if it is not."""
    post = Meeting._post

    def fail(self: Meeting, name: str, *args: Any) -> None:
        if name == what and self._job.worker == worker:
            raise ConnectionError("connection reset")
        post(self, name, *args)

    monkeypatch.setattr(Meeting, "_post", fail)
    futures = start(pool, folder, jobs_on(Board()), timeout=1.0)
    saved = [future.exception(30) is None for future in futures]
    assert whole(folder) == any(saved)
    assert folder.run() is None or whole(folder)


def test_options_differ(folder: ShardFolder, pool: ThreadPoolExecutor):
    jobs = jobs_on(Board())
    futures = [pool.submit(save, folder, job, redact=["x"] if job.worker == 2 else []) for job in jobs]
    for future in futures:
        assert problem_of(future).workers == {2: "saves with other options: {'redact': ['x']}"}
    assert folder.run() is None


def test_messages_do_not_pile_up(folder: ShardFolder, pool: ThreadPoolExecutor):
    board = Board()
    jobs, sizes = jobs_on(board), []
    for _ in range(6):
        assert all(future.result(30) for future in start(pool, folder, jobs))
        sizes.append(board.size())
    assert sizes[2:] == [sizes[2]] * 4


def test_a_folder_that_workers_do_not_share(tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch):
    monkeypatch.setattr("retrotape.files.shard_folder._PATIENCE", 0.2)
    jobs = jobs_on(Board(), 2)
    futures = [pool.submit(save, shard_folder(tmp_path / f"of {job.worker}"), job) for job in jobs]
    with pytest.raises(rt.errors.TapeWriteError, match=r"worker 0 does not see shard-00001.*a folder that all workers"):
        futures[0].result(30)
    assert "worker 0 does not see" in problem_of(futures[1]).workers[0]


def test_two_saves_under_way_in_one_folder(folder: ShardFolder, pool: ThreadPoolExecutor, monkeypatch):
    """The first to be published does not remove the shards of the other."""
    monkeypatch.setattr(meeting, "_open_runs", {"ab" * 16})
    folder.check(True)
    name = store.shard_name(0, 3, "ab" * 16)
    folder.put(name, lambda path: Path(path).write_bytes(b"under way"))
    assert all(future.result(30) for future in start(pool, folder, jobs_on(Board())))
    assert name in folder.names()
