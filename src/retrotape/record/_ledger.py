"""What a recording knows of tensors and variables: which var stands for each, and the values that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from itertools import islice
from typing import Any, TypeVar, cast

from retrotape.ir import Builder, TensorType
from retrotape.record._away import is_away
from retrotape.record._cells import Cell, same
from retrotape.record._traits import TRAINABLE
from retrotape.tf import core, functions, hooks
from retrotape.tf.core import whole_of
from retrotape.tf.saved_variable import SavedVariable

Tensor = Any


_Method = TypeVar("_Method", bound=Callable[..., Any])


def whole(method: _Method) -> _Method:
    """Let a recording know where an exception, such as that of Ctrl-C, has come between two parts of a change."""

    @wraps(method)
    def change(self: Ledger, *args: Any) -> Any:
        try:
            return method(self, *args)
        except BaseException:
            self.damaged = True
            raise

    return cast(_Method, change)


class Ledger:
    """Vars of tensors, versions of variables, kept values."""

    def __init__(self, dtype_of: Callable[[Tensor], int]) -> None:
        self._dtype_of = dtype_of
        self.symbolic = dtype_of is not core.eager_dtype  # of a graph, which has no values
        self.clear()

    def clear(self) -> None:
        """Forget everything, in place: tapes that are open go on writing here."""
        # By an exception that came while something was being written down, or here, before the end of `clear`.
        self.damaged = True
        self.builder = Builder()
        self.values: dict[int, Any] = {}  # by var: a tensor, or what fetches one
        self.variables: dict[int, Any] = {}  # by identity of the handle, as they were first read
        self.owners: dict[int, Any] = {}  # by `id` of the variable: the Keras variable that it is inside of
        self.cells: dict[int, Cell] = {}  # by identity of the handle
        self.cell_of: dict[int, Cell] = {}  # by version
        self.assigned: set[int] = set()  # versions that were made while recording
        self.opaque: set[int] = set()  # those made by something that has no derivative rule
        self.gaps: set[int] = set()  # versions that came about while nobody was listening
        self.inert: set[int] = set()  # vars of a dtype without derivative
        # Variables that may have been assigned without being recorded, and whether they certainly were.
        self._stale: dict[int, bool] = {}
        self.uninitialized: set[int] = set()  # what new variables held before they were given their first value
        self.stand_ins: dict[int, int] = {}  # by identity of a handle, that of the one for which it stands
        self._resources: dict[str, int] = {}  # by name of a resource, the identity of the handle
        self._named: tuple[dict[int, Cell], int] = self.cells, 0  # how many of them these are the names of
        self.began = hooks.now()
        self.scattered: set[int] = set()  # variables that hand out copies, since single rows of them were changed
        self._vars: dict[int, int] = {}  # by identity of the tensor

    # ------------------------------------------------------------------ tensors

    def find(self, tensor: Tensor) -> int | None:
        """Return the var that stands for `tensor`, None where it took no part."""
        return self._vars.get(tensor._id)

    def operand(self, tensor: Tensor) -> int:
        """Return the var of an input; what comes from outside becomes a leaf."""
        var = self._vars.get(tensor._id)
        if var is None:
            var = self._new_leaf(self._type_of(tensor))
            self._vars[tensor._id] = var
            self.values[var] = tensor
        return var

    def identities(self) -> Iterable[tuple[int, int]]:
        """Return the identity of every tensor that took part, with its var."""
        return self._vars.items()

    def known(self, identity: int) -> int | None:
        """Return the var of the tensor of that identity."""
        return self._vars.get(identity)

    def forget_from(self, count: int) -> None:
        """Know no tensor by a var that is not among the first `count`."""
        self._vars = {identity: var for identity, var in self._vars.items() if var < count}

    def know_values(self) -> None:
        """Know every value that is kept by its var: one may have been found by what was taken back."""
        for var, value in self.values.items():
            if not is_away(value):
                self._vars.setdefault(value._id, var)

    def forget(self, identity: int) -> None:
        """Know a tensor no more."""
        self._vars.pop(identity, None)

    def recognise(self, identity: int, earlier: Iterable[int | None]) -> None:
        """Take a tensor for one that had one of the earlier identities, if one of them is known."""
        for other in earlier:
            var = None if other is None else self._vars.get(other)
            if var is not None:
                self._vars[identity] = var
                return

    def alias(self, identity: int, var: int) -> None:
        """Let the tensor of that identity, which may be gone, stand for `var` from now on."""
        self._vars[identity] = var

    def _type_of(self, tensor: Tensor) -> TensorType:
        return TensorType(self._dtype_of(tensor), tensor._shape_tuple())

    def _new_leaf(self, kind: TensorType) -> int:
        try:  # as `whole` does: this runs for every tensor that comes from outside
            var = self.builder.leaf(kind)
            if kind.dtype not in TRAINABLE:
                self.inert.add(var)
        except BaseException:
            self.damaged = True
            raise
        return var

    def _define(self, outputs: Iterable[Tensor]) -> tuple[int, ...]:
        """Make the vars that the next equation defines."""
        outs = self.builder.define([self._type_of(tensor) for tensor in outputs])
        for var, tensor in zip(outs, outputs, strict=True):
            self._vars[tensor._id] = var
            if self.builder.types[var].dtype not in TRAINABLE:
                self.inert.add(var)
        return outs

    # ------------------------------------------------------------------ variables

    @whole
    def cell(self, handle: Tensor, kind: TensorType | None = None) -> Cell | None:
        """Return the variable behind a handle, None where the resource is something else."""
        cell = self.known_cell(handle)
        if cell is None:
            held = kind or functions.handle_type(handle)
            if held is None:
                return None
            first = self._new_leaf(TensorType(*held))
            cell = self.cells[handle._id] = Cell(handle, first)
            self.cell_of[first] = cell
            if self._stale.pop(handle._id, False):  # its value on entry was never seen
                self._add_gap(cell)
        return cell

    def known_cell(self, handle: Tensor) -> Cell | None:
        """Return the variable behind a handle that was seen, or behind one of which it is a copy."""
        cell, identity = self.cells.get(handle._id), handle._id
        if cell is not None or identity in self.variables or self.symbolic:
            return cell
        if identity not in self.stand_ins:
            self.stand_ins[identity] = self._first_of_its_name(handle)
        return self.cells.get(self.stand_ins[identity])

    def _first_of_its_name(self, handle: Tensor) -> int:
        """Return the identity of the first handle of a variable that was seen, of which this one may be a copy."""
        cells, count = self._named
        if cells is not self.cells:  # some were taken back
            self._resources, count = {}, 0
        new = list(islice(reversed(self.cells), len(self.cells) - count))
        for known in reversed(new):
            self._resources.setdefault(core.resource_name(self.cells[known].handle), known)
        self._named = self.cells, len(self.cells)
        return self._resources.get(core.resource_name(handle), handle._id)

    def stand_in(self, handle: Tensor) -> int:
        """Return a var of the type of a variable, which is known by nothing else."""
        held = functions.handle_type(handle)
        assert held is not None
        return self._new_leaf(TensorType(*held))

    def add_version(self, handle: Tensor, version: int, since: int) -> None:
        """Let a variable have one more version, or its first."""
        cell = self.cells.get(handle._id)
        if cell is None:
            cell = self.cells[handle._id] = Cell(handle, version)
            cell.since = [since]
        else:
            cell.versions.append(version)
            cell.since.append(since)
        self.cell_of[version] = cell

    def mark_stale(self) -> None:
        """Take the value of no variable for granted: nobody counted what was written meanwhile."""
        for identity in self.cells:
            self._stale.setdefault(identity, False)

    def mark_written(self, identity: int) -> None:
        """Note that a variable was assigned and that this is not recorded, whatever value it got."""
        self._stale[self.stand_ins.get(identity, identity)] = True

    def unread(self) -> list[Tensor]:
        """Return the handles of variables that were assigned and whose value nobody has looked at since."""
        return [cell.handle for cell in self.cells.values() if cell.current not in self.values]

    def copied(self) -> list[Tensor]:
        """Return the handles of variables whose values here are copies, by which a change could not be noticed."""
        return [self.cells[identity].handle for identity in self.scattered if identity in self.cells]

    def value(self, var: int) -> Tensor | None:
        """Return a kept value, fetched if it is not in memory."""
        value = self.values.get(var)
        if value is None or not is_away(value):
            return value
        fetched = value.fetch()
        self._vars[fetched._id] = var
        if value.stays:
            self.values[var] = fetched
        return fetched

    def new_identity(self, var: int) -> int:
        """Return an identity that no tensor has, by which `var` is known too."""
        identity = core.next_id()
        self._vars[identity] = var
        return identity

    def hold(self, handle: Tensor, value: Tensor) -> None:
        """Keep the present value of a variable, as a tensor that stands for it: whoever uses it must find the path."""
        version = self.cells[handle._id].current
        self._vars[value._id] = version  # first: a value that is used must be known
        self.values[version] = value

    def _check(self, cell: Cell, value: Tensor) -> None:
        """Give a variable one more version if what was read is not what is known of it."""
        written = self._stale.pop(cell.handle._id, None)
        if self.symbolic or (written is False and self._is_unchanged(cell, value)):
            return
        held = self.values.get(cell.current)
        if written is None and (held is None or is_away(held) or core.share_buffer(held, value) or same(held, value)):
            return  # copies are handed out of a variable of which single rows were changed, hence the last comparison
        self._add_gap(cell)

    def _add_gap(self, cell: Cell) -> None:
        """Give a variable one more version, of which nobody knows how it came about."""
        version = self._new_leaf(self.builder.types[cell.current])
        self.add_version(cell.handle, version, len(self.builder.eqns) - 1)
        if version not in self.inert:
            self.gaps.add(version)

    def _is_unchanged(self, cell: Cell, value: Tensor) -> bool:
        held = self.value(cell.current)
        return held is not None and core.share_buffer(held, value)

    def adopt(self, handle: Tensor, value: Tensor) -> None:
        """Take a new variable for one that holds `value`."""
        self.cells[handle._id] = Cell(handle, self.operand(value))

    def holds(self, handle: Tensor) -> bool:
        """Say whether the present value of a variable is kept, and it is sure that it is the present one."""
        cell = self.cells.get(handle._id)
        return cell is not None and cell.current in self.values and not self.is_stale(handle)

    def is_stale(self, handle: Tensor) -> bool:
        """Say whether a variable may have changed since its value was last seen."""
        return handle._id in self._stale and handle._id in self.cells

    def owner_of(self, variable: Any) -> Any | None:
        """Return the Keras variable that a variable is inside of, if there is one and it was seen."""
        found = self.owners.get(id(variable))
        return found if found is not None else self.owners.get(id(whole_of(variable)))

    def is_trainable(self, variable: Any) -> bool:
        """Say whether a variable is trainable now: where Keras has it, what Keras says."""
        owner = self.owner_of(variable)
        return bool(variable.trainable if owner is None else owner.trainable)

    def trainable(self, variables: Iterable[Any]) -> list[Any]:
        """Return those of some variables that are trainable now; of one that Keras has, the Keras variable.

        Of one that has a part on each device, the whole of it, once.
        """
        found = [(variable, self.owner_of(variable)) for variable in variables if self.is_trainable(variable)]
        wholes = [_first(owner, whole_of(variable), variable) for variable, owner in found]
        return list({id(whole): whole for whole in wholes}.values())

    def is_frozen(self, variable: Any) -> bool:
        """Say whether a variable was made to be trained, and Keras says that it is not to be."""
        if isinstance(variable, SavedVariable):
            return variable.frozen
        return variable.trainable and not self.is_trainable(variable)

    def path_of(self, variable: Any) -> str:
        """Return the name of a variable, of a Keras variable its path."""
        owner = self.owner_of(variable)
        return variable.name.removesuffix(":0") if owner is None else owner.path

    def name_of(self, cell: Cell) -> str:
        """Return the name of a variable, for messages."""
        variable = self.variables.get(cell.handle._id)
        return "a variable" if variable is None else repr(variable.name)

    def _drop_uninitialized(self, cell: Cell | None) -> None:
        """Let what a call has given a new variable be its first value: whatever was there before is read and held."""
        if cell is not None and len(cell.versions) == 2 and cell.versions[0] not in self.values:
            self.uninitialized.add(cell.versions[0])
            del self.cell_of[cell.versions[0]], cell.versions[0], cell.since[0]

    def _update(self, cell: Cell, opaque: bool) -> int:
        kind = self.builder.types[cell.current]
        (version,) = self.builder.define([kind])
        self.add_version(cell.handle, version, len(self.builder.eqns))
        self.assigned.add(version)
        if opaque:
            self.opaque.add(version)
        if kind.dtype not in TRAINABLE:
            self.inert.add(version)
        return version


def _first(*values: Any) -> Any:
    """Return the first that is not None."""
    return next(value for value in values if value is not None)
