"""Replicas of a `tf.distribute.Strategy`: their threads, where they meet, and the parts of their variables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from retrotape import _hooks
from retrotape._closures import values_in
from retrotape._hooks import _original, _thread
from retrotape._tf import context, cross_device_ops, distribute_lib, distribute_values, mirrored_run, tf
from retrotape.errors import ReplicaError

Tensor = Any
_Collective = cross_device_ops.CollectiveAllReduce


# ---------------------------------------------------------------------- variables


def parts_of(variable: Any) -> tuple[Any, ...]:
    """Return the variables on single devices that a variable of a strategy consists of; of any other, itself."""
    if isinstance(variable, distribute_values.DistributedVariable):
        return tuple(variable._values)
    return (variable,)


def differs_by_replica(variable: Any) -> bool:
    """Say whether each replica may have a value of its own of a variable, which are aggregated when it is read."""
    return isinstance(variable, distribute_values.SyncOnReadVariable) and len(variable._values) > 1


def handle_of(variable: Any) -> Tensor:
    """Return the handle of a variable; of one that consists of several, that of the replica that asks, or the first."""
    if not isinstance(variable, distribute_values.DistributedVariable):
        return variable.handle
    replica = tf.distribute.get_replica_context()
    number = replica.replica_id_in_sync_group if replica is not None and replica.strategy.num_replicas_in_sync > 1 else 0
    parts = variable._values
    return parts[number if isinstance(number, int) and number < len(parts) else 0].handle


# ---------------------------------------------------------------------- backward functions


def reduces(rule: Any) -> bool:
    """Say whether a gradient function is that of a `ReplicaContext.all_reduce`: its ops say the same."""
    return any(
        getattr(value, "__module__", None) == distribute_lib.__name__
        and getattr(value, "__qualname__", "").startswith("ReplicaContextBase.all_reduce.")
        for value in values_in(rule)
    )


def in_its_replica(backward: Any, where: Callable[[], str]) -> AbstractContextManager[Any]:
    """Let a backward function that communicates with other replicas run where it was made, or raise."""
    found = next((value for value in values_in(backward) if isinstance(value, distribute_lib.ReplicaContextBase)), None)
    if found is None or tf.distribute.get_replica_context() is found:
        return nullcontext()
    count = found.strategy.num_replicas_in_sync
    if count == 1:
        return found
    raise ReplicaError(
        f"an all_reduce or all_gather of {count} replicas (at {where()}), recorded by a tape inside of one of them"
    )


# ---------------------------------------------------------------------- threads


def _record_state(self: Any) -> None:
    _original["record_thread_local_eager_context_state"](self)
    self._retrotape = _thread.listener, _thread.graph_logs


def _restore_state(self: Any) -> None:
    _original["restore_thread_local_eager_context_state"](self)
    data = context.context()._thread_local_data
    data.op_callbacks = list(data.op_callbacks)  # not the list of the thread that called `run`
    listener, _thread.graph_logs = getattr(self, "_retrotape", (None, ()))
    if listener is not None:
        _thread.listener = mine = listener.in_replica()
        data.op_callbacks = [mine.on_op if one == listener.on_op else one for one in data.op_callbacks]


def _merge_call(self: Any, fn: Any, args: Any, kwargs: Any) -> Any:
    def run() -> Any:
        return _original["_merge_call"](self, fn, args, kwargs)

    listener = _thread.listener
    if listener is None or not tf.executing_eagerly():
        return run()
    given = [*tf.nest.flatten((args, kwargs), expand_composites=True), *values_in(fn)]
    return listener.on_merge_call(given, run)


def _all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
    return _reducing(self, value, lambda: _original["all_reduce"](self, reduce_op, value, options))


def _all_gather(self: Any, value: Any, axis: Any, options: Any = None) -> Any:
    return _reducing(self, value, lambda: _original["all_gather"](self, value, axis, options))


def _reducing(replica: Any, value: Any, run: Callable[[], Any]) -> Any:
    listener = _thread.listener
    if listener is None or not tf.executing_eagerly() or replica.strategy.num_replicas_in_sync == 1:
        return run()
    sparse = any(isinstance(item, tf.IndexedSlices) for item in tf.nest.flatten(value))
    return listener.on_reduction(has_backward=not sparse, run=run)


# ---------------------------------------------------------------------- communication


def _reduce_across(self: Any, reduce_op: Any, values: Any, options: Any) -> Any:
    def run() -> Any:
        return _original["_all_reduce_per_replica_values"](self, reduce_op, values, options)

    listener = _thread.listener
    if listener is None or not tf.executing_eagerly():
        return run()
    return listener.on_all_reduce(reduce_op.value, self._group_size, values, run)


def _gather_across(self: Any, values: Any, axis: Any, options: Any) -> Any:
    def run() -> Any:
        return _original["_batch_all_gather"](self, values, axis, options)

    listener = _thread.listener
    if listener is None or not tf.executing_eagerly():
        return run()
    return listener.on_all_gather(int(axis), self._group_size, values, run)


_hooks.add_hooks(
    (mirrored_run._MirroredReplicaThread, "record_thread_local_eager_context_state", _record_state),
    (mirrored_run._MirroredReplicaThread, "restore_thread_local_eager_context_state", _restore_state),
    (mirrored_run._MirroredReplicaContext, "_merge_call", _merge_call),
    (distribute_lib.ReplicaContextBase, "all_reduce", _all_reduce),
    (distribute_lib.ReplicaContext, "all_gather", _all_gather),
    (_Collective, "_all_reduce_per_replica_values", _reduce_across),
    (_Collective, "_batch_all_gather", _gather_across),
)
