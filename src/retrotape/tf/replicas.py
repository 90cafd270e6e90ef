"""Replicas of a `tf.distribute.Strategy`: their threads, synchronization and components of variables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import lru_cache
from typing import Any

from retrotape._types import Tensor
from retrotape.errors import ReplicaError
from retrotape.tf.after_replicas import AfterReplica
from retrotape.tf.closures import values_in
from retrotape.tf.core import (
    DistributedValues,
    DistributedVariable,
    Mirrored,
    SyncOnReadVariable,
    aggregate,
    context,
    cross_device_ops,
    distribute_lib,
    identity_of,
    mirrored_run,
    ops,
    tf,
)
from retrotape.tf.hook_table import add_hooks, original
from retrotape.tf.hooks_ops import thread

_Threaded = mirrored_run._MirroredReplicaContext
_Thread = mirrored_run._MirroredReplicaThread
_Coordinator = tf.distribute.coordinator.ClusterCoordinator
_Collective = cross_device_ops.CollectiveAllReduce


# ---------------------------------------------------------------------- variables


def handles_of(variable: Any) -> list[Tensor]:
    """Return the handles of a variable: for a distributed one, one per device; inside a replica, its own."""
    if not isinstance(variable, DistributedVariable):
        return [variable.handle]
    return [handle_of(variable)] if _inside_replica() else [part.handle for part in variable._values]


def _inside_replica() -> bool:
    replica = tf.distribute.get_replica_context()
    return replica is not None and replica.strategy.num_replicas_in_sync > 1


def values_of(value: Any) -> list[Any]:
    """Return the values of a distributed value, one per replica; for any other value, itself."""
    return list(value._values) if isinstance(value, DistributedValues) else [value]


def differs_by_replica(variable: Any) -> bool:
    """Return whether a variable may have a different value on each replica, aggregated on read."""
    return isinstance(variable, SyncOnReadVariable) and len(variable._values) > 1


def part_number(whole: Any, handle: Tensor) -> int:
    """Return which part of a distributed variable a handle belongs to, in the order of the replicas."""
    return [identity_of(part.handle) for part in whole._values].index(identity_of(handle))


def handle_of(variable: Any) -> Tensor:
    """Return the handle of a variable; for a distributed one, that of the current replica, or else the first."""
    if not isinstance(variable, DistributedVariable):
        return variable.handle
    return variable.handle if _inside_replica() else variable._values[0].handle


# ---------------------------------------------------------------------- devices


def device_rank(device: str) -> tuple[Any, ...]:
    """Return the key by which TensorFlow orders the members of a group, whatever the order of the replicas."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.job or "", spec.replica or 0, spec.task or 0, spec.device_type or "", spec.device_index or 0


def on_device(device: str) -> AbstractContextManager[Any]:
    """Place ops on a device of this process; where the name is not one, TensorFlow chooses."""
    name = _local_name(device) if device else None
    return nullcontext() if name is None else tf.device(name)


@lru_cache(256)
def _local_name(device: str) -> str | None:
    spec = tf.DeviceSpec.from_string(device)
    name = f"/device:{spec.device_type}:{spec.device_index}"
    return name if any(one.name.endswith(name) for one in tf.config.list_logical_devices()) else None


def spans_processes() -> bool:
    """Return whether groups of replicas may have members in other processes."""
    return context.context()._collective_ops_server_def is not None


# ---------------------------------------------------------------------- backward functions


_REDUCTIONS = ("ReplicaContextBase.all_reduce.", "ReplicaContext.all_gather.")


