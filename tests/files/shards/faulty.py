"""A worker to which something happens while all workers save a tape.

    faulty.py FOLDER WORKER HOW WHERE

At WHERE the worker WORKER is killed, is stopped, or does not call save at all. The others print what came of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

import retrotape as rt
from files.shards.cases import Worker
from retrotape.files import meeting, store

TIMEOUT = 4.0  # seconds
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
# Just before which step of a save.
PLACES = ("here", "run", "write", "shard", "manifest", "outcome")


def strike_before(place: str, how: str) -> None:
    """Make this process kill or stop itself before a step."""

    def strike() -> None:
        os.kill(os.getpid(), SIGNALS[how])

    post, write, publish = meeting.Meeting._post, store.describe_file, store.write_manifest

    def posting(self: Any, what: str, *args: Any) -> None:
        if what == place:
            strike()
        post(self, what, *args)

    def writing(path: str) -> Any:
        if place == "write":
            strike()
        return write(path)

    def publishing(*args: Any, **options: Any) -> None:
        if place == "manifest":
            strike()
        publish(*args, **options)

    meeting.Meeting._post = posting  # type: ignore[method-assign]
    store.describe_file = writing
    store.write_manifest = publishing


def main(folder: Path, struck: int, how: str, place: str) -> None:
    job = Worker()
    me = job.strategy.cluster_resolver.task_id
    with job.scope():
        w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        loss = job.total(job.run(lambda: tf.reduce_sum(w * w) * (me + 1.0)))
    tape.save(folder / "before", {"loss": loss})  # also so that all workers are at the same place now
    if me == struck:
        if how == "absent":
            time.sleep(3600)
        strike_before(place, how)
    began = time.monotonic()
    try:
        tape.save(folder / "before", {"loss": loss}, timeout=TIMEOUT)
        found = {"saved": True}
    except rt.errors.RetrotapeError as error:
        found = {"error": type(error).__name__, "text": str(error)}
    print("outcome:" + json.dumps({**found, "seconds": time.monotonic() - began}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
