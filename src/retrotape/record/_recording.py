"""What one tape has written down: the program, the values it keeps, and how custom gradients go back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrotape import _tf
from retrotape.ir import LEAF, Attr, Builder, Eqn, Program, TensorType
from retrotape.record._frames import Frames
from retrotape.record._traits import TRAINABLE, Kind, Traits

Tensor = Any
_RESOURCE = 20
CUSTOM = "custom_gradient"


class Backward(NamedTuple):
    """A way back that is code, not a rule: of a custom gradient, or of a function."""

    function: Callable
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    call: _tf.FunctionCall | None = None  # where it is a function: what was called


class Cell:
    """A variable as the program sees it: the values that it had, oldest first."""

    __slots__ = ("handle", "since", "variable", "versions")

    def __init__(self, handle: Tensor, first: int) -> None:
        self.handle = handle
        self.versions = [first]
        self.since = [-1]  # the equation that made each version
        self.variable: Any = None

    @property
    def current(self) -> int:
        return self.versions[-1]

    def at(self, index: int) -> int:
        """Return the version that equation number `index` saw."""
        for version, since in zip(reversed(self.versions), reversed(self.since), strict=True):
            if since < index:
                return version
        return self.versions[0]


class Recording:
    """An append-only program with the values that its gradients need.

    `keep` says which values stay: "needed" those that a gradient rule looks at, "all", or "leaves" only those
    that cannot be computed again. Whatever is not kept is computed again when a question needs it.
    """

    def __init__(
        self,
        keep: str = "needed",
        dtype_of: Callable[[Tensor], int] = _tf.eager_dtype,
        expand: Callable[[int], bool] = lambda identity: False,
    ) -> None:
        self.keep = keep
        self._dtype_of = dtype_of
        self._expand = expand  # writes down how a tensor came about that was not recorded when it was made
        self.clear()

    def clear(self) -> None:
        """Forget everything, in place: tapes that are open go on writing here."""
        self.builder = Builder()
        self.frames = Frames()
        self.values: dict[int, Tensor] = {}
        self.backwards: dict[int, Backward] = {}
        self.cells: dict[int, Cell] = {}
        self.cell_of: dict[int, Cell] = {}  # by version
        self.assigned: set[int] = set()  # versions that were made while recording
        self.opaque: set[int] = set()  # assigned by something that has no derivative rule
        self.inert: set[int] = set()  # vars of a dtype without derivative
        self._vars: dict[int, int] = {}  # by identity of the tensor

    def program(self) -> Program:
        """Return everything recorded so far, frozen and checked."""
        return self.builder.build(self.frames.resolve)

    def find(self, tensor: Tensor) -> int | None:
        """Return the var that stands for `tensor`, None where it took no part."""
        var = self._vars.get(tensor._id)
        if var is None and self._expand(tensor._id):
            var = self._vars[tensor._id]
        return var

    def alias(self, tensor: Tensor, var: int) -> None:
        """Let `tensor` stand for `var` from now on."""
        self._vars[tensor._id] = var

    def alias_id(self, identity: int, var: int) -> None:
        """Like `alias`, for a tensor that may be gone."""
        self._vars[identity] = var

    def operand(self, tensor: Tensor) -> int:
        """Return the var of an input; what comes from outside becomes a leaf."""
        var = self._vars.get(tensor._id)
        return self._leaf(tensor) if var is None else var

    def _leaf(self, tensor: Tensor) -> int:
        if self._expand(tensor._id):
            return self._vars[tensor._id]
        kind = self._type_of(tensor)
        var = self.builder.leaf(kind)
        self._vars[tensor._id] = var
        self.values[var] = tensor
        if kind.dtype not in TRAINABLE:
            self.inert.add(var)
        return var

    def _type_of(self, tensor: Tensor) -> TensorType:
        return TensorType(self._dtype_of(tensor), tensor._shape_tuple())

    # ------------------------------------------------------------------ variables

    def cell(self, handle: Tensor, kind: TensorType | None = None) -> Cell | None:
        """Return the variable behind a handle, None where the resource is something else."""
        cell = self.cells.get(handle._id)
        if cell is None:
            held = kind or _tf.handle_type(handle)
            if held is None:
                return None
            first = self.builder.leaf(TensorType(*held))
            cell = self.cells[handle._id] = Cell(handle, first)
            self.cell_of[first] = cell
            if held[0] not in TRAINABLE:
                self.inert.add(first)
        return cell

    def _update(self, cell: Cell, opaque: bool) -> int:
        kind = self.builder.types[cell.current]
        (version,) = self.builder.define([kind])
        cell.versions.append(version)
        cell.since.append(len(self.builder.eqns))
        self.cell_of[version] = cell
        self.assigned.add(version)
        if opaque:
            self.opaque.add(version)
        if kind.dtype not in TRAINABLE:
            self.inert.add(version)
        return version

    def note_variable(self, variable: Any) -> None:
        """Remember which variable a handle belongs to."""
        cell = self.cells.get(variable.handle._id)
        if cell is not None:
            cell.variable = variable

    def holds(self, handle: Tensor) -> bool:
        """Say whether the present value of a variable is kept."""
        cell = self.cells.get(handle._id)
        return cell is not None and cell.current in self.values

    # ------------------------------------------------------------------ equations

    def append(
        self,
        op: str,
        traits: Traits,
        inputs: tuple[Tensor, ...],
        attrs: tuple[Attr, ...],
        outputs: tuple[Tensor, ...],
        frame: int,
        keep: str,
    ) -> None:
        """Write down an op without variables."""
        known = self._vars
        ins = []
        for tensor in inputs:
            var = known.get(tensor._id)
            ins.append(self._leaf(tensor) if var is None else var)
        outs = self._define(outputs)
        eqns = self.builder.eqns
        eqns.append(Eqn(op, tuple(ins), outs, attrs, frame))
        values = self.values
        if keep == "needed":
            some, but = traits.inputs
            if some:
                for index, var in enumerate(ins):
                    if index not in but:
                        values[var] = inputs[index]
            some, but = traits.outputs
            if some:
                for index, var in enumerate(outs):
                    if index not in but:
                        values[var] = outputs[index]
        if not traits.replayable or keep == "all":
            values.update(zip(outs, outputs, strict=True))

    def _define(self, outputs: tuple[Tensor, ...]) -> tuple[int, ...]:
        builder, known, dtype_of = self.builder, self._vars, self._dtype_of
        types, index = builder.types, len(builder.eqns)
        var = first = len(types)
        for tensor in outputs:
            dtype = dtype_of(tensor)
            types.append(TensorType(dtype, tensor._shape_tuple()))
            builder.producers.append(index)
            known[tensor._id] = var
            if dtype not in TRAINABLE:
                self.inert.add(var)
            var += 1
        return tuple(range(first, var))

    def append_access(
        self,
        op: str,
        kind: Kind,
        inputs: tuple[Tensor, ...],
        attrs: tuple[Attr, ...],
        outputs: tuple[Tensor, ...],
        frame: int,
        differentiable: bool,
    ) -> None:
        """Write down an op that reads or writes variables."""
        read_type = None
        if op == "ReadVariableOp":
            read_type = self._type_of(outputs[0])
        cells = [self.cell(t, read_type) if self._dtype_of(t) == _RESOURCE else None for t in inputs]
        ins = tuple(
            self.operand(tensor) if cell is None else cell.current for tensor, cell in zip(inputs, cells, strict=True)
        )
        if op == "AssignVariableOp" and cells[0] is not None:
            ins = ins[1:]
        outs = self._define(outputs)
        if kind is Kind.WRITE:
            written = [cell for cell in cells if cell is not None]
            outs += tuple(self._update(cell, not differentiable) for cell in written)
        self.builder.eqns.append(Eqn(op, ins, outs, attrs, frame))
        values = self.values
        if op == "ReadVariableOp":
            var = ins[0]
            if self.keep != "leaves" or self.builder.producers[var] == LEAF or var in self.opaque:
                values.setdefault(var, outputs[0])
        else:
            values.update(zip(outs, outputs, strict=False))
            for var, tensor, cell in zip(ins[-len(inputs) :], inputs[-len(ins) :], cells[-len(ins) :], strict=True):
                if cell is None:
                    values[var] = tensor

    def append_call(self, op: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], frame: int, writes: tuple[int, ...]) -> int:
        """Write down the call of a function, which may have assigned some of its inputs."""
        cells = [self.cell(t) if self._dtype_of(t) == _RESOURCE else None for t in inputs]
        ins = tuple(
            self.operand(tensor) if cell is None else cell.current for tensor, cell in zip(inputs, cells, strict=True)
        )
        index = len(self.builder.eqns)
        outs = self._define(outputs)
        self.values.update(zip(outs, outputs, strict=True))
        for position in writes:
            cell = cells[position]
            if cell is not None:
                outs += (self._update(cell, opaque=True),)
        self.builder.eqns.append(Eqn(op, ins, outs, (), frame))
        return index

    def append_backward(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], function: Callable, frame: int) -> None:
        """Write down that `outputs` go back to `inputs` by `function`, whatever made them.

        The equation takes what was made before as inputs of its own, so that the program stays single assignment
        and still says how to compute the outputs.
        """
        ins = tuple(self._resource_or_operand(tensor) for tensor in inputs)
        made = tuple(self.operand(tensor) for tensor in outputs)
        outs = self._define(tuple(outputs))
        index = len(self.builder.eqns)
        self.builder.eqns.append(Eqn(CUSTOM, ins + made, outs, (("name", name.encode()),), frame))
        self.backwards[index] = Backward(function, ins, outs)

    def _resource_or_operand(self, tensor: Tensor) -> int:
        cell = self.cell(tensor) if self._dtype_of(tensor) == _RESOURCE else None
        return self.operand(tensor) if cell is None else cell.current

    def attach_backward(self, index: int, outputs: Sequence[Tensor], inputs: Sequence[Tensor], function: Callable, call: _tf.FunctionCall) -> None:
        """Say how the function that equation `index` calls goes back."""
        eqn = self.builder.eqns[index]
        ins = eqn.inputs[: len(inputs)]
        outs = tuple(self._vars[tensor._id] for tensor in outputs)
        self.backwards[index] = Backward(function, ins, outs, call)
