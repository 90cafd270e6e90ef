"""Backward functions of replicas, run after the replicas: what they may not do there raises.

In a backward function, `tf.distribute.get_replica_context()` would return the context of the query, in which an
`all_reduce` adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from retrotape.errors import ReplicaError
from retrotape.tf.core import tf


class AfterReplica(tf.distribute.ReplicaContext):
    """Stands for the context of a replica that has ended."""

    def _refuse(self, what: str) -> NoReturn:
        raise ReplicaError.on_path(f"a custom gradient whose backward function uses {what} of its replica")

    def merge_call(self, merge_fn: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Raise: the other replicas have ended too."""
        self._refuse("merge_call")

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> NoReturn:
        """Raise: the other replicas have ended too."""
        self._refuse("all_reduce")

    def all_gather(self, value: Any, axis: Any, options: Any = None) -> NoReturn:
        """Raise: the other replicas have ended too."""
        self._refuse("all_gather")


class _AfterSomeReplica(AfterReplica):
    """Stands for the context of a replica that is not known."""

    @property
    def replica_id_in_sync_group(self) -> Any:
        """Raise: it is not known."""
        self._refuse("replica_id_in_sync_group")


def after_its_replica(backward: Callable) -> Callable:
    """Return a backward function that was made in the current replica, for use after it."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.strategy.num_replicas_in_sync == 1:
        return backward
    context = AfterReplica(replica.strategy, replica._replica_id_in_sync_group)

    def run(*grads: Any) -> Any:
        with context:
            return backward(*grads)

    return run


def after_replicas(graph: Any, complete: bool = True) -> AbstractContextManager[Any]:
    """Return the context for user code that differentiates operations of `graph`, outside of replicas.

    A graph that is not `complete` is still being built.
    """
    if tf.distribute.has_strategy():
        return nullcontext()
    there = _known.get(graph) if complete else _has_replicas(graph)
    if there is None:
        there = _known[graph] = _has_replicas(graph) or _calls_replicas(graph)
    return _AfterSomeReplica(tf.distribute.get_strategy(), 0) if there else nullcontext()


_known: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_SECOND = "replica_1"  # TensorFlow's name scope


def _has_replicas(graph: Any) -> bool:
    """Return whether several replicas added operations to a graph, or to one that it was traced in."""
    while graph is not None:
        if any(_SECOND in operation.name.split("/") for operation in graph.get_operations()):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _calls_replicas(graph: Any) -> bool:
    """Return whether a graph calls a function in which there are several replicas."""
    inner = graph.as_graph_def().library.function
    return any(_SECOND in node.name.split("/") for function in inner for node in function.node_def)
