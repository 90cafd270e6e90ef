"""Ways back that are data: the backward function of a custom gradient, as a program of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape import _hooks
from retrotape._tf import tf
from retrotape.errors import NotPersistableError, TooDeepError
from retrotape.execute import Values, run_eqn
from retrotape.ir import Eqn, Program, reached_from
from retrotape.record import CUSTOM, Backward, Recording, current_stack
from retrotape.saving._flatten import flatten

Tensor = Any
Result = tuple[int, ...]  # a var; three for rows, their numbers and the shape of the whole; none for None
DEEPEST = 3  # custom gradients inside of custom gradients: those that contain themselves have no end


class SavedFunction(NamedTuple):
    """A backward function as a program.

    Attributes:
      program: What it computes.
      grads: The leaves that stand for what flows in.
      captured: The leaves that stand for what it looks at.
      results: For each of its inputs, the vars of the gradient.
      backwards: The ways back through custom gradients inside, by equation.
    """

    program: Program
    grads: tuple[int, ...]
    captured: tuple[int, ...]
    results: tuple[Result, ...]
    backwards: Mapping[int, Backward]

    def looking_at(self, captured: Sequence[Tensor]) -> Callable[..., list[Any]]:
        """Return the function of gradients alone."""

        def run(*grads: Any) -> list[Any]:
            return self._run(captured, [tf.convert_to_tensor(grad) for grad in grads])

        return run

    def _run(self, captured: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Any]:
        env = dict(zip(self.captured, captured, strict=True))
        env.update(zip(self.grads, grads, strict=True))
        for index, eqn in enumerate(self.program.eqns):
            inputs = [env[var] for var in eqn.inputs]
            outputs = run_eqn(eqn, inputs)
            if eqn.op == CUSTOM:
                outputs = [tf.identity(value) for value in outputs]
                self._emit(index, eqn, env, inputs, outputs)
            env.update(zip(eqn.outputs, outputs, strict=True))
        return [self._result(env, found) for found in self.results]

    def _emit(self, index: int, eqn: Eqn, env: dict[int, Tensor], inputs: list[Tensor], outputs: list[Tensor]) -> None:
        if not tf.executing_eagerly():
            return  # in a graph that is exported, derivatives of this one are those of its ops
        name = dict(eqn.attrs)["name"].decode()  # type: ignore[union-attr]
        back = self.backwards.get(index)
        if back is None:

            def beyond(*grads: Any) -> list[Any]:
                raise TooDeepError(name, DEEPEST)

            current_stack().emit(name, outputs, inputs[: len(inputs) - len(outputs)], beyond)
            return
        function = back.function.looking_at([env[var] for var in back.captures])
        current_stack().emit(name, outputs, [env[var] for var in back.inputs], function)

    @staticmethod
    def _result(env: dict[int, Tensor], found: Result) -> Any:
        if not found:
            return None
        return env[found[0]] if len(found) == 1 else tf.IndexedSlices(*[env[var] for var in found])


def portable(recording: Recording) -> Recording:
    """Return a recording without anything that only this process knows: no calls, and ways back that are data."""
    flat = flatten(recording)
    _make_data(flat, 0)
    return flat


def _make_data(recording: Recording, depth: int) -> None:
    for index, back in list(recording.backwards.items()):
        if isinstance(back.function, SavedFunction):
            continue
        if depth > DEEPEST:
            del recording.backwards[index]
            continue
        recording.backwards[index] = _as_data(recording, index, back, depth)


def _as_data(recording: Recording, index: int, back: Backward, depth: int) -> Backward:
    values, types = Values(recording), recording.builder.types
    eqn = recording.builder.eqns[index]
    inner = Recording()

    def past(handle: Any) -> Any:
        cell = recording.cells.get(handle._id)
        return None if cell is None else values(cell.at(index))

    with current_stack().only(inner):
        with current_stack().unheard():
            grads = [tf.ones(types[var].shape, types[var].dtype) for var in back.outputs]
        with _hooks.variables_as(past):
            found = back.function(*grads)
    inner.settle()
    given = [inner.operand(grad) for grad in grads]
    _refuse_looks(recording, index, eqn, inner, given)
    results = list(found) if isinstance(found, (list, tuple)) else [found]
    kept = [[] if result is None else _tensors(result) for result in results]
    for tensors in kept:
        for tensor in tensors:
            inner.operand(tensor)  # one that is handed back as it is took no part so far
    flat = flatten(inner)
    _make_data(flat, depth + 1)
    grad_vars = [flat.operand(grad) for grad in grads]
    outcome = tuple(tuple(flat.operand(tensor) for tensor in tensors) for tensors in kept)
    leaves = {var for var, producer in enumerate(flat.builder.producers) if producer < 0}
    captured = sorted(leaves - set(grad_vars))
    outer = tuple(_outside(recording, flat, var) for var in captured)
    function = SavedFunction(flat.program(), tuple(grad_vars), tuple(captured), outcome, dict(flat.backwards))
    return Backward(function, back.inputs, back.outputs, outer)


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, tf.IndexedSlices):
        return [result.values, result.indices, result.dense_shape]
    return [tf.convert_to_tensor(result)]


def _outside(recording: Recording, inner: Recording, var: int) -> int:
    """Return the var that a leaf of a backward function has where the function was made."""
    for identity, known in inner.identities():
        if known == var:
            found = recording.known(identity)
            if found is not None:
                return found
    return recording.operand(inner.value(var))


def _refuse_looks(recording: Recording, index: int, eqn: Eqn, inner: Recording, grads: Sequence[int]) -> None:
    """Raise where Python code in a backward function looks at the gradient: a program has only one branch."""
    seen = {inner.known(identity) for identity, *_ in inner.looks}
    _, reached = reached_from(inner.builder, grads, range(len(inner.builder.eqns)))
    if not seen.isdisjoint(reached):
        name = dict(eqn.attrs)["name"].decode()  # type: ignore[union-attr]
        raise NotPersistableError(
            index,
            f"the custom gradient {name!r}",
            str(recording.program().frame_of(eqn)),
            "its backward function looks at the gradient in Python",
            "write that with `tf.where` or `tf.cond`",
        )
