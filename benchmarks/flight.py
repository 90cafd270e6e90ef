"""What a flight recorder costs: steps of a compiled `fit` with `rt.FlightRecorder`, against the same without it.

The loop is that of `fit`, with Keras' own callbacks and train function; it is written out here so that contenders can
take turns in blocks of steps. **A/A** is the ratio of two trainings without a recorder: what the machine itself adds.
A difference smaller than that says nothing. The first steps, in which one is recorded, are not counted.

**Own** is measured directly, so that noise of the machine matters little: the CPU time that threads spend inside the
recorder's Python code (around each call, for each batch, and on the thread that writes), as a share of the CPU time of
a step without a recorder. Not in it: TensorFlow's part of the call from the graph, and what the copies do to caches.

Run: `python benchmarks/flight.py`; `--steps 3 10` for some lengths of steps, in milliseconds.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import _measure

GOAL = 1.03
# By about how many milliseconds a step takes on one core: units of three layers, and rows of a batch.
SIZES = {1: (64, 64), 3: (192, 128), 10: (448, 256), 30: (640, 512)}
BLOCK = 100  # steps


class OwnTime:
    """The CPU time inside the recorder's functions, summed over threads."""

    def __init__(self) -> None:
        from retrotape.callbacks.flight._fit import FitSession
        from retrotape.callbacks.flight._log import Log

        self.seconds, self._lock = 0.0, threading.Lock()
        for owner, name in ((FitSession, "_before_call"), (FitSession, "_after_call"), (FitSession, "_note")):
            setattr(owner, name, self._timed(getattr(owner, name)))
        Log.batch = self._timed(Log.batch)  # on a thread of its own; snapshots are part of `_before_call`

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args)
            finally:
                with self._lock:
                    self.seconds += time.thread_time() - began

        return timed


class Training:
    """A `fit` that goes on by so many steps at a time."""

    def __init__(self, units: int, rows: int, callbacks: Sequence[Any]) -> None:
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(units, "relu") for _ in range(3)]
        model = keras.Sequential([keras.Input([units]), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        data = tf.random.normal([4 * rows, units]), tf.random.normal([4 * rows, 1])
        self._iterator = iter(tf.data.Dataset.from_tensor_slices(data).batch(rows).cache().repeat())
        self._callbacks = keras.callbacks.CallbackList([*callbacks], add_history=True, model=model)
        self._model, self._step = model, 0
        model.make_train_function()
        self._callbacks.on_train_begin()
        self._callbacks.on_epoch_begin(0)

    def run(self, steps: int) -> _measure.Seconds:
        """Return how long a step took, on average over so many."""
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(steps):
            self._callbacks.on_train_batch_begin(self._step)
            logs = self._model.train_function(self._iterator)
            self._callbacks.on_train_batch_end(self._step, logs)
            self._step += 1
        return _measure.Seconds((time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps)

    def end(self) -> None:
        """End the training."""
        self._callbacks.on_train_end()


def measure(
    units: int, rows: int, rounds: int, block: int, folder: str, own: OwnTime
) -> tuple[dict[str, list[_measure.Seconds]], list[float]]:
    """Return the times of each contender, round by round, and the recorder's own time of a step."""
    import retrotape as rt

    made = {
        "plain": Training(units, rows, []),
        "again": Training(units, rows, []),
        "recorded": Training(units, rows, [rt.FlightRecorder(folder)]),
    }
    found: dict[str, list[_measure.Seconds]] = {name: [] for name in made}
    for training in made.values():
        training.run(block)  # to warm up
    names, shares = list(made), []
    for number in range(rounds):
        for name in names[number % 3 :] + names[: number % 3]:  # each is first in turn
            own.seconds = 0.0
            found[name].append(made[name].run(block))
            shares += [own.seconds / block] if name == "recorded" else []
    for training in made.values():
        training.end()
    return found, shares


def main() -> None:
    parser = _measure.options(__doc__)
    parser.add_argument("--steps", nargs="+", type=int, choices=SIZES, default=[3, 10, 30], help="milliseconds")
    parser.add_argument("--rounds", type=int, default=12, help="turns that each contender takes (%(default)s)")
    given = parser.parse_args()
    rows, data, own = [], [], OwnTime()
    for length in given.steps[:1] if given.quick else given.steps:
        with tempfile.TemporaryDirectory() as folder:
            rounds, block = (2, 10) if given.quick else (given.rounds, max(20, BLOCK * 10 // max(length, 10)))
            found, spent = measure(*SIZES[length], rounds, block, folder, own)
        wall = {name: [one.wall for one in times] for name, times in found.items()}
        cpu = {name: [one.cpu for one in times] for name, times in found.items()}
        ours, same = (_measure.ratio(wall[name], wall["plain"]) for name in ("recorded", "again"))
        row = [f"{statistics.median(wall['plain']) * 1e3:.2f}", str(ours), str(same)]
        share = statistics.median(spent) / statistics.median(cpu["plain"])
        processor = _measure.ratio(cpu["recorded"], cpu["plain"])
        row += [str(processor)]
        row += [f"{statistics.median(spent) * 1e6:.0f} us, {share:.1%}", _measure.against(GOAL, processor.median)]
        rows.append(row if length >= 10 else [*row[:-1], ""])
        data.append({"step": length, "wall": wall, "cpu": cpu, "own": spent})
    columns = ["ms of a step", "with a recorder", "A/A", "CPU time", "own", "goal, CPU time"]
    _measure.table("Compiled fit with rt.FlightRecorder, relative to fit without it", columns, rows)
    _measure.write_json(given.json, data)


if __name__ == "__main__":
    main()
