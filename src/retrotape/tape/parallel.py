"""Several tapes asked at once."""

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

BYTES_PER_OP = 200_000  # held by a tape, from which on threads have paid; see `benchmarks/parallel.py`


@as_is
def backward_all(
    tapes: Sequence[Queries],
    losses: Sequence[Any],
    wrt: Any = None,
    *,
    parallel: bool | None = None,
    **options: Any,
) -> list[Gradients]:
    """Return the gradient of each loss by its own tape, in the order given, as `backward` does.

    The numbers are the same to the bit whether tapes are asked one after the other or side by side in threads. By
    default threads are used only where they have paid. TensorFlow spreads one large op over all cores already, and
    small ops leave no time for a second thread. Measured on two cores, time with threads over time without:

    ==========================  ======================  =================
    tapes                       TensorFlow's threads    one thread per op
    ==========================  ======================  =================
    16 small sub-models         1.50                    1.42
    4 MLPs, 2048 wide           0.91                    0.59
    4 small CNNs                1.04                    0.70
    ==========================  ======================  =================

    Threads are not used inside a tf.function, nor while anything is recorded on this thread: nobody would hear them.
    A `tf.device` block does not reach into threads.

    Args:
      tapes: Tapes of any kind, also joined ones; the same one may occur twice.
      losses: One for each tape.
      wrt: As for `backward`, for every tape.
      parallel: Whether to use threads, at most one for each core. If None, they are used where TensorFlow was told to
        run an op on one thread, and the first tape holds large tensors.
      **options: As for `gradient`.

    Raises:
      ShapeMismatchError: If there is not one loss for each tape.
      TapeUseError: If something else than a tape is given.

    >>> w, tapes, losses = tf.Variable(3.0), [], []
    >>> for power in (1.0, 2.0):
    ...     with rt.Tape() as tape:
    ...         losses.append(w ** power)
    ...     tapes.append(tape)
    >>> float(sum(rt.backward_all(tapes, losses))[w])
    7.0
    """
    pairs = _paired(tapes, losses)

    def ask(pair: tuple[Queries, Any]) -> Gradients:
        tape, loss = pair
        return tape.backward(loss, wrt, **options)

    workers = min(len(pairs), os.cpu_count() or 1)
    if parallel is False or workers < 2 or not _may_leave_the_thread(pairs):
        return [ask(pair) for pair in pairs]
    if parallel is None and not _pays(pairs[0][0]._recorded()):
        return [ask(pair) for pair in pairs]
    with ThreadPoolExecutor(workers, "backward_all") as pool:
        return list(pool.map(ask, pairs))


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


def _may_leave_the_thread(pairs: list[tuple[Queries, Any]]) -> bool:
    """Say whether nobody on this thread has to hear the ops, and no tape has to be asked here."""
    if not tf.executing_eagerly() or current_stack().recording() or core.stock_tape_listens():
        return False
    return not any(tape._recorded().is_open for tape, _ in pairs)  # paused, if nobody hears


def _pays(session: Session) -> bool:
    """Judge by one tape: looking at them all takes longer than small ones take to answer."""
    if tf.config.threading.get_intra_op_parallelism_threads() != 1:
        return False
    held = measure(session.trace)
    return held.bytes + held.variables >= BYTES_PER_OP * len(session.trace.program.eqns)