def is_elsewhere(rule: Any) -> bool:
    """Return whether a gradient function is that of an `all_reduce` or `all_gather` outside the current replica.

    Outside the replicas, the operations of all replicas are recorded, and the reduction is differentiated through them.
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
    """Return whether a node of a function has the gradient of an `all_reduce` or `all_gather`."""
    name = node.attr["_gradient_op_type"].s.decode()
    return name in ops.gradient_registry.list() and is_elsewhere(ops.gradient_registry.lookup(name))


def in_its_replica(backward: Any, where: Callable[[], str]) -> AbstractContextManager[Any]:
    """Return the replica context that a backward function has to run in, or raise if it cannot be entered."""
    inside = (value for value in values_in(backward) if isinstance(value, distribute_lib.ReplicaContextBase))
    found = next((value for value in inside if not isinstance(value, AfterReplica)), None)
    if found is None or tf.distribute.get_replica_context() is found:
        return nullcontext()
    count = found.strategy.num_replicas_in_sync
    if count == 1 and not isinstance(found, _Threaded):  # a threaded context can be entered only on its thread
        return found
    raise ReplicaError.on_path(
        f"an all_reduce or all_gather of {count} replica{'s'[: count > 1]} (at {where()}), outside its replica"
    )


# ---------------------------------------------------------------------- threads


def _record_state(self: Any) -> None:
    original[_Thread, "record_thread_local_eager_context_state"](self)
    self._retrotape = thread.listener, thread.graph_sessions


def _restore_state(self: Any) -> None:
    original[_Thread, "restore_thread_local_eager_context_state"](self)
    data = context.context()._thread_local_data
    data.op_callbacks = list(data.op_callbacks)  # not the list of the thread that called `run`
    listener, thread.graph_sessions = getattr(self, "_retrotape", (None, ()))
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
    """Mark the operations of other replicas on tapes inside a replica: all replicas add to one graph."""
    _, inherited = getattr(threading.current_thread(), "_retrotape", (None, ()))
    own = [session for session in thread.graph_sessions if not any(session is other for other in inherited)]
    with ExitStack() as stack:
        for session in own:
            stack.enter_context(session.merging())
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
    # A single replica on the thread that called `run` reduces with ordinary ops, which are recorded.
    single = replica.strategy.num_replicas_in_sync == 1 and not isinstance(replica, _Threaded)
    return listener.on_reduction(single, not sparse, run)


# ---------------------------------------------------------------------- communication


def _in_order(reducer: Any, value: Any) -> list[Any]:
    """Return the values of a group, in the order in which TensorFlow gathers them."""
    by_device = sorted(zip(reducer._devices, values_of(value), strict=True), key=lambda pair: device_rank(pair[0]))
    return [one for _, one in by_device]


def _reduce_across(self: Any, reduce_op: Any, values: Any, options: Any) -> Any:
    def run() -> Any:
        return original[_Collective, "_all_reduce_per_replica_values"](self, reduce_op, values, options)

    def compute(given: Sequence[Any]) -> Any:
        total = aggregate(given)
        return total if reduce_op.value == "SUM" else divided(total, self._group_size)

    if not tf.executing_eagerly():
        return _combined(self, values, compute) if _computes(self) else run()
    listener = thread.listener
    if listener is None:
        return run()
    return listener.on_all_reduce(reduce_op.value, self._group_size, [_in_order(self, one) for one in values], run)


def _gather_across(self: Any, values: Any, axis: Any, options: Any) -> Any:
    def run() -> Any:
        return original[_Collective, "_batch_all_gather"](self, values, axis, options)

    if not tf.executing_eagerly():
        return _combined(self, values, lambda given: tf.concat(given, axis)) if _computes(self) else run()
    listener = thread.listener
    if listener is None:
        return run()
    return listener.on_all_gather(int(axis), self._group_size, [_in_order(self, one) for one in values], run)


def divided(total: Any, count: int) -> Any:
    """Return a mean, given the sum."""
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(divided(total.values, count), total.indices, total.dense_shape)
    return total / tf.cast(count, total.dtype)


def _computes(reducer: Any) -> bool:
    """Return whether a reduction in a graph is computed with ordinary ops, which have gradients.

    That is so if a tape around the replicas records the graph, and all of them are in this process.
    """
    return bool(thread.graph_sessions) and reducer._group_size == len(reducer._devices)


def _combined(reducer: Any, values: Sequence[Any], compute: Callable[[Sequence[Any]], Any]) -> list[Any]:
    """Return what a reduction of each of `values` returns: the same for all replicas, copied to each device."""
    results = []
    for value in values:
        with tf.device(reducer._devices[0]):
            made = compute(_in_order(reducer, value))
        copies = [_copied(made, device) for device in reducer._devices]
        results.append(copies[0] if len(copies) == 1 else Mirrored(copies))
    return results


def _copied(value: Any, device: str) -> Any:
    with tf.device(device):
        return tf.nest.map_structure(tf.identity, value, expand_composites=True)


def _schedule(self: Any, fn: Any, args: Any = None, kwargs: Any = None) -> Any:
    listener = thread.listener
    if listener is not None and listener.recording():
        raise ReplicaError(
            "A function was scheduled while a tape records: workers run it, and the tape does not record them",
            "Open the tape inside the scheduled function: `@tf.function def step(x): with rt.Tape() as tape: ...; "
            "return tape.gradient(...)`, then `coordinator.schedule(step, ...)`; or pause the tape around the call: "
            "`with tape.stop_recording(): ...`.",
        )
    return original[_Coordinator, "schedule"](self, fn, args, kwargs)


add_hooks(
    (_Thread, "record_thread_local_eager_context_state", _record_state),
    (_Thread, "restore_thread_local_eager_context_state", _restore_state),
    (_Threaded, "_merge_call", _merge_call),
    (distribute_lib.ReplicaContextBase, "all_reduce", _all_reduce),
    (distribute_lib.ReplicaContext, "all_gather", _all_gather),
    (_Collective, "_all_reduce_per_replica_values", _reduce_across),
    (_Collective, "_batch_all_gather", _gather_across),
    (_Coordinator, "schedule", _schedule),
)
