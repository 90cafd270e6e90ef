"""A recording as a function of some of its tensors: `tape.compile`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from retrotape._types import Handle, Tensor
from retrotape.errors import PlaybackError, ReplayError, ShapeMismatchError, TapeUseError
from retrotape.execute import Values, evaluator, run_steps
from retrotape.ir import LEAF
from retrotape.lower import NotCompilableError
from retrotape.playback._arguments import Pack
from retrotape.playback._known import playing
from retrotape.playback._path import Path, path_of, reads_of
from retrotape.playback._step import is_plain
from retrotape.playback._tree import Node, Options, Played, play
from retrotape.record import Trace
from retrotape.tf.core import identity_of, tf
from retrotape.tf.hook_table import users
from retrotape.tf.hooks_ops import stamp_writes
from retrotape.tf.nests import describe
from retrotape.tf.saved_variable import SavedVariable


class CompiledTape:
    """A recording as a function; `tape.compile` makes it.

    Calling it with new values for the inputs returns the new values of the outputs, and updates the variables.

    Attributes:
      variables: The variables, by name: those of the tape; for a loaded tape new ones, with the values of the file.
    """

    def __init__(self, trace: Trace, inputs: Sequence[Any], outputs: Sequence[Any], pack: Pack, jit: bool) -> None:
        if trace.guard is not None:  # it was loaded: each op is checked once, on the values of the file
            leaves = {var for eqn in trace.program.eqns for var in eqn.inputs if trace.program.producers[var] == LEAF}
            values = Values(trace)
            for _ in run_steps(trace.program, {var: values(var) for var in leaves}, None, evaluator(trace)):
                pass
        if len({id(one) for one in inputs}) != len(inputs):
            raise TapeUseError("Got one input twice. Name each once.")
        try:
            path = path_of(trace, inputs, outputs, reads_of(trace))
        except NotCompilableError as error:
            raise PlaybackError("This tape", str(error)) from error
        self._inputs, self._pack = list(inputs), pack
        self.variables: dict[str, Any] = {}
        self._path = self._with_handles(trace, path)
        self._root = _tree(self._path, Options(jit, False))

    def _with_handles(self, trace: Trace, path: Path) -> Path:
        handles: dict[int, Handle] = {}
        by_key = {identity_of(handle): var for var, handle in path.handles.items()}
        for key, variable in trace.variables.items():
            var = by_key.get(key)
            if isinstance(variable, SavedVariable) and var is not None:
                variable = tf.Variable(_first_value(trace, key), name=trace.path_of(variable).rpartition("/")[2])
            self.variables[trace.path_of(variable)] = variable
            if var is not None:
                handles[var] = variable.handle
        handles = {var: handles.get(var, handle) for var, handle in path.handles.items()}
        updates = tuple(one._replace(handle=handles[one.first]) for one in path.updates)
        return path._replace(handles=handles, updates=updates)

    def __call__(self, *inputs: Any) -> Any:
        """Return the outputs for new values of the inputs.

        Raises:
          ShapeMismatchError: If a value has another shape or dtype than the recorded one.
          ReplayError: If Python has read a value that would be another one now.
        """
        if len(inputs) != len(self._inputs):
            raise TapeUseError(f"This tape was compiled for {len(self._inputs)} inputs, got {len(inputs)}.")
        tensors = [_converted(value, part) for value, part in zip(inputs, self._inputs, strict=True)]
        if not is_plain():
            raise TapeUseError(
                "A compiled tape runs in eager code where nothing records: what it computes could not be "
                "differentiated. Call it outside the tape, the step or the tf.function."
            )
        values = dict(zip(self._path.inputs, tensors, strict=True))
        with playing:
            if users:
                stamp_writes([update.handle for update in self._path.updates])
            found = play(self._root, values)
        if not isinstance(found, Played):
            check = found[0].segment.checks[0]
            raise ReplayError(check.place, "shape" if check.of_shape else "value")
        return self._pack([self._output(values, var) for var in self._path.outputs])

    def _output(self, values: Mapping[int, Tensor], var: int) -> Tensor:
        return values[var] if var in values else self._path.tensors[var]


def _tree(path: Path, options: Options) -> Node:
    nodes = [Node(one, path, one is path.segments[-1], options) for one in path.segments]
    for node, after in pairwise(nodes):
        node.children[node.segment.expected] = after
    return nodes[0]


def _first_value(trace: Trace, key: int) -> Tensor:
    return Values(trace)(trace.facts.histories[key].versions[0])


def _converted(value: Any, part: Any) -> Tensor:
    try:
        found = tf.convert_to_tensor(value, part.dtype)
    except (TypeError, ValueError) as error:
        raise ShapeMismatchError(f"Got {type(value).__name__} for {describe(part)}: {error}.") from None
    if found.shape != part.shape:
        raise ShapeMismatchError(
            f"Got a value of shape {tuple(found.shape)} for {describe(part)}. "
            "The program was recorded for the old shape; record again for a new one."
        )
    return found


class Playable(ABC):
    """The method of tapes that makes a function of a recording."""

    @abstractmethod
    def _eager(self, method: str) -> Any:
        """Return the session, which must be one of eager code."""

    @abstractmethod
    def _one(self, key: Any) -> Any:
        """Return the tensor or variable for a key, which may be a name."""

    def compile(self, inputs: Sequence[Any], outputs: Any, *, jit: bool = False) -> CompiledTape:
        """Return what was recorded as one function of TensorFlow, from new values of some tensors to those of others.

        On a live tape, it reads variables, and assigns those that were assigned while the tape recorded. On a loaded
        tape it has variables of its own: `function.variables`.

        Args:
          inputs: Tensors or variables that the tape started from, by name on a tape that has names.
          outputs: A tensor, a variable, a name, or a nest of them; for a variable, its last value is returned.
          jit: Whether XLA compiles it.

        Raises:
          PlaybackError: If something was recorded that cannot be repeated.

        >>> x, w = tf.constant(3.0), tf.Variable(2.0)
        >>> with rt.Tape() as tape:
        ...     y = w * x
        ...     _ = w.assign_add(1.0)
        >>> function = tape.compile(inputs=[x], outputs=y)
        >>> float(function(10.0)), float(function(10.0))
        (30.0, 40.0)
        """
        session = self._eager("compile")
        session.flush()
        parts = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        flat = tf.nest.flatten(outputs)
        return CompiledTape(
            session.trace,
            [self._one(part) for part in parts],
            [self._one(part) for part in flat],
            lambda tensors: tf.nest.pack_sequence_as(outputs, tensors),
            jit,
        )
