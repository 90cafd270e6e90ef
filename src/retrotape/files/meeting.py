"""How the workers of a job save one tape together: nobody publishes it before everybody has written a shard.

Every worker posts that it is there. When all are, the leader opens a run; each worker writes its shard and posts the
shard's digest. When the leader has all digests, it writes the manifest, which makes the shards a tape, and posts the
outcome. Whoever waits for a worker that has failed, or that does not respond in time, raises and names it.

Saves are numbered by the calls of each worker, so that shards of different calls never meet. A number on which somebody
has given up is closed for all.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from retrotape.errors import MissingWorkerError, RetrotapeError
from retrotape.files import store
from retrotape.files.shard_folder import ShardFolder
from retrotape.tf.workers import LEADER, Job

_POLL = 0.25  # seconds between two looks at who has failed
_SLACK = 4.0  # seconds that others wait longer than the leader, so that its message arrives first
_SLOWEST = 2**23  # bytes a second that every disk is assumed to write
_open_runs: set[str] = set()  # that this process leads: several saves may be under way in one folder
Write = Callable[[str, str], int]  # the shard of a run, to a path; returns its size


class Meeting:
    """One save of all workers.

    Args:
      job: The workers.
      folder: Where the tape is saved.
      timeout: How many seconds to wait for a worker that does not respond.
      options: What all workers have to agree on, as JSON.
    """

    def __init__(self, job: Job, folder: ShardFolder, timeout: float, options: Mapping[str, Any] | None = None) -> None:
        self._job, self._folder, self._timeout, self._options = job, folder, timeout, dict(options or {})
        self._leads = job.worker == LEADER
        self._number = job.next_save[0]
        job.next_save[0] += 1

    def abandon(self, error: BaseException) -> None:
        """Tell the others that this worker cannot save."""
        with contextlib.suppress(ConnectionError):
            self._post("here", {"error": _reason(error)}, self._job.worker)
            if self._leads:
                self._end({LEADER: _reason(error)})

    def save(self, size: int, write: Write, overwrite: bool) -> int:
        """Write the shard of this worker, and return its size once the tape is published.

        Args:
          size: About how many bytes this worker will write.
          write: Writes the shard.
          overwrite: Whether another tape in the folder may be replaced.

        Raises:
          MissingWorkerError: If another worker has failed or does not respond; nothing was published.
        """
        with self._explained():
            self._check_open()
            self._post("here", {"bytes": size, "options": self._options}, self._job.worker)
            run, seconds = self._open()
            try:
                return self._write(run, seconds, write, overwrite)
            finally:
                _open_runs.discard(run)
                if self._leads:
                    self._job.forget(self._key_of(self._number - 2))  # all workers have read those messages

    # ------------------------------------------------------------------ the three steps

    def _check_open(self) -> None:
        """Raise if others have given up on this save, perhaps since this worker has come too late."""
        text = self._job.read(self._key("closed"), 0)
        if text is not None:
            missing = {int(number): why for number, why in json.loads(text)["missing"].items()}
            if self._job.worker in missing:
                missing = {self._job.worker: "called save too late: the other workers have given up on it"}
            raise MissingWorkerError(self._folder.path, missing, self._job.workers)

    def _open(self) -> tuple[str, float]:
        """Return the name of the run, and how many seconds every worker has for writing."""
        if not self._leads:
            (opened,) = self._await([LEADER], lambda _: self._key("run"), self._timeout + _SLACK, "has not called save")
            return opened["run"], opened["seconds"]
        everyone = range(self._job.workers)
        here = self._await(everyone, lambda worker: self._key("here", worker), self._timeout, "has not called save")
        others = {number: one["options"] for number, one in enumerate(here) if one["options"] != self._options}
        if others:
            raise self._missing({number: f"saves with other options: {given}" for number, given in others.items()})
        seconds = self._timeout + max(each["bytes"] for each in here) / _SLOWEST
        run = os.urandom(16).hex()
        _open_runs.add(run)
        self._post("run", {"run": run, "seconds": seconds})
        return run, seconds

    def _write(self, run: str, seconds: float, write: Write, overwrite: bool) -> int:
        name = store.shard_name(self._job.worker, self._job.workers, run)
        try:
            shard = self._folder.put(name, lambda path: write(path, run))
            self._post("shard", shard._asdict(), self._job.worker)
        except Exception as error:
            self._folder.remove(name)
            self._post("shard", {"error": _reason(error)}, self._job.worker)
            if self._leads:
                self._end({self._job.worker: _reason(error)})
            raise
        try:
            if self._leads:
                self._publish(run, seconds, overwrite)
            else:
                self._await([LEADER], lambda _: self._key("outcome"), seconds + _SLACK, "has not published it")
        except (RetrotapeError, OSError):
            if self._folder.run() == run:  # what failed came after that
                return shard.bytes
            if self._ended():  # otherwise the leader may still publish it
                self._folder.remove(name)
            raise
        return shard.bytes

    def _publish(self, run: str, seconds: float, overwrite: bool) -> None:
        everyone = range(self._job.workers)
        rows = self._await(everyone, lambda worker: self._key("shard", worker), seconds, "has not written its shard")
        manifest = store.Manifest(run, tuple(store.ShardFile(**row) for row in rows))
        try:
            self._folder.check_visible(manifest.shards, self._job.worker)
            self._folder.publish(manifest, overwrite)
        except Exception as error:
            if self._folder.run() != run:
                self._end({self._job.worker: _reason(error)})
                raise
        with contextlib.suppress(ConnectionError):  # the others see the manifest
            self._post("outcome", {})
        self._folder.clean(manifest, _open_runs)

    def _ended(self) -> bool:
        """Return whether the leader has said that there will be no tape."""
        try:
            text = self._job.read(self._key("outcome"), 0)
        except ConnectionError:
            return False
        return self._leads or (text is not None and "missing" in json.loads(text))

    # ------------------------------------------------------------------ messages

    def _key_of(self, number: int, *parts: object) -> str:
        return "/".join(map(str, ("retrotape", "save", number, *parts)))

    def _key(self, *parts: object) -> str:
        return self._key_of(self._number, *parts)

    def _post(self, what: str, message: Mapping[str, Any], worker: int | None = None) -> None:
        self._job.post(self._key(what) if worker is None else self._key(what, worker), json.dumps(message))

    def _await(
        self, workers: Iterable[int], key: Callable[[int], str], seconds: float, reason: str
    ) -> list[dict[str, Any]]:
        """Return a message of each worker; raise if one has failed, or has not sent it in time."""
        waiting, found = set(workers), dict[int, dict[str, Any]]()
        until = time.monotonic() + seconds
        while waiting:
            for worker in sorted(waiting):
                text = self._job.read(key(worker), _POLL / len(waiting))
                if text is not None:
                    found[worker] = json.loads(text)
                    waiting.discard(worker)
            failed = {number: f"failed: {why}" for number, why in self._job.failed().items() if number in waiting}
            failed |= {number: each["error"] for number, each in found.items() if "error" in each}
            failed |= {int(number): why for each in found.values() for number, why in each.get("missing", {}).items()}
            if not failed and waiting and time.monotonic() > until:
                failed = dict.fromkeys(waiting, f"{reason} within {seconds:.0f} seconds")
            if failed:
                raise self._missing(failed)
        return [found[worker] for worker in sorted(found)]

    def _missing(self, workers: dict[int, str]) -> MissingWorkerError:
        if self._leads:
            self._end(workers)
        with contextlib.suppress(ConnectionError):
            self._post("closed", {"missing": workers})
        return MissingWorkerError(self._folder.path, workers, self._job.workers)

    def _end(self, missing: dict[int, str]) -> None:
        """Tell the others why there will be no tape."""
        for what in ("run", "outcome", "closed"):
            with contextlib.suppress(ConnectionError):
                self._post(what, {"missing": missing})

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the leader if its message store does not respond."""
        try:
            yield
        except ConnectionError as error:
            raise MissingWorkerError(self._folder.path, {LEADER: f"failed: {error}"}, self._job.workers) from error


def _reason(error: BaseException) -> str:
    return f"could not save: {type(error).__name__}: {error}"
