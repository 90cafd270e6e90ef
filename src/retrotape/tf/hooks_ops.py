"""The hooks on op execution: they observe reads and writes of variables, and may substitute past values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

from retrotape._locks import new_lock
from retrotape._types import Tensor
from retrotape.tf.core import (
    BaseVariable,
    EagerTensor,
    FallbackException,
    PlainVariable,
    context,
    eager_dtype,
    execute,
    pywrap_tfe,
    record,
    tf,
)
from retrotape.tf.hook_table import original
from retrotape.tf.listener import Listener, Past


class Thread(threading.local):
    """The state of the hooks on one thread."""

    listener: Listener | None = None
    past: Past | None = None  # past values of variables, while a backward function runs
    py_inputs: Sequence[Tensor] | None = None  # inputs of the `tf.py_function` that is starting
    graph_sessions: tuple[Any, ...] = ()
    keeps_recomputed: bool = False  # whether gradients of graphs built now ignore `tf.recompute_grad`


thread = Thread()
writes: dict[int, int] = {}  # by identity of the handle: time of the last write since the hooks were installed
_RESOURCE = tf.resource.as_datatype_enum
_clock = count(1)
_lock = new_lock()


def make_run_op() -> Callable[..., Any]:
    """Return a new replacement for one of TensorFlow's functions that run an op on the slow path."""

    def run_op(op: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: Any = None) -> Any:
        if op == "EagerPyFunc":
            thread.py_inputs = inputs
        if op in _WRITES:
            with _Writing(op, _handles_in(inputs)):
                tensors = original[execute, "quick_execute"](op, num_outputs, inputs, attrs, ctx, name)
        elif op in _READ:
            if thread.past is not None:
                return [_read(ctx, inputs[0], attrs[1])]
            return _read_slowly(op, num_outputs, inputs, attrs, ctx, name)
        else:
            inputs = _on_gather(inputs) if op in _GATHERS else [substitute_past(arg) for arg in inputs]
            tensors = original[execute, "quick_execute"](op, num_outputs, inputs, attrs, ctx, name)
        for callback in ctx.op_callbacks:
            callback(op, tuple(inputs), attrs, tensors, name)
        return tensors

    return run_op


def _read_slowly(op: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: Any) -> Any:
    try:
        if thread.listener is not None:
            thread.listener.on_read(inputs[0])
        tensors = original[execute, "quick_execute"](op, num_outputs, inputs, attrs, ctx, name)
        for callback in ctx.op_callbacks:
            callback(op, tuple(inputs), attrs, tensors, name)
    except BaseException:
        _forget_values()
        raise
    return tensors


def _forget_values() -> None:
    """Mark the values of variables as unknown: a read failed or was interrupted."""
    if thread.listener is not None:
        thread.listener.forget()


def execute_cancellable(op: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, *rest: Any, **kw: Any) -> Any:
    """Run a cancellable function and report it."""
    run = original[execute, "execute_with_cancellation"]
    tensors = run(op, num_outputs, inputs, attrs, ctx, *rest, **kw)
    for callback in ctx.op_callbacks:
        callback(op, tuple(inputs), attrs, tensors, None)
    return tensors


