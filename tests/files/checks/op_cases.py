"""Calls of one op that are right in their types and wrong in everything else: made at random, the same for each seed.

Shapes, attributes and values are drawn until TensorFlow's shape function takes them, so that the guard lets them pass
and the kernel has to cope; calls that were taken are changed a little for the next ones.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from files.checks import op_seeds
from files.checks.op_values import hostile_value, list_maker
from retrotape.files.checks._call import Call
from retrotape.files.checks._op_guards import GUARDS
from retrotape.files.checks._ops import _dtypes
from retrotape.files.checks._shapes import _Scratch
from retrotape.files.checks._updates import as_plain, update_shapes
from retrotape.ir import DTYPE_NUMBERS, LEAF, DType, Eqn, Frame, Program, Shape, TensorType
from retrotape.record import Kind, default_attrs, traits
from retrotape.tf import core
from retrotape.tf.core import tf

RESOURCE, VARIANT, STRING = (DTYPE_NUMBERS[name] for name in ("resource", "variant", "string"))
FRAMES = (Frame("a.py", 1, "f"),)
TRIES = 60
_scratch = _Scratch()


def corrected(case: Case, message: str) -> Case | None:
    """Return a case as a file has it that knows what comes out, where the sizes depend on data; None elsewhere."""
    found = re.search(r" makes \w+\[([\d,]*)\] where the tape says (\w+\[[\d,]*\])", message)
    types = list(case.program.types)
    for var in case.program.eqns[-1].outputs if found else ():
        if str(types[var]) == found[2]:  # type: ignore[index]
            types[var] = types[var]._replace(shape=tuple(int(size) for size in found[1].split(",") if size))  # type: ignore[index]
            return case._replace(program=replace(case.program, types=tuple(types)), stored={})
    return None


@cache
def _honest() -> dict[str, list[op_seeds.Seed]]:
    return op_seeds.collect()


class Case(NamedTuple):
    """A program of one op, and the values that it starts from.

    Attributes:
      program: The last equation is the call; those before make the lists that it takes.
      values: By var.
      stored: Values of its results as a file might claim them: the op does not run then.
    """

    program: Program
    values: dict[int, Any]
    stored: dict[int, Any]


class _Draft(NamedTuple):
    attrs: dict[str, Any]
    shapes: list[tuple[int, ...]]
    values: list[Any]


class Cases:
    """Makes the cases of an op, one after the other."""

    def __init__(self, op: str, seed: int, trust: bool = False) -> None:
        self._guard = None if trust else GUARDS.get(op)
        self._op, self._definition = op, core.op_def(op)
        self._random = random.Random(f"{op} {seed}")
        self._rank, self._sizes = 1, [1, 2]
        seeds = [op_seeds.of_update(op)] if traits(op).kind is not Kind.PLAIN else _honest().get(op, [])
        self._taken = [self._of_seed(seed) for seed in seeds]
        self._calm = len(self._taken)  # each is tried as it is, first

    def next(self) -> Case:
        """Return another case."""
        draft, shapes = self._draft()
        if self._random.random() < 0.1:
            shapes = [self._wrong(dims) for dims in shapes]
        return self._case(draft, [() if dims is None else dims for dims in shapes])

    def _draft(self) -> tuple[_Draft, list[Any]]:
        for _ in range(TRIES):
            old = self._random.choice(self._taken) if self._taken and self._random.random() < 0.8 else None
            draft = self._new() if old is None else self._change(old)
            if self._random.random() < 0.3:
                draft = self._change(draft)
            if self._calm:
                self._calm -= 1
                draft = self._taken[self._calm]
            try:
                shapes = self._inferred(draft)
            except (ValueError, TypeError, IndexError, KeyError, OverflowError):
                continue
            shapes = [None if d is None else tuple(self._size() if s is None else s for s in d) for d in shapes]
            self._taken.append(draft)
            return draft, shapes
        draft = self._new()
        return draft, [self._shape(self._random.randrange(4)) for _ in self._dtypes(draft, results=True)]

    def _of_seed(self, seed: op_seeds.Seed) -> _Draft:
        values = [3 if value is None else np.asarray(value) for value in seed.values]
        return _Draft(dict(seed.attrs), [np.shape(value) for value in values], values)

    # ------------------------------------------------------------------ parts of a call

    def _new(self) -> _Draft:
        rng = self._random
        self._rank = rng.choice((None, None, 0, 1, 1, 2, 2, 3, 4, 4, 5))
        self._sizes = [rng.choice((0, 1, 1, 2, 3, 4, 5, 7, 8)) for _ in range(rng.choice((1, 1, 2, 3)))]
        attrs = {attr.name: self._attr(attr) for attr in self._definition.attr}
        for name, value in default_attrs(self._op):
            if not isinstance(value, DType) and name in attrs and not self._counts_name(name) and rng.random() < 0.6:
                attrs[name] = value
        dtypes = self._dtypes(_Draft(attrs, [], []))
        shapes = [self._shape() for _ in dtypes]
        if rng.random() < 0.3:
            shapes = [shapes[0] for _ in shapes] if shapes else shapes
        return _Draft(attrs, shapes, [self._value(d, s) for d, s in zip(dtypes, shapes, strict=True)])

    def _change(self, old: _Draft) -> _Draft:
        """Return a call with one thing in another way."""
        rng = self._random
        attrs, shapes, values = dict(old.attrs), list(old.shapes), list(old.values)
        dtypes = self._dtypes(old)
        what = rng.random()
        plain = [
            attr for attr in self._definition.attr if attr.type not in ("type", "list(type)") and not self._counts(attr)
        ]
        if what < 0.35 and plain:
            attr = rng.choice(plain)
            attrs[attr.name] = self._attr(attr, wild=True)
        elif what < 0.65 and shapes:
            at = rng.randrange(len(shapes))
            dims = list(shapes[at])
            if dims and rng.random() < 0.7:
                dims[rng.randrange(len(dims))] = rng.choice((0, 1, 2, 3, 6, 9, 64))
            elif rng.random() < 0.5:
                dims.insert(rng.randrange(len(dims) + 1), rng.choice((0, 1, 2)))
            else:
                dims = dims[1:]
            shapes[at] = tuple(dims)
            values[at] = self._value(dtypes[at], shapes[at])
        elif shapes:
            at = rng.randrange(len(shapes))
            values[at] = self._value(dtypes[at], shapes[at], wild=rng.random() < 0.6)
        return _Draft(attrs, shapes, values)

    def _counts(self, attr: Any) -> bool:
        return self._counts_name(attr.name)

    def _counts_name(self, name: str) -> bool:
        args = (*self._definition.input_arg, *self._definition.output_arg)
        return any(name in (arg.number_attr, arg.type_list_attr) for arg in args)

    def _size(self) -> int:
        return self._random.choice(self._sizes)

    def _shape(self, rank: int | None = None) -> tuple[int, ...]:
        rng = self._random
        if rank is None:
            rank = (
                self._rank
                if self._rank is not None and rng.random() < 0.6
                else rng.choice((0, 0, 1, 1, 1, 2, 2, 3, 4, 5))
            )
        return tuple(self._size() if rng.random() < 0.85 else rng.choice((0, 1, 2, 3)) for _ in range(rank))

    def _wrong(self, dims: Any) -> Any:
        return (
            None if dims is None else tuple(dims[:-1]) if dims and self._random.random() < 0.5 else (*(dims or ()), 2)
        )

    def _attr(self, attr: Any, wild: bool = False) -> Any:
        kind = attr.type
        if kind.startswith("list("):
            count = (
                self._random.choice((0, 1, 2, 4, 4, 5, 5, self._rank or 1))
                if not self._counts(attr)
                else self._random.randrange(1, 4)
            )
            return tuple(self._item(kind[5:-1], attr, wild and self._random.random() < 0.3) for _ in range(count))
        return self._item(kind, attr, wild)

    def _item(self, kind: str, attr: Any, wild: bool) -> Any:
        rng = self._random
        match kind:
            case "type":
                allowed = list(attr.allowed_values.list.type) or [1, 1, 2, 3, 9, 10, 7, 8, 19, 4]
                likely = [number for number in allowed if number in (1, 3, 9)]
                return DType(rng.choice(likely if likely and rng.random() < 0.7 else allowed))
            case "int":
                if self._counts(attr):
                    return rng.randrange(max(1, attr.minimum), 4)
                usual = (1, 1, 1, 2, 3, max(1, attr.minimum))
                return rng.choice(
                    (0, -1, -2, 5, 17, 64, 1000, 2**31 - 1, -(2**31), 2**40, 2**62) if wild else (*usual, 0, -1)
                )
            case "bool":
                return rng.random() < 0.5
            case "float":
                return rng.choice((0.0, 1.0, 0.5, -1.0, 1e30, -1e30, float("nan"), float("inf"), 1e-30, 255.0))
            case "string":
                allowed = list(attr.allowed_values.list.s)
                usual = (attr.default_value.s, b"", b"a", b"NHWC", b"i,j->ij", b"ab,bc->ac", b"%s", b"(a|b)*")
                return rng.choice(allowed) if allowed and rng.random() < 0.97 else rng.choice(usual)
            case "shape":
                return Shape(
                    None if rng.random() < 0.2 else tuple(rng.choice((-1, 0, 1, 2, 3)) for _ in range(rng.randrange(4)))
                )
        raise KeyError(kind)

    def _value(self, dtype: int, shape: tuple[int, ...], wild: bool = False) -> Any:
        return hostile_value(self._random, dtype, shape, self._size(), wild)

    # ------------------------------------------------------------------ the call as a program

    def _dtypes(self, draft: _Draft, results: bool = False) -> list[int]:
        takes, gives = (
            _dtypes(args, draft.attrs) for args in (self._definition.input_arg, self._definition.output_arg)
        )
        held = _value_dtype(draft.attrs)
        if traits(self._op).kind is Kind.PLAIN:
            return gives if results else takes
        slots = takes.count(RESOURCE)
        if self._op == "AssignVariableOp":
            takes = takes[1:]
        if results:
            return gives + [held] * (slots if traits(self._op).kind is Kind.WRITE else 0)
        return [held if dtype == RESOURCE else dtype for dtype in takes]

    def _inferred(self, draft: _Draft) -> list[Any]:
        dtypes = self._dtypes(draft)
        kinds = tuple(TensorType(dtype, shape) for dtype, shape in zip(dtypes, draft.shapes, strict=True))
        kinds = tuple(TensorType(VARIANT, ()) if kind.dtype == VARIANT else kind for kind in kinds)
        count = len(self._dtypes(draft, results=True))
        eqn = Eqn(self._op, tuple(range(len(kinds))), tuple(range(count)), tuple(sorted(draft.attrs.items())), 0)
        plain = as_plain(eqn)
        call = Call(self._op, draft.attrs, kinds, lambda position: tf.constant(draft.values[position]))
        if self._guard is not None and self._guard(call):
            raise ValueError("it would be refused")
        if plain is None:
            return list(update_shapes(call))
        integers = {
            position: value
            for position, value in enumerate(draft.values)
            if isinstance(value, np.ndarray) and (value.dtype.kind in "iu" or self._op == "Range")
        }
        return _scratch.infer(plain, kinds, integers)

    def _case(self, draft: _Draft, shapes: list[Any]) -> Case:
        types: list[TensorType] = []
        producers: list[int] = []
        eqns: list[Eqn] = []
        values: dict[int, Any] = {}

        def add(kind: TensorType, producer: int = LEAF) -> int:
            types.append(kind)
            producers.append(producer)
            return len(types) - 1

        def leaf(dtype: int, value: Any) -> int:
            var = add(TensorType(dtype, np.shape(value)))
            values[var] = value
            return var

        makers = []
        inputs: list[Any] = []
        for dtype, value in zip(self._dtypes(draft), draft.values, strict=True):
            if dtype == VARIANT:
                maker = list_maker(value, leaf)
                makers.append((len(inputs), maker))
                inputs.append(None)
            else:
                inputs.append(leaf(dtype, value))
        for position, (op, attrs, given) in makers:
            inputs[position] = add(TensorType(VARIANT, ()), len(eqns))
            eqns.append(Eqn(op, given, (inputs[position],), attrs, 0))
        outputs = tuple(
            add(TensorType(dtype, shape), len(eqns))
            for dtype, shape in zip(self._dtypes(draft, results=True), shapes, strict=True)
        )
        eqns.append(Eqn(self._op, tuple(inputs), outputs, tuple(sorted(draft.attrs.items())), 0))
        program = Program(tuple(types), tuple(producers), tuple(eqns), FRAMES)
        stored = {
            var: self._value(types[var].dtype, types[var].shape or (), wild=True)
            for var in outputs
            if types[var].dtype not in (VARIANT, RESOURCE) and _is_small(types[var].shape)
        }
        return Case(program, values, stored)


def _is_small(shape: Any) -> bool:
    return (
        len(shape) <= 32
        and all(0 <= size < 2**16 for size in shape)
        and math.prod(max(1, size) for size in shape) < 2**16
    )


def _value_dtype(attrs: dict[str, Any]) -> int:
    return next((attrs[name].number for name in ("T", "dtype") if isinstance(attrs.get(name), DType)), 1)
