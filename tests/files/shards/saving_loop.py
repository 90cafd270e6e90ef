"""A worker that records and saves a tape again and again, until something happens to another worker."""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from pathlib import Path

import tensorflow as tf

import retrotape as rt
from files.shards.cases import Worker


def gradient(step: float) -> list[float]:
    """Return the gradient of the loss of a step, by hand."""
    return [6.0 + step, 12.0 + step]


def main(folder: Path) -> None:
    job = Worker()
    me = job.strategy.cluster_resolver.task_id
    with job.scope():
        w = tf.Variable([1.0, 2.0], name="w")
    for number in count():
        step = tf.constant(float(number))
        began = time.monotonic()
        try:
            with rt.Tape() as tape:
                body = lambda step: tf.reduce_sum(w * w) * (me + 1.0) + me * step * tf.reduce_sum(w)  # noqa: E731
                loss = job.total(job.run(body, step))
            tape.save(folder / f"tape{number % 3}", {"loss": loss, "step": step}, timeout=8.0)
        except (rt.errors.RetrotapeError, tf.errors.OpError) as error:
            about = {"error": type(error).__name__, "text": str(error)[:2000], "seconds": time.monotonic() - began}
            print("outcome:" + json.dumps(about), flush=True)
            os._exit(0)
        print("saved", number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
