"""Recording of the replicas of a `tf.distribute.Strategy`.

Replicas take turns: each runs on its own thread until the next synchronization point, while the thread that called
`run` waits. So the tapes that are open on that thread record all replicas, in execution order. A tape that is opened
inside a replica records only that replica.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from retrotape._types import Tensor
from retrotape.errors import ReplicaError
from retrotape.ir import ALL_GATHER, ALL_REDUCE
from retrotape.record._event import Event
from retrotape.record._frames import here
from retrotape.record._histories import same
from retrotape.record._recorder import Recorder
from retrotape.record._variables import Variables
from retrotape.tf import core, hooks, replicas
from retrotape.tf.after_replicas import after_its_replica
from retrotape.tf.core import identity_of, tf
from retrotape.tf.replicas import values_of
from retrotape.tf.scopes import setting
from retrotape.tf.stock import stop_stock_tapes


class Replicas(Variables):
    """The recorders open on one thread, which may be that of a replica."""

    place: Any

    def __init__(self) -> None:
        super().__init__()
        self._parent: Replicas | None = None  # the stack of the thread that called `run`
        self._outer: list[Recorder] = []  # the recorders open there
        self._reductions = 0  # running calls of `all_reduce` and `all_gather`
        self._single = 0  # those of a single replica, whose recorded ops suffice

    def inherit(self, parent: Replicas) -> None:
        """Record for the tapes open on the thread that called `run`."""
        parent.dispatch()
        self._parent, self._outer = parent, list(parent._open)
        self._open = list(parent._open)
        self._activate(list(parent.active))
        # Both threads share what these recorders know about variables.
        self._known, self._seen = parent._known, parent._seen
        self._known.clear()

    def _is_attached(self) -> bool:
        return self._parent is not None or super()._is_attached()

    def _reset(self) -> None:
        self._reductions = self._single = 0

    def _own(self) -> list[Recorder]:
        return [one for one in self.active if not any(one is other for other in self._outer)]

    @abstractmethod
    def flush(self) -> None:
        """Record all pending events."""

    @abstractmethod
    def next_time(self) -> int:
        """Return a time after everything that has run."""

    def on_merge_call(self, given: Sequence[Any], run: Callable[[], Any]) -> Any:
        """Run a merge call: the other replicas run, then the function of all their values."""
        self.dispatch()
        since = hooks.now()
        result = run()
        if self._parent is not None:
            self._parent.dispatch()
        self._known.clear()
        own = self._own()
        for recorder in [one for one in self._open if not any(one is other for other in self._outer)]:
            for identity, when in list(hooks.writes.items()):
                if when > since:
                    recorder.mark_written(identity)
        if own and not self._reductions:
            self._refuse(own, "a merge_call", given, tf.nest.flatten(result, expand_composites=True))
        return result

    def on_reduction(self, single: bool, has_backward: bool, run: Callable[[], Any]) -> Any:
        """Run an `all_reduce` or `all_gather` of a replica, which may record its own backward function."""
        with setting(self, _reductions=self._reductions + has_backward, _single=self._single + single):
            return run()

    def for_backward(self) -> list[Recorder]:
        """Return the recorders that get a backward function: for a reduction, only those opened in this replica.

        The others record the values of all replicas and the reduction as an op.
        """
        if self._single:
            return []
        return self._own() if self._reductions and self._outer else self.active

    def for_custom(self, backward: Callable) -> Iterator[tuple[Recorder, Callable]]:
        """Yield the recorders that get a custom gradient, each with its backward function.

        Those that were opened outside of this replica run it when the replica has ended.
        """
        later = backward if self._parent is None else after_its_replica(backward)
        for recorder in self.for_backward():
            yield recorder, later if any(recorder is other for other in self._outer) else backward

    def on_all_reduce(self, op: str, size: int, values: Sequence[list[Any]], run: Callable[[], Any]) -> Any:
        """Run an all-reduce and record it as a sum for each of `values`, which are those of the local replicas."""
        return self._across(values, run, lambda *each: self._write_reduction(op, size, *each))

    def on_all_gather(self, axis: int, size: int, values: Sequence[list[Any]], run: Callable[[], Any]) -> Any:
        """Run an all-gather and record it as a concatenation for each of `values`, those of the local replicas."""
        return self._across(values, run, lambda *each: self._write_concatenation(axis, size, *each))

    def on_collective(
        self, kind: str, size: int, given: Sequence[Tensor], run: Callable[[], Sequence[Tensor]]
    ) -> Sequence[Tensor]:
        """Run and record a collective of `size` replicas, of which those with the values `given` are local."""
        with self.unrecorded(), stop_stock_tapes():
            made = list(run())
        self.flush()
        if kind == "GATHER":
            self._write_concatenation(0, size, list(given), made)
        elif kind in ("SUM", "MEAN"):
            self._write_sum(kind, size, list(given), made)
        else:
            self._refuse(self.active, f"{kind} in a tf.function", given, made)
        what = f"{kind} of {size} replicas in several processes"
        core.record_on_stock_tapes(what, [one for one in made if one is not None], given, _refusal(what))
        return made

    def _across(self, values: Sequence[list[Any]], run: Callable[[], Any], write: Callable[..., None]) -> Any:
        values = [[_as_value(one) for one in some] for some in values]
        with self.unrecorded():
            results = run()
        self.flush()
        for given, result in zip(values, results, strict=True):
            write(given, values_of(result))
        return results

    def _write_reduction(self, op: str, size: int, given: list[Any], made: list[Any]) -> None:
        if not any(isinstance(one, tf.IndexedSlices) for one in (*given, *made)):
            self._write_sum(op, size, given, made)
            return
        gathered = self._gathered_values(op, size, given, made)
        if gathered is None:
            self._refuse(self.active, "an all-reduce of tf.IndexedSlices", _flat(given), _flat(made))
        else:
            self._write_slices(op, size, given, gathered, made)

    def _gathered_values(self, op: str, size: int, given: list[Any], made: list[Any]) -> Tensor | None:
        """Return the values of all slices, if they were reduced by concatenation, as TensorFlow currently does."""
        if not all(isinstance(one, tf.IndexedSlices) for one in (*given, *made)):
            return None
        with self.unrecorded():
            if size > len(given):  # those of other workers are known only after the division of a mean
                values = made[0].values
                return values * tf.cast(size, values.dtype) if op == "MEAN" else values
            total = core.aggregate(given)
            wanted = total if op == "SUM" else replicas.divided(total, size)
            same = isinstance(wanted, tf.IndexedSlices) and all(_equal(wanted, one) for one in made)
            return total.values if same else None

    def _write_slices(self, op: str, size: int, given: list[Any], gathered: Tensor, made: list[Any]) -> None:
        """Record that slices were concatenated, and divided for a mean."""
        values = [one.values for one in made]
        self._write_concatenation(0, size, [one.indices for one in given], [one.indices for one in made])
        if op == "SUM":
            self._write_concatenation(0, size, [one.values for one in given], values)
            return
        self._write_concatenation(0, size, [one.values for one in given], [gathered])
        with self.unrecorded():
            count = tf.constant(size, gathered.dtype)
        self._write("RealDiv", (gathered, count), ("T", gathered.dtype.as_datatype_enum), values[0])
        self._alias_copies(values)

    def _write_sum(self, op: str, size: int, given: list[Tensor], made: list[Tensor]) -> None:
        if made[0].dtype != given[0].dtype:  # the mean of integers
            self._refuse(self.active, "an all-reduce of integers", given, made)
            return
        if size > len(given):
            self._write(ALL_REDUCE, given, (("reduction", op.encode()), ("replicas", size)), made[0])
            self._alias_copies(made)
            return
        dtype, total = given[0].dtype, made[0]
        with self.unrecorded():
            if op == "MEAN":
                total, count = tf.add_n(given), tf.constant(size, dtype)
        kind = dtype.as_datatype_enum
        self._write("AddN", given, ("N", len(given), "T", kind), total)
        if op == "MEAN":
            self._write("RealDiv", (total, count), ("T", kind), made[0])
        self._alias_copies(made)

    def _write_concatenation(self, axis: int, size: int, given: list[Tensor], made: list[Tensor]) -> None:
        if size > len(given):
            self._write(ALL_GATHER, given, (("axis", axis), ("replicas", size)), made[0])
            self._alias_copies(made)
            return
        with self.unrecorded():
            where = tf.constant(axis)
        kind = given[0].dtype.as_datatype_enum
        if len(given) == 1:  # the gradient of ConcatV2 fails there
            self._write("Identity", given, ("T", kind), made[0])
        else:
            attrs = ("N", len(given), "T", kind, "Tidx", tf.int32.as_datatype_enum)
            self._write("ConcatV2", (*given, where), attrs, made[0])
        self._alias_copies(made)

    def _write(self, op: str, inputs: Sequence[Tensor], attrs: Any, output: Tensor) -> None:
        place, time = self.place or here(4), self.next_time()
        for recorder in self.active:
            recorder.record([Event(op, tuple(inputs), attrs, (output,), place, False, time)])

    def _alias_copies(self, tensors: list[Tensor]) -> None:
        """Map the copies on all devices to one var."""
        for recorder in self.active:
            for other in tensors[1:]:
                recorder.tensors.alias(identity_of(other), recorder.var_of(tensors[0]))

    def _refuse(self, recorders: Sequence[Recorder], what: str, given: Sequence[Any], made: Sequence[Any]) -> None:
        """Record a backward function that raises, from `made` to `given`."""
        inputs, outputs = ([one for one in some if isinstance(one, core.EagerTensor)] for some in (given, made))
        if not inputs or not outputs:
            return
        place = self.place or here(4)
        self.flush()
        time = self.next_time()
        for recorder in recorders:
            recorder.append_backward(what, outputs, inputs, _refusal(what), place, time)


def _refusal(what: str) -> Callable[..., NoReturn]:
    """Return a backward function that raises."""

    def backward(*_: Any) -> NoReturn:
        raise ReplicaError.on_path(what)

    return backward


def _equal(left: Any, right: Any) -> bool:
    return isinstance(right, tf.IndexedSlices) and all(
        same(getattr(left, part), getattr(right, part)) for part in ("values", "indices")
    )


def _flat(values: Sequence[Any]) -> list[Any]:
    return tf.nest.flatten(list(values), expand_composites=True)


def _as_value(value: Any) -> Any:
    """Return a tensor for a variable that is reduced itself, as for a Keras metric: this reads it, and is recorded."""
    return value if isinstance(value, (tf.Tensor, tf.IndexedSlices)) else tf.convert_to_tensor(value)
