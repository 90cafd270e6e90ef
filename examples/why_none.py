"""A gradient is None, and the tape explains why: which op cuts the path, on which line, and what to do."""

from __future__ import annotations

import tensorflow as tf

import retrotape as rt


def main() -> dict[str, rt.Explanation]:
    kernel = tf.Variable([[0.1, 0.2], [0.3, 0.4]], name="kernel")
    bias = tf.Variable([0.0, 0.0], name="bias")
    x, labels = tf.constant([[1.0, 2.0], [3.0, -4.0]]), tf.constant([0, 1])
    with rt.Tape() as tape:
        scores = tf.nn.relu(x @ kernel - 9.0) + bias
        chosen = tf.argmax(scores, axis=-1, output_type=tf.int32)
        accuracy = tf.reduce_mean(tf.cast(chosen == labels, tf.float32))
        loss = tf.reduce_sum(scores)
    found = {"accuracy": tape.why(accuracy, bias), "loss": tape.why(loss, kernel)}
    print(found["accuracy"], f"and loss w.r.t. kernel: {found['loss'].detail}", found["loss"].remedy, sep="\n")
    return found


if __name__ == "__main__":
    main()
