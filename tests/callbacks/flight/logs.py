"""Logs of a small training on numbers, as a recorder would have written them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import retrotape as rt
from retrotape.callbacks.flight._folder import Layout, Recording

NAMES = ("w", "count", "metric/total")


def template(path: str, *, random: bool = False) -> None:
    """Record a step: w loses a tenth of w · log(x), count counts, and a metric sums up."""
    w, count, total = tf.Variable(1.0), tf.Variable(0), tf.Variable(0.0)
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        loss = w * tf.math.log(x)
        if random:
            loss += tf.random.normal([])
        w.assign_sub(0.1 * loss)
        count.assign_add(1)
        total.assign_add(loss)
    tape.save(path, {"x": x, "loss": loss, "w": w, "count": count, "metric/total": total})


@np.errstate(all="ignore")
def after(state, x):
    loss = np.float32(state[0]) * np.log(np.float32(x))
    return [np.float32(state[0] - 0.1 * loss), np.int32(state[1] + 1), np.float32(state[2] + loss)]


def recorded(found, xs, snapshots, *, lost=(), change=None, **options) -> Recording:
    """Write the log of a training on numbers, with snapshots before some steps."""
    layout = found.layout("state", Layout(NAMES, ("float32", "int32", "float32"), ((), (), ()), ("metric/total",)))
    batch = found.layout("batch", Layout(("x",), ("float32",), ((),)))
    if "template" not in lost:
        template(found.template(batch), **options)
    state = [np.float32(1.0), np.int32(0), np.float32(0.0)]
    for step, x in enumerate(xs):
        if step in snapshots:
            state = state if change is None or not step else change(state)
            found.log.snapshot(step, layout, state)
        found.log.batch(step, batch, [np.float32(x)])
        state = after(state, x)
    return found


XS = [2.0, 3.0, 1.5, 2.5, 4.0, 0.0, 2.0]
