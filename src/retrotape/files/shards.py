"""A tape that several workers save together: a folder of shards, read as one trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

from retrotape.errors import ShardMismatchError, TapeWriteError
from retrotape.files import store
from retrotape.files.checks import Guard, memory_limit
from retrotape.files.load import Opened, read
from retrotape.files.meeting import Meeting
from retrotape.files.save import Prepared
from retrotape.tf.workers import Job
from retrotape.transform import Shard, join_shards


def read_any(path: str | os.PathLike[str], **options: Any) -> Opened:
    """Return the trace in a file, or the whole of those in a folder of shards; see `load.read`."""
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


def save_shard(
    job: Job,
    path: str | os.PathLike[str],
    prepare: Callable[[], Prepared],
    *,
    overwrite: bool,
    timeout: float,
    store_in: str | os.PathLike[str] | None = None,
) -> int:
    """Write the shard of this worker, and return its size once the tape is published; every worker has to call it.

    Raises:
      MissingWorkerError: If another worker has failed or does not respond; nothing was published.
    """
    folder = os.fsdecode(path)
    if store_in is not None:
        raise TapeWriteError(
            folder, "`store` is for a tape of one worker", "Save without it: `tape.save('job/', names)`."
        )
    meeting = Meeting(job, folder, timeout)
    try:
        store.check_folder(folder, overwrite)
        prepared = prepare()
    except BaseException as error:
        meeting.abandon(error)
        raise

    def write(file: str, run: str) -> int:
        shard = {"run": run, "worker": job.worker, "workers": job.workers}
        return prepared.with_fields({"features": ["shards"], "shard": shard}).write(file, overwrite=True, store_in=None)

    return meeting.save(prepared.size(), write, overwrite)
