"""One of two workers that call the same function; this one records it, or not. Prints what it found, as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import tensorflow as tf

import retrotape as rt


def main(rank: int, ports: list[str], records: bool) -> None:
    """Call the function twice."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w, v = tf.Variable(3.0), tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
    x = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(1.0 + context.replica_id_in_sync_group)
    )

    def body(x: Any) -> Any:
        replica = tf.distribute.get_replica_context()
        v.assign(v * x)
        rows = tf.IndexedSlices(tf.reshape(x * w, [1, 1]), tf.constant([0]), tf.constant([2, 1]))
        sparse = tf.convert_to_tensor(replica.all_reduce("MEAN", rows))
        gathered = replica.all_gather(tf.reshape(x * w, [1]), 0)
        total = replica.all_reduce("SUM", x * w) ** 2
        return total + tf.reduce_sum(gathered) + tf.reduce_sum(sparse) + v, x * w * w

    @tf.function
    def step() -> Any:
        total, own = strategy.run(body, (x,))
        return strategy.reduce("SUM", total, axis=None), own

    with rt.Tape() as tape:
        y, own = step() if records else (None, None)
    if not records:
        y, _ = step()
    slope = float(tape.gradient(own, w)) if records else None
    print("found:" + json.dumps([float(y), float(v.numpy()), slope]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:4], sys.argv[4] == "records")
