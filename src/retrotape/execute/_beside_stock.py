"""Results that an open `tf.GradientTape` must not take for more than they are.

What runs inside a `tf.recompute_grad` is recorded here, but hidden from stock tapes. To an outer one, a derivative that
was computed from these values would depend on too little. So the result is recorded there as depending on everything,
with a backward function that raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrotape._types import Cotangent, Vjp
from retrotape.errors import UnseenByStockTapeError
from retrotape.execute._plan import Plan
from retrotape.ir import LEAF
from retrotape.record import Trace
from retrotape.tf import core
from retrotape.tf.core import tf
from retrotape.tf.stock import stop_stock_tapes


def must_refuse(trace: Trace, plan: Plan) -> bool:
    """Say whether a stock tape is open that has not seen all that a plan passes."""
    return core.stock_tape_listens() and not trace.facts.recomputed.isdisjoint(plan.indices)


def hidden(vjp: Vjp) -> Vjp:
    """Let no stock tape record how cotangents are computed."""

    def alone(index: int, grads: list[Cotangent | None], plan: Plan) -> Sequence[Cotangent | None]:
        with stop_stock_tapes():
            return vjp(index, grads, plan)

    return alone


def refusing(trace: Trace, plan: Plan, seeds: Sequence[Any]) -> Callable[[Cotangent], Cotangent]:
    """Return what makes of a cotangent one whose derivative on a stock tape raises."""
    producers, values, histories = trace.program.producers, trace.values, trace.facts.history_of
    leaves = {var for index in plan.indices for var in plan.eqns[index].inputs if producers[var] == LEAF}
    used = [histories[var].handle if var in histories else values.get(var) for var in sorted(leaves)]
    inputs = [tensor for tensor in (*used, *seeds) if isinstance(tensor, core.EagerTensor)]

    def refuse(*_: Any) -> Any:
        raise UnseenByStockTapeError

    def finish(cotangent: Cotangent) -> Cotangent:
        if isinstance(cotangent, tf.IndexedSlices):
            return tf.IndexedSlices(finish(cotangent.values), cotangent.indices, cotangent.dense_shape)
        with stop_stock_tapes():
            result = tf.identity(cotangent)
        core.record.record_operation("gradient through recompute_grad", [result], inputs, refuse)
        return result

    return finish
