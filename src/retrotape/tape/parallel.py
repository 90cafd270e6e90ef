"""Queries several tapes at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from retrotape.diagnose.memory import measure
from retrotape.errors import ShapeMismatchError, TapeUseError
from retrotape.grads import Gradients
from retrotape.query import Queries
from retrotape.record import Session, current_stack
from retrotape.tf import core
from retrotape.tf.core import as_is, tf

BYTES_PER_OP = 200_000  # held by a tape, above which threads are faster; see `benchmarks/parallel.py`


@as_is
def backward_all(
    tapes: Sequence[Queries],
    losses: Sequence[Any],
    wrt: Any = None,
    *,
    parallel: bool | None = None,
    **options: Any,
) -> list[Gradients]:
    """Return the gradient of each loss from its own tape, in the order given, as `backward` does.

    Results are bit-identical whether tapes are queried one after the other or in parallel threads. By default, threads
    are used only where they are faster. TensorFlow already spreads one large op over all cores, and small ops leave no
    time for a second thread. Measured on two cores, time with threads over time without:

    ==========================  ======================  =================
    tapes                       TensorFlow's threads    one thread per op
    ==========================  ======================  =================
    16 small sub-models         1.50                    1.42
    4 MLPs, 2048 wide           0.91                    0.59
    4 small CNNs                1.04                    0.70
    ==========================  ======================  =================

    Threads are not used inside a tf.function, nor while anything is recording on this thread, which would miss their
    ops. A `tf.device` block does not apply inside the threads.

    Args:
      tapes: Tapes of any kind, also joined ones; the same one may occur twice.
      losses: One for each tape.
      wrt: As for `backward`, for every tape.
      parallel: Whether to use threads, at most one per core. If None, they are used if TensorFlow is configured to run
        an op on one thread, and the first tape holds large tensors.
      **options: As for `gradient`.

    Raises:
      ShapeMismatchError: If there is not one loss for each tape.
      TapeUseError: If something other than a tape is given.

    >>> w, tapes, losses = tf.Variable(3.0), [], []
    >>> for power in (1.0, 2.0):
    ...     with rt.Tape() as tape:
    ...         losses.append(w ** power)
    ...     tapes.append(tape)
    >>> float(sum(rt.backward_all(tapes, losses))[w])
    7.0
    """
    pairs = _paired(tapes, losses)

    def backward(pair: tuple[Queries, Any]) -> Gradients:
        tape, loss = pair
        return tape.backward(loss, wrt, **options)

    workers = min(len(pairs), os.cpu_count() or 1)
    if parallel is False or workers < 2 or not _can_use_threads(pairs):
        return [backward(pair) for pair in pairs]
    if parallel is None and not _pays(pairs[0][0]._recorded()):
        return [backward(pair) for pair in pairs]
    with ThreadPoolExecutor(workers, "backward_all") as pool:
        return list(pool.map(backward, pairs))


def _paired(tapes: Any, losses: Any) -> list[tuple[Queries, Any]]:
    for given in (tapes, losses):
        if isinstance(given, Queries):
            raise TapeUseError(
                "backward_all takes a list of tapes and a list of losses; for one, `tape.backward(loss)`."
            )
    tapes, losses = list(tapes), list(losses)
    for tape in tapes:
        if not isinstance(tape, Queries):
            raise TapeUseError(
                f"backward_all takes tapes, got {type(tape).__name__}: `rt.backward_all([first, second], losses)`."
            )
    if len(tapes) != len(losses):
        raise ShapeMismatchError(f"Got {len(losses)} losses for {len(tapes)} tapes; give one for each.")
    return list(zip(tapes, losses, strict=True))


def _can_use_threads(pairs: list[tuple[Queries, Any]]) -> bool:
    """Return whether queries may run on other threads: nothing on this thread records, and no tape is open."""
    if not tf.executing_eagerly() or current_stack().recording() or core.stock_tape_listens():
        return False
    return not any(tape._recorded().is_open for tape, _ in pairs)  # a paused tape is open, but not recording


def _pays(session: Session) -> bool:
    """Return whether threads pay, judging by one tape: measuring all takes longer than querying small ones."""
    if tf.config.threading.get_intra_op_parallelism_threads() != 1:
        return False
    held = measure(session.trace)
    return held.bytes + held.variables >= BYTES_PER_OP * len(session.trace.program.eqns)
