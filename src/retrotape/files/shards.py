"""A tape that several workers save together: a folder of shards, read as one trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from retrotape.errors import ShardMismatchError, TapeWriteError
from retrotape.files import store
from retrotape.files.background import finish, submit
from retrotape.files.checks import Guard, memory_limit
from retrotape.files.load import Opened, read
from retrotape.files.meeting import Meeting
from retrotape.files.save import Snapshot
from retrotape.files.shard_folder import shard_folder
from retrotape.record import current_stack
from retrotape.tf.workers import Job
from retrotape.transform import Shard, join_shards


def read_folder(path: str | os.PathLike[str], **options: Any) -> Opened:
    """Return the trace in a folder: the whole of those in its shards, or one with a store; see `load.read`."""
    return read_shards(path, **options) if store.is_sharded(path) else read(path, **options)


def read_shards(
    path: str | os.PathLike[str],
    *,
    allow_ops: Collection[str] = (),
    limits: store.Limits | None = None,
    isolated: bool = False,
    **options: Any,
) -> Opened:
    """Return the whole of the traces in a folder of shards.

    Raises:
      IncompleteTapeError: If the folder has no manifest, or not all of its shards.
      CorruptTapeError: If a shard is not the file that was saved.
      ShardMismatchError: If the shards do not belong to one run.
    """
    limits, folder = limits or store.Limits(), os.fsdecode(path)
    manifest = store.read_manifest(folder, limits)
    store.verify_shards(folder, manifest)
    opened = []
    for worker, shard in enumerate(manifest.shards):
        one = read(os.path.join(folder, shard.file), allow_ops=allow_ops, limits=limits, isolated=isolated, **options)
        expected = {"run": manifest.run, "worker": worker, "workers": len(manifest.shards)}
        if one.fields.get("shard") != expected:
            raise ShardMismatchError(f"{shard.file} is not shard {worker} of run {manifest.run}")
        opened.append(one)
    trace, names = join_shards([Shard(one.trace, one.names, one.mirrored) for one in opened])
    limit = limits.total_bytes
    if limit is None:
        limit = memory_limit(sum(shard.bytes for shard in manifest.shards), isolated)
    trace.guard = Guard(folder, allow_ops, limit, isolated)
    redacted = frozenset(name for one in opened for name in one.redacted)
    return Opened(trace, names, redacted, opened[0].fields, {})


class Options(NamedTuple):
    """How a tape is saved with other workers.

    Attributes:
      overwrite: As for `save`.
      store: As for `save`.
      wait: As for `save`.
      timeout: As for `save`.
      agreed: What all workers have to agree on, as JSON.
    """

    overwrite: bool
    store: str | os.PathLike[str] | None
    wait: bool
    timeout: float
    agreed: Mapping[str, Any]


def save_shard(
    job: Job, path: str | os.PathLike[str], take_snapshot: Callable[[], Snapshot], options: Options
) -> int | Future[int]:
    """Write the shard of this worker, and return its size once the tape is published; every worker has to call it.

    Raises:
      MissingWorkerError: If another worker has failed or does not respond; nothing was published.
    """
    folder = shard_folder(path)
    if options.store is not None:
        problem, remedy = "`store` is for a tape of one worker", "Save without it: `tape.save('job/', names)`."
        raise TapeWriteError(folder.path, problem, remedy)
    meeting = Meeting(job, folder, options.timeout, options.agreed)
    try:
        folder.check(options.overwrite)
        snapshot = take_snapshot() if options.wait else take_snapshot().detached()
    except BaseException as error:
        meeting.abandon(error)
        raise

    def save() -> int:
        try:
            with current_stack().unrecorded():  # in the background this is another thread
                prepared = snapshot.prepare()
        except BaseException as error:
            meeting.abandon(error)
            raise

        def write(file: str, run: str) -> int:
            shard = {"run": run, "worker": job.worker, "workers": job.workers}
            with current_stack().unrecorded():
                return prepared.with_fields({"features": ["shards"], "shard": shard}).write(
                    file, overwrite=True, store_in=None
                )

        return meeting.save(prepared.size(), write, options.overwrite)

    if not options.wait:
        return submit(folder.key, save)
    finish(lambda: folder.key)  # an earlier save in the background must not replace this one
    return save()
