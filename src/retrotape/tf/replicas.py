"""Replicas of a `tf.distribute.Strategy`: their threads, where they meet, and the parts of their variables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from retrotape._types import Tensor
from retrotape.errors import ReplicaError
from retrotape.tf.closures import values_in
from retrotape.tf.core import (
    DistributedVariable,
    SyncOnReadVariable,
    context,
    cross_device_ops,
    distribute_lib,
    mirrored_run,
    ops,
    tf,
)
from retrotape.tf.hook_table import add_hooks, original
from retrotape.tf.hooks_ops import thread

_Threaded = mirrored_run._MirroredReplicaContext
_Thread = mirrored_run._MirroredReplicaThread
_Collective = cross_device_ops.CollectiveAllReduce


# ---------------------------------------------------------------------- variables


def handles_of(variable: Any) -> list[Tensor]:
    """Return the handles of a variable: where it consists of one for each device, all; inside a replica, its own."""
    if not isinstance(variable, DistributedVariable):
        return [variable.handle]
    return [handle_of(variable)] if _inside_replica() else [part.handle for part in variable._values]


def _inside_replica() -> bool:
    replica = tf.distribute.get_replica_context()
    return replica is not None and replica.strategy.num_replicas_in_sync > 1


def values_of(value: Any) -> list[Any]:
    """Return the values that a value of a strategy has, one for each replica; of another value, itself."""
    return list(getattr(value, "_values", None) or [value])


def differs_by_replica(variable: Any) -> bool:
    """Return whether each replica may have a value of its own of a variable, which are aggregated when it is read."""
    return isinstance(variable, SyncOnReadVariable) and len(variable._values) > 1


def handle_of(variable: Any) -> Tensor:
    """Return the handle of a variable; of one that consists of several, that of the replica that asks, or the first."""
    if not isinstance(variable, DistributedVariable):
        return variable.handle
    return variable.handle if _inside_replica() else variable._values[0].handle


# ---------------------------------------------------------------------- backward functions


_REDUCTIONS = ("ReplicaContextBase.all_reduce.", "ReplicaContext.all_gather.")


def is_elsewhere(rule: Any) -> bool:
    """Return whether a gradient function is that of an `all_reduce` or `all_gather`, and not of the replica that asks.

    Who asks outside has the operations of all replicas, and those say how the reduction goes back.
    """
    found = list(values_in(rule))
    reduces = any(
        getattr(value, "__module__", None) == distribute_lib.__name__
        and getattr(value, "__qualname__", "").startswith(_REDUCTIONS)
        for value in found
    )
    here = tf.distribute.get_replica_context()
    return reduces and not any(value is here for value in found)


def is_reduced(node: Any) -> bool:
    """Return whether a node of a function is the end of an `all_reduce` or `all_gather`."""
    name = node.attr["_gradient_op_type"].s.decode()
    return name in ops.gradient_registry.list() and is_elsewhere(ops.gradient_registry.lookup(name))


def in_its_replica(backward: Any, where: Callable[[], str]) -> AbstractContextManager[Any]:
    """Let a backward function that communicates with other replicas run where it was made, or raise."""
    found = next((value for value in values_in(backward) if isinstance(value, distribute_lib.ReplicaContextBase)), None)
    if found is None or tf.distribute.get_replica_context() is found:
        return nullcontext()
    count = found.strategy.num_replicas_in_sync
    if count == 1 and not isinstance(found, _Threaded):  # that of a thread can be entered only there
        return found
    raise ReplicaError.on_path(
        f"an all_reduce or all_gather of {count} replica{'s'[: count > 1]} (at {where()}), outside of its replica"
    )


# ---------------------------------------------------------------------- threads


def _record_state(self: Any) -> None:
    original[_Thread, "record_thread_local_eager_context_state"](self)
    self._retrotape = thread.listener, thread.graph_logs


def _restore_state(self: Any) -> None:
    original[_Thread, "restore_thread_local_eager_context_state"](self)
    data = context.context()._thread_local_data
    data.op_callbacks = list(data.op_callbacks)  # not the list of the thread that called `run`
    listener, thread.graph_logs = getattr(self, "_retrotape", (None, ()))
    if listener is not None:
        thread.listener = mine = listener.in_replica()
        data.op_callbacks = [mine.on_op if one == listener.on_op else one for one in data.op_callbacks]


def _merge_call(self: Any, fn: Any, args: Any, kwargs: Any) -> Any:
    def run() -> Any:
        return original[_Threaded, "_merge_call"](self, fn, args, kwargs)

    if not tf.executing_eagerly():
        return _merge_in_graph(run)
    listener = thread.listener
    if listener is None:
        return run()
    given = [*tf.nest.flatten((args, kwargs), expand_composites=True), *values_in(fn)]
    return listener.on_merge_call(given, run)


def _merge_in_graph(run: Callable[[], Any]) -> Any:
    """Tell the tapes inside of a replica which operations are not its own: all replicas add to one graph."""
    _, inherited = getattr(threading.current_thread(), "_retrotape", (None, ()))
    own = [log for log in thread.graph_logs if not any(log is other for other in inherited)]
    with ExitStack() as stack:
        for log in own:
            stack.enter_context(log.merging())
        return run()


def _all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
    run = original[distribute_lib.ReplicaContextBase, "all_reduce"]
    return _reducing(self, value, lambda: run(self, reduce_op, value, options))


def _all_gather(self: Any, value: Any, axis: Any, options: Any = None) -> Any:
    run = original[distribute_lib.ReplicaContext, "all_gather"]
    return _reducing(self, value, lambda: run(self, value, axis, options))


def _reducing(replica: Any, value: Any, run: Callable[[], Any]) -> Any:
    listener = thread.listener
    if listener is None or not tf.executing_eagerly():
        return run()
    sparse = any(isinstance(item, tf.IndexedSlices) for item in tf.nest.flatten(value))
    # One replica that runs on the thread that called `run`: what it does to reduce are ops like any others.
    alone = replica.strategy.num_replicas_in_sync == 1 and not isinstance(replica, _Threaded)
    return listener.on_reduction(alone, not sparse, run)


# ---------------------------------------------------------------------- communication


def _reduce_across(self: Any, reduce_op: Any, values: Any, options: Any) -> Any:
    def run() -> Any:
        return original[_Collective, "_all_reduce_per_replica_values"](self, reduce_op, values, options)

    listener = thread.listener
    if listener is None or not tf.executing_eagerly():
        return run()
    return listener.on_all_reduce(reduce_op.value, self._group_size, values, run)


def _gather_across(self: Any, values: Any, axis: Any, options: Any) -> Any:
    def run() -> Any:
        return original[_Collective, "_batch_all_gather"](self, values, axis, options)

    listener = thread.listener
    if listener is None or not tf.executing_eagerly():
        return run()
    return listener.on_all_gather(int(axis), self._group_size, values, run)


add_hooks(
    (_Thread, "record_thread_local_eager_context_state", _record_state),
    (_Thread, "restore_thread_local_eager_context_state", _restore_state),
    (_Threaded, "_merge_call", _merge_call),
    (distribute_lib.ReplicaContextBase, "all_reduce", _all_reduce),
    (distribute_lib.ReplicaContext, "all_gather", _all_gather),
    (_Collective, "_all_reduce_per_replica_values", _reduce_across),
    (_Collective, "_batch_all_gather", _gather_across),
)
