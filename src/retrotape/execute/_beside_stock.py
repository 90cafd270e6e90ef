"""Guards results against being differentiated by an open `tf.GradientTape` that did not see all of their inputs.

Ops inside a `tf.recompute_grad` are recorded here, but hidden from stock tapes. In a graph, TensorFlow adds outputs to
a loop, a branch or a call that it differentiates, which a stock tape has not seen either. An outer stock tape would
miss dependencies of a derivative computed from these values, and silently return a wrong second derivative. So the
result is recorded there as depending on every input, with a backward function that raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrotape._types import Cotangent, Vjp
from retrotape.errors import UnseenByStockTapeError
from retrotape.execute._plan import Plan
from retrotape.ir import LEAF
from retrotape.record import CHANGING, Trace
from retrotape.tf import core
from retrotape.tf.core import tf
from retrotape.tf.stock import stop_stock_tapes


def must_refuse(trace: Trace, plan: Plan) -> bool:
    """Return whether an open stock tape has not seen some of the equations of a plan."""
    if not core.stock_tape_listens():
        return False
    # What a forward accumulator makes of a loop or a call is right: tangents are computed as the ops are added.
    is_graph = trace.symbolic and not core.accumulating()
    changes = is_graph and any(plan.eqns[index].op.endswith(CHANGING) for index in plan.indices)
    return changes or not trace.facts.recomputed.isdisjoint(plan.indices)


def hidden(vjp: Vjp) -> Vjp:
    """Wrap `vjp` so that no stock tape records how cotangents are computed."""

    def alone(index: int, grads: list[Cotangent | None], plan: Plan) -> Sequence[Cotangent | None]:
        with stop_stock_tapes():
            return vjp(index, grads, plan)

    return alone


def refusing(trace: Trace, plan: Plan, seeds: Sequence[Any]) -> Callable[[Cotangent], Cotangent]:
    """Return a function that wraps a cotangent so that differentiating it on a stock tape raises."""
    producers, values, histories = trace.program.producers, trace.values, trace.facts.history_of
    leaves = {var for index in plan.indices for var in plan.eqns[index].inputs if producers[var] == LEAF}
    used = [histories[var].handle if var in histories else values.get(var) for var in sorted(leaves)]
    inputs = [tensor for tensor in (*used, *seeds) if isinstance(tensor, tf.Tensor)]

    def refuse(*_: Any) -> Any:
        raise UnseenByStockTapeError

    def finish(cotangent: Cotangent) -> Cotangent:
        if isinstance(cotangent, tf.IndexedSlices):
            return tf.IndexedSlices(finish(cotangent.values), cotangent.indices, cotangent.dense_shape)
        with stop_stock_tapes():
            result = tf.identity(cotangent)
        core.record.record_operation("gradient of what is hidden", [result], inputs, refuse)
        return result

    return finish
