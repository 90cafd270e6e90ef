"""What is computed from columns runs as one function of TensorFlow in eager code, made once for each structure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from retrotape._locks import new_lock
from retrotape._types import Tensor
from retrotape.aggregate._columns import Column, ColumnSpec
from retrotape.tf import hook_table, threads
from retrotape.tf.core import concrete, stock_tape_listens, tf
from retrotape.tf.functions import call_flat
from retrotape.tf.lowering import call_unrecorded

_MOST = 256  # functions, before those that were not used for the longest time are dropped
_functions: OrderedDict[Hashable, Any] = OrderedDict()
_lock = new_lock()

Compute = Callable[[list[Column], list[Tensor]], Any]


def run(compute: Compute, kind: Hashable | None, columns: Sequence[Column], others: Sequence[Tensor] = ()) -> Any:
    """Return what `compute` returns for columns and other tensors.

    Args:
      compute: Computes it with ops that work in graphs; it must depend on nothing but its arguments and `kind`.
      kind: What it computes; equal for equal functions. None if that is not known: then it runs op by op, as what it
        refers to may have changed since the last time.
      columns: The columns.
      others: The other tensors.
    """
    if kind is None or not tf.executing_eagerly() or threads.gone:
        return compute(list(columns), list(others))
    flat = [*(tensor for column in columns for tensor in column.tensors()), *others]
    specs = tuple(column.spec() for column in columns)
    key = kind, specs, tuple((tuple(one.shape), one.dtype) for one in others)
    function = _find(key) or _make(key, compute, specs, others)
    if is_recorded():
        return call_flat(function, flat, function.captured_inputs)
    return call_unrecorded(function, flat)


def is_recorded() -> bool:
    """Return whether a tape, ours or TensorFlow's, records what runs now."""
    return bool(hook_table.users) or stock_tape_listens()


def _find(key: Hashable) -> Any:
    with _lock:
        function = _functions.get(key)
        if function is not None:
            _functions.move_to_end(key)
        return function


def _make(key: Hashable, compute: Compute, specs: Sequence[ColumnSpec], others: Sequence[Tensor]) -> Any:
    def body(*tensors: Tensor) -> Any:
        rest = iter(tensors)
        columns = [spec.column(rest) for spec in specs]
        return compute(columns, list(rest))

    arguments = [one for spec in specs for one in spec.tensor_specs()]
    arguments += [tf.TensorSpec(one.shape, one.dtype) for one in others]
    function = concrete(body, arguments)
    with _lock:
        _functions[key] = function
        while len(_functions) > _MOST:
            _functions.popitem(last=False)
    return function