# Types of arguments that contain no variable; others are inspected.
_PLAIN = frozenset((EagerTensor, str, int, bool, float, bytes, type(None)))
_PLAIN_OR_VARIABLE = _PLAIN | {PlainVariable}
# Ops that write a variable. The slow path passes op names as bytes.
_WRITES: frozenset[str | bytes] = frozenset(
    op
    for op in dir(tf.raw_ops)
    if op.startswith(("ResourceScatter", "ResourceApply", "ResourceSparse", "ResourceStrided"))
) | {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableXlaConcatND"}
_WRITES |= {op.encode() for op in _WRITES if isinstance(op, str)}
# Ops that read a slice of a variable.
_GATHERS: frozenset[str | bytes] = frozenset(
    ("ResourceGather", "ResourceGatherNd", b"ResourceGather", b"ResourceGatherNd")
)
_READ: frozenset[str | bytes] = frozenset(("ReadVariableOp", b"ReadVariableOp"))
_ACCESSES = _WRITES | _GATHERS | _READ
fast_path_original = pywrap_tfe.TFE_Py_FastPathExecute


def fast_path(ctx: Any, op: str, name: Any, *args: Any) -> Any:
    """Run an op on the fast path, observing reads and writes of variables."""
    # Hot path: every op of the process runs through here while anything records.
    if op in _ACCESSES:
        return _access(ctx, op, name, args)
    if _PLAIN.issuperset(map(type, args)) and thread.past is None:
        return fast_path_original(ctx, op, name, *args)
    return _run_with_reads(ctx, op, name, args)


def _run_with_reads(ctx: Any, op: str, name: Any, args: Sequence[Any]) -> Any:
    if thread.listener is not None or thread.past is not None:
        if (
            thread.past is None
            and _PLAIN_OR_VARIABLE.issuperset(map(type, args))
            and not execute.must_record_gradient()
        ):
            return _run_with_implicit_reads(ctx, op, name, args, thread.listener)
        args = tuple(_with_reads(ctx, arg) for arg in args)
        if op == "EagerPyFunc":
            thread.py_inputs = args[0]
    return fast_path_original(ctx, op, name, *args)


def _run_with_implicit_reads(ctx: Any, op: str, name: Any, args: Sequence[Any], listener: Any) -> Any:
    """Run an op that is given variables: the fast path reads them itself, and reports what it has read as inputs."""
    reads = []
    for position, arg in enumerate(args):
        if type(arg) is PlainVariable:
            listener.on_variable(arg)
            listener.on_read(arg._handle)
            reads.append((position, arg._handle))
    try:
        listener.implicit_reads = reads
        return fast_path_original(ctx, op, name, *args)
    except FallbackException:  # nothing has run; the slow path comes next and reads them again
        raise
    except BaseException:
        listener.forget()
        raise
    finally:
        listener.implicit_reads = ()


def _access(ctx: Any, op: str, name: Any, args: Sequence[Any]) -> Any:
    if op in _READ:
        return _read(ctx, args[0], args[-1])
    if op in _GATHERS:
        return _run_with_reads(ctx, op, name, _on_gather(args))
    with _Writing(op, _handles_in(args)):
        return _run_with_reads(ctx, op, name, args)


def _handles_in(args: Sequence[Any]) -> list[Tensor]:
    return [arg for arg in args if type(arg) is EagerTensor and eager_dtype(arg) == _RESOURCE]


class _Writing:
    """Stamps a write of variables. An op that fails is not recorded, but may have written."""

    __slots__ = ("_listener", "_stamp")

    def __init__(self, op: Any, handles: list[Tensor]) -> None:
        self._listener = listener = thread.listener
        if listener is None or not listener.recording():
            handles = initialized(handles)
        if listener is not None:
            listener.on_update(op if type(op) is str else op.decode(), handles)
        if thread.past is not None:
            thread.past.on_write(handles)
        self._stamp = stamp_writes(handles)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._listener is not None:
            self._listener.on_updated(self._stamp)
        elif kind is not None and issubclass(kind, FallbackException):
            _undo_stamp(self._stamp)  # nothing has run; the slow path comes next and stamps the write itself


class WriteStamp(NamedTuple):
    """The time of a write of variables.

    Attributes:
      when: The time of the write.
      before: By identity of the handle, the time of the previous write.
    """

    when: int
    before: dict[int, int]


def stamp_writes(handles: Sequence[Tensor]) -> WriteStamp:
    """Assign a time to a write of variables that is about to happen."""
    with _lock:
        stamp = WriteStamp(next(_clock), {handle._id: writes.get(handle._id, 0) for handle in handles})
        writes.update(dict.fromkeys(stamp.before, stamp.when))
    return stamp


def _undo_stamp(stamp: WriteStamp) -> None:
    with _lock:
        for identity, before in stamp.before.items():
            if writes.get(identity) == stamp.when:  # no later write
                writes[identity] = before


def now() -> int:
    """Return a time after all writes so far and before all later ones."""
    return next(_clock)


def initialized(handles: list[Tensor]) -> list[Tensor]:
    """Return the handles of initialized variables: a first assignment is not an update."""
    ctx = context.context()
    return [
        handle
        for handle in handles
        if handle._id in writes or bool(fast_path_original(ctx, "VarIsInitializedOp", None, handle))
    ]


def _on_gather(args: Sequence[Any]) -> Sequence[Any]:
    args = [substitute_past(arg) for arg in args]
    if thread.listener is not None:
        thread.listener.on_gather(_handles_in(args))
    return args


def substitute_past(arg: Any) -> Any:
    """Replace the handle of a variable by that of a stand-in with its past value; return anything else as it is."""
    if thread.past is None or type(arg) is not EagerTensor or arg.dtype != tf.resource:
        return arg
    handle = thread.past.stand_in(arg)
    if handle is None:
        return arg
    # A tape of user code in the backward function must still see a read of the variable.
    original[record, "record_operation"]("ReadVariableOp", [handle], [arg], lambda grad: [grad])
    return handle


def _with_reads(ctx: Any, arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        inside = any(isinstance(item, BaseVariable) for item in arg) or thread.past is not None
        return [_with_reads(ctx, item) for item in arg] if inside else arg
    if not isinstance(arg, BaseVariable):
        return substitute_past(arg)
    if arg.trainable:  # as the fast path itself does
        pywrap_tfe.TFE_Py_TapeVariableAccessed(arg)
        pywrap_tfe.TFE_Py_VariableWatcherVariableAccessed(arg)
    if thread.listener is not None:
        thread.listener.on_variable(arg)
    return _read(ctx, arg.handle, arg.dtype)


def _read(ctx: Any, handle: Tensor, dtype: Any) -> Tensor:
    try:
        if thread.listener is not None:
            thread.listener.on_read(handle)
        value = None if thread.past is None else _past_read(handle)
        return fast_path_original(ctx, "ReadVariableOp", None, handle, "dtype", dtype) if value is None else value
    except BaseException:
        _forget_values()
        raise


def live_value(handle: Tensor, dtype: Any) -> Tensor:
    """Return the current value of a variable, even while past values are substituted."""
    return fast_path_original(context.context(), "ReadVariableOp", None, handle, "dtype", dtype)


def _past_read(handle: Tensor) -> Tensor | None:
    assert thread.past is not None
    value = thread.past.value(handle)
    if value is None:
        return None
    result = tf.identity(value)
    original[record, "record_operation"]("ReadVariableOp", [result], [handle], lambda grad: [grad])
    return result
