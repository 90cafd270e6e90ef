"""Ways back that are data: the backward function of a custom gradient, as a program of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape.errors import NotPersistableError, RetrotapeError, TooDeepError
from retrotape.execute import PastVariables, Values, run_eqn
from retrotape.ir import Eqn, Program, reached_from, slice_to
from retrotape.record import CUSTOM, Backward, Look, Recording, current_stack
from retrotape.rules import allowed
from retrotape.tf import hooks
from retrotape.tf.core import tf
from retrotape.transform._flatten import flatten

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
      guard: Runs its ops, where all this comes from a file.
    """

    program: Program
    grads: tuple[int, ...]
    captured: tuple[int, ...]
    results: tuple[Result, ...]
    backwards: Mapping[int, Backward]
    guard: Any = None

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
            if self.guard is not None and tf.executing_eagerly():  # in a graph nothing runs yet, and nothing has a size
                outputs = self.guard.run(eqn, inputs, self.program.types, resized=True)
            else:
                outputs = run_eqn(eqn, inputs)
            if eqn.op == CUSTOM:
                outputs = [tf.identity(value) for value in outputs]
                self._emit(index, eqn, env, inputs, outputs)
            env.update(zip(eqn.outputs, outputs, strict=True))
        return [self._result(env, found) for found in self.results]

    def _emit(self, index: int, eqn: Eqn, env: dict[int, Tensor], inputs: list[Tensor], outputs: list[Tensor]) -> None:
        if not tf.executing_eagerly():
            return  # in a graph that is exported, derivatives of this one are those of its ops
        name, back = custom_name(eqn), self.backwards.get(index)
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


def portable(recording: Recording, freeze: Collection[str] = ()) -> Recording:
    """Return a recording without anything that only this process knows: no calls, and ways back that are data.

    Functions and custom gradients whose names are in `freeze` are not looked into: what they gave stays as it is.
    """
    with current_stack().unheard():  # a tape that is open must not hear what is computed for this
        flat = flatten(recording, freeze)
        _make_data(flat, 0, freeze)
    return flat


def custom_name(eqn: Eqn) -> str:
    """Return the name of the function that a custom gradient was made for."""
    return dict(eqn.attrs)["name"].decode()  # type: ignore[union-attr]


def _make_data(recording: Recording, depth: int, freeze: Collection[str] = ()) -> None:
    for index, back in list(recording.backwards.items()):
        if isinstance(back.function, SavedFunction):
            continue
        if depth > DEEPEST or custom_name(recording.builder.eqns[index]) in freeze:
            del recording.backwards[index]
            continue
        recording.backwards[index] = _as_data(recording, index, back, depth)


def _as_data(recording: Recording, index: int, back: Backward, depth: int) -> Backward:
    inner, grads, results = _heard(recording, index, back)
    kept = [[] if result is None else _tensors(result) for result in results]
    for tensors in kept:
        for tensor in tensors:
            inner.operand(tensor)  # one that is handed back as it is took no part so far
    flat = flatten(inner)
    refused = sorted({eqn.op for eqn in flat.builder.eqns} - allowed())
    if refused:
        reason = f"its backward function runs {', '.join(refused)}, which a file may not contain"
        raise _not_persistable(recording, index, reason, "do that outside of the backward function")
    _make_data(flat, depth + 1)
    grad_vars = [flat.operand(grad) for grad in grads]
    outside = _outside(recording, flat)
    _take_looks(recording, index, flat, grad_vars, outside)
    outcome = tuple(tuple(flat.operand(tensor) for tensor in tensors) for tensors in kept)
    leaves = {var for var, producer in enumerate(flat.builder.producers) if producer < 0}
    captured = sorted(leaves - set(grad_vars))
    outer = tuple(outside[var] if var in outside else recording.operand(flat.value(var)) for var in captured)
    function = SavedFunction(flat.program(), tuple(grad_vars), tuple(captured), outcome, dict(flat.backwards))
    return Backward(function, back.inputs, back.outputs, outer)


def _heard(recording: Recording, index: int, back: Backward) -> tuple[Recording, list[Tensor], list[Any]]:
    """Run a backward function as of the time of the call; return what ran, what flowed in and what came out."""
    values, types, inner = Values(recording), recording.builder.types, Recording()
    with current_stack().only(inner):
        with current_stack().unheard():
            grads = [tf.ones(types[var].shape, types[var].dtype) for var in back.outputs]
        try:
            with hooks.variables_as(PastVariables(recording, index, values)):
                found = back.function(*grads)
        except RetrotapeError:
            raise
        except Exception as error:
            reason = f"its backward function fails with {type(error).__name__}: {error}"
            raise _not_persistable(recording, index, reason, "use it outside of a tf.function") from error
    inner.settle()
    for grad in grads:
        inner.operand(grad)
    return inner, grads, list(found) if isinstance(found, (list, tuple)) else [found]


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, tf.IndexedSlices):
        return [result.values, result.indices, result.dense_shape]
    return [tf.convert_to_tensor(result)]


def _outside(recording: Recording, inner: Recording) -> dict[int, int]:
    """Return, for vars of a backward function, those that they are where the function was made."""
    found: dict[int, int] = {}
    for identity, var in inner.identities():
        outer = recording.known(identity)
        if outer is not None:
            found.setdefault(var, outer)
    return found


_SIZES = frozenset(("Shape", "ShapeN", "Size", "Rank"))


def _take_looks(
    recording: Recording, index: int, inner: Recording, grads: Sequence[int], outside: Mapping[int, int]
) -> None:
    """Note at which recorded values Python code in a backward function looks.

    A program has only one branch: on other values the function might do something else. It may not look at gradients
    at all, which are other ones for every question.
    """
    eqns = inner.builder.eqns
    sizes = {var for eqn in eqns if eqn.op in _SIZES for var in eqn.outputs}  # those of gradients are always the same
    _, reached = reached_from(inner.builder, grads, range(len(eqns)), (sizes,))
    for identity, _, frame, how, _ in inner.looks:
        var = inner.known(identity)
        if var in reached:
            reason = "its backward function decides by the value of the gradient what it runs"
            raise _not_persistable(recording, index, reason, "write that with `tf.where`")
        if var is None:  # it is only looked at, and no op takes it
            seen = {recording.known(identity)}
        else:
            used = {var, *(used for at in slice_to(inner.builder, [var]) for used in eqns[at].inputs)}
            seen = {outside.get(leaf) for leaf in used}
        place = recording.frames.number(inner.frames.place(frame))
        for outer in sorted(found for found in seen if found is not None):
            recording.looks.append(Look(recording.new_identity(outer), recording.stamps[index], place, how))


def _not_persistable(recording: Recording, index: int, reason: str, remedy: str) -> NotPersistableError:
    eqn = recording.builder.eqns[index]
    where = str(recording.frames.frame(eqn.frame))
    return NotPersistableError(index, custom_name(eqn), where, reason, remedy)
