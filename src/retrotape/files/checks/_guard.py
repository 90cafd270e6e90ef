"""The checks when an op of a file is about to run: shapes, bytes, and the preconditions of its kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from retrotape._types import Tensor
from retrotape.errors import CorruptTapeError, LostValueError, RetrotapeError, UnsafeTapeError
from retrotape.execute import run_eqn
from retrotape.files.checks._backward_ops import FORWARD_OPS, mismatch
from retrotape.files.checks._bounds import BOUNDS, TEXTS, longest_given
from retrotape.files.checks._budget import Budget
from retrotape.files.checks._call import Call, Dims
from retrotape.files.checks._lists import ELEMENT_BYTES, FILLS, LENGTHS, length_of, made_length, put
from retrotape.files.checks._op_guards import GUARDS, RECOMPUTED
from retrotape.files.checks._ops import STRING_BYTES
from retrotape.files.checks._shapes import REMEMBERED, Kinds, Shapes, is_known
from retrotape.files.checks._updates import as_plain, update_shapes, workspace
from retrotape.ir import DTYPE_NUMBERS, OWN_OPS, Eqn, TensorType, bytes_of
from retrotape.record import current_stack, default_attrs
from retrotape.rules import allowed
from retrotape.tf import core
from retrotape.tf.core import tf

Types = Sequence[TensorType]
_STRING, _VARIANT = DTYPE_NUMBERS["string"], DTYPE_NUMBERS["variant"]


class _Forecast(NamedTuple):
    """What an op will make: shapes, the most bytes that each result has, and the most that it needs in total."""

    shapes: list[Dims]
    sizes: list[int]
    total: int


class Guard:
    """Runs the ops of a file, each after its checks.

    Before a kernel runs, TensorFlow's shape functions infer its output shapes. These must match those in the file, and
    fit into memory with the live values. An op whose output size cannot be bounded does not run in this process.

    Args:
      path: Of the file, for messages.
      more: Ops that the user has allowed, which run even without a bound.
      limit: How many bytes all live values may have.
      isolated: Whether this process holds nothing but the tape, so that ops without a bound may run.
    """

    def __init__(self, path: str, more: Collection[str], limit: int, isolated: bool = False) -> None:
        self._path, self._more, self._isolated = path, frozenset(more), isolated
        self._shapes, self._budget = Shapes(), Budget(limit)
        # A forecast, or the positions of the inputs whose values belong to the key.
        self._forecasts: dict[Any, Any] = {}
        self._largest_item = 0  # bytes of the largest tensor that was put into a list
        self._nested = False  # whether a list, or text, was put into a list

    def run(self, eqn: Eqn, inputs: list[Tensor], types: Types, *, resized: bool = False) -> list[Tensor]:
        """Return the outputs of an equation.

        Args:
          eqn: The equation.
          inputs: Its inputs.
          types: The type of each var in the file.
          resized: Whether sizes may differ from those in the file, as in a replay.

        Raises:
          UnsafeTapeError: If its outputs would differ from the file, be too large, or have no known bound.
          CorruptTapeError: If it cannot run on these inputs.
        """
        if eqn.op in OWN_OPS:
            return run_eqn(eqn, inputs)
        sizes = self.check(eqn, inputs, types, resized=resized)
        try:
            outputs = run_eqn(eqn, inputs)
        except Exception as error:
            raise self._explain(error, eqn.op) from error
        self._budget.count(outputs, sizes)
        self._compare_results(eqn, outputs, types, resized)
        return outputs

    def check(self, eqn: Eqn, inputs: Sequence[Tensor], types: Types, *, resized: bool = False) -> list[int]:
        """Return how many bytes each result has at most, or raise where the op may not run on these inputs."""
        if eqn.op in OWN_OPS:
            return []
        kinds = tuple([TensorType(core.eager_dtype(tensor), core.shape_of(tensor)) for tensor in inputs])
        try:
            found = self._cached(eqn, kinds, inputs.__getitem__)
            if found is None:
                with current_stack().unrecorded(identified=True):  # reads by a check are not recorded
                    found = self._forecast(eqn, kinds, inputs.__getitem__, types, resized)
            elif not resized:
                self._compare(eqn, found.shapes, types)
        except Exception as error:
            raise self._explain(error, eqn.op) from error
        if not self._budget.fits(found.total):
            raise self._too_large(f"op {eqn.op}", found.total)
        return found.sizes

    def check_rule(self, eqn: Eqn, grads: Sequence[Any], types: Types, value: Callable[[int], Tensor]) -> None:
        """Raise if the inputs of the gradient function of an op are inconsistent.

        The op itself may not have run: its outputs can come from the file.

        Args:
          eqn: The equation.
          grads: The gradients of its results.
          types: The type of each var.
          value: Returns the value of a var.
        """
        for var, grad in zip(eqn.outputs, grads, strict=False):
            if grad is not None:
                self.check_gradient(eqn.op, types[var], grad)
        # An op that is not allowed was recorded in this process, by a second derivative.
        if eqn.op in OWN_OPS or eqn.op not in allowed():
            return
        for var in eqn.outputs if eqn.op in RECOMPUTED else ():
            value(var)
        kinds = tuple([types[var] for var in eqn.inputs])
        try:
            found = self._cached(eqn, kinds, lambda position: value(eqn.inputs[position]))
            if found is None:
                call = _call(eqn, kinds, lambda position: value(eqn.inputs[position]))
                with current_stack().unrecorded(identified=True):
                    shapes = self._infer(eqn, call)
                    total = self._total(call, shapes, [types[var].dtype for var in eqn.outputs])[1]
                self._compare(eqn, shapes, types)
                if not self._budget.fits(total):
                    raise self._too_large(f"op {eqn.op}", total)
            else:
                self._compare(eqn, found.shapes, types)
        except LostValueError:
            return  # it was left out of the file, so the gradient function does not get it either
        except Exception as error:
            raise self._explain(error, eqn.op) from error

    def check_room(self, what: str, size: int) -> None:
        """Raise if there is no room for so many bytes, which a query makes besides the results of ops."""
        if not self._budget.fits(size):
            raise self._too_large(what, size)

    def check_gradient(self, op: str, kind: TensorType, grad: Any) -> None:
        """Raise if a gradient differs in type from the value that it belongs to."""
        described = f"{grad.dtype.name}{grad.shape}"
        if isinstance(grad, tf.IndexedSlices):
            whole = None if grad.dense_shape is None else tf.get_static_value(grad.dense_shape)
            rows = (grad.indices.shape[0] if grad.indices.shape.rank == 1 else -1, *(kind.shape or ())[1:])
            fits = (whole is None or tuple(whole) == kind.shape) and grad.values.shape.is_compatible_with(rows)
            described = f"rows of {None if whole is None else whole.tolist()}"
        else:
            fits = grad.shape.is_compatible_with(kind.shape)
        if not fits or grad.dtype.as_datatype_enum != kind.dtype:
            raise UnsafeTapeError(
                self._path, f"a gradient at op {op} is {described}, and the value that it belongs to is {kind}"
            )

    def extend(self, size: int) -> None:
        """Raise the limit in proportion to `size` bytes that the user has passed in."""
        self._budget.extend(size)

    @contextmanager
    def explained(self, what: str = "a query") -> Iterator[None]:
        """Turn errors of ops that a file names into errors about the file."""
        try:
            yield
        except Exception as error:
            raise self._explain(error, what) from error.__cause__

    # ------------------------------------------------------------------ forecasts

    def _forecast(
        self, eqn: Eqn, kinds: Kinds, fetch: Callable[[int], Tensor], types: Types, resized: bool
    ) -> _Forecast:
        call = _call(eqn, kinds, fetch)
        shapes = self._infer(eqn, call)
        if not resized:
            self._compare(eqn, shapes, types)
        dtypes = [types[var].dtype for var in eqn.outputs]
        found = _Forecast(shapes, *self._total(call, shapes, dtypes))
        if (
            eqn.op not in GUARDS
            and eqn.op not in FORWARD_OPS
            and not {_STRING, _VARIANT}.intersection(dtypes)
            and is_known(shapes)
        ):
            self._cache(eqn, kinds, fetch, found)
        return found

    def _cache(self, eqn: Eqn, kinds: Kinds, fetch: Callable[[int], Tensor], found: _Forecast) -> None:
        if len(self._forecasts) >= REMEMBERED:
            self._forecasts.clear()
        wanted = self._shapes.wanted(eqn, kinds)
        key: Any = (eqn.op, eqn.attrs, kinds)
        if wanted:
            self._forecasts[key] = wanted
            key = (key, *[_bytes_in(fetch(position)) for position in wanted])
        self._forecasts[key] = found

    def _cached(self, eqn: Eqn, kinds: Kinds, fetch: Callable[[int], Tensor]) -> _Forecast | None:
        key = (eqn.op, eqn.attrs, kinds)
        found = self._forecasts.get(key)
        if type(found) is tuple:
            found = self._forecasts.get((key, *[_bytes_in(fetch(position)) for position in found]))
        return found

    def check_zeros(self, handle: Tensor) -> None:
        """Raise if zeros like the items of a list would exceed the memory limit."""
        try:
            with current_stack().unrecorded(identified=True):
                size = self._filled_bytes("ZerosLike", handle)
        except Exception as error:
            raise self._explain(error, "ZerosLike") from error
        if not self._budget.fits(size):
            raise self._too_large("op ZerosLike", size)

    def _track_item(self, kind: TensorType | None) -> None:
        if kind is not None:
            self._largest_item = max(self._largest_item, bytes_of(kind))
            self._nested |= kind.dtype in (_VARIANT, _STRING)

    def _filled_bytes(self, op: str, handle: Tensor) -> int:
        """Return the bytes of a list of new tensors like those in another list, whose items may share memory."""
        if self._nested and not self._isolated:
            raise self._unbounded(op)
        return length_of(handle) * (ELEMENT_BYTES + self._largest_item)

    def _infer(self, eqn: Eqn, call: Call) -> list[Dims]:
        if call.op not in self._more:
            guard = GUARDS.get(call.op)
            wrong = guard(call) if guard is not None else None
            wrong = wrong or mismatch(call, lambda other, kinds: self._shapes.of(other, kinds, call.fetch))
            if wrong:
                raise UnsafeTapeError(self._path, f"op {call.op} would get {wrong}")
        plain = as_plain(eqn)
        if plain is None:
            return update_shapes(call)
        return _without_vectors(call, self._shapes.of(plain, call.kinds, call.fetch))

    def _total(self, call: Call, shapes: Sequence[Dims], dtypes: Sequence[int]) -> tuple[list[int], int]:
        """Return the most bytes of each result, and of the whole call."""
        counts = self._elements(call, shapes)
        sizes = [_bytes(call, dtype, count) for dtype, count in zip(dtypes, counts, strict=True)]
        self._track_item(put(call))
        if call.op in FILLS and _VARIANT in dtypes:
            sizes = [self._filled_bytes(call.op, call.fetch(0))]
        return sizes, sum(sizes) + workspace(call)

    def _elements(self, call: Call, shapes: Sequence[Dims]) -> list[int]:
        bound = None if is_known(shapes) else BOUNDS.get(call.op)
        if bound is not None:
            most = bound(call)
            return [_count(dims) if is_known([dims]) else most for dims in shapes]
        trusted = self._isolated or call.op in self._more or call.op not in allowed()
        if not is_known(shapes) and not trusted:
            raise self._unbounded(call.op)
        return [_count(dims) if is_known([dims]) else 0 for dims in shapes]

    # ------------------------------------------------------------------ mismatches

    def _compare(self, eqn: Eqn, shapes: Sequence[Dims], types: Types) -> None:
        for var, dims in zip(eqn.outputs, shapes, strict=True):
            declared = types[var].shape
            if dims == declared or dims is None:
                continue
            if (
                declared is None
                or len(dims) != len(declared)
                or any(d not in (None, s) for d, s in zip(dims, declared, strict=True))
            ):
                made = TensorType(types[var].dtype, dims)
                raise UnsafeTapeError(self._path, f"op {eqn.op} would make {made} where the tape says {types[var]}")

    def _compare_results(self, eqn: Eqn, outputs: Sequence[Tensor], types: Types, resized: bool) -> None:
        for var, tensor in zip(eqn.outputs, outputs, strict=False):
            declared, shape = types[var], core.shape_of(tensor)
            if declared.dtype != core.eager_dtype(tensor) or (declared.shape != shape and not resized):
                made = TensorType(core.eager_dtype(tensor), shape)
                raise UnsafeTapeError(self._path, f"op {eqn.op} makes {made} where the tape says {declared}")

    def _unbounded(self, op: str) -> UnsafeTapeError:
        return UnsafeTapeError(
            self._path,
            f"the output size of op {op} is not known before it runs, so it does not run in this process",
            "Run it in another process: `rt.load(path, isolate=True)`; or, if you trust it: "
            f"`rt.load(path, allow_ops={{{op!r}}})`.",
        )

    def _too_large(self, what: str, size: int) -> UnsafeTapeError:
        total = self._budget.alive + size
        return UnsafeTapeError(
            self._path,
            f"{what} would make {size:,} bytes, {total:,} with the live values, more than {self._budget.limit:,}",
            f"If you trust it: `rt.load(path, limits=retrotape.store.Limits(total_bytes={total}))`.",
        )

    def _explain(self, error: Exception, what: str) -> Exception:
        if isinstance(error, (RetrotapeError, MemoryError, tf.errors.ResourceExhaustedError)):
            return error
        line = (str(error).strip().splitlines() or [""])[0][:200]
        return CorruptTapeError(
            self._path,
            f"{what} on its values fails with {type(error).__name__}: {line}",
            "If the tape that was recorded gives a result, the file was changed: save it again.",
        )


# Results that an attribute disables. Shape functions infer an empty tensor, kernels return a scalar.
_VECTORS = {"Svd": "compute_uv", "Eig": "compute_v", "SelfAdjointEigV2": "compute_v"}


def _without_vectors(call: Call, shapes: list[Dims]) -> list[Dims]:
    wanted = call.op not in _VECTORS or call.attrs[_VECTORS[call.op]]
    return shapes if wanted else [shapes[0], *(() for _ in shapes[1:])]


def _call(eqn: Eqn, kinds: Kinds, fetch: Callable[[int], Tensor]) -> Call:
    return Call(eqn.op, {**dict(default_attrs(eqn.op)), **dict(eqn.attrs)}, kinds, fetch)


def _count(dims: Dims) -> int:
    """Return the number of elements, with empty dimensions counted as 1: kernels loop over the others."""
    return math.prod(max(1, size or 1) for size in dims or ())


def _bytes_in(tensor: Tensor) -> bytes:
    """Return the bytes of a value without a host read that tapes would record."""
    return memoryview(tensor).tobytes()


def _bytes(call: Call, dtype: int, elements: int) -> int:
    if dtype == _STRING:
        return elements * (STRING_BYTES + TEXTS.get(call.op, longest_given)(call)) if elements else 0
    if dtype == _VARIANT:
        return elements * ELEMENT_BYTES * (1 + (made_length(call) if call.op in LENGTHS else 0))
    return bytes_of(TensorType(dtype, (elements,)))
