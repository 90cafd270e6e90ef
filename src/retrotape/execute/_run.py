"""Running a program forwards: one loop for everybody, and one function that runs an equation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial

from retrotape._types import Tensor
from retrotape.ir import CUSTOM, Eqn, Program
from retrotape.record import Trace, for_execution, for_rule
from retrotape.rules import FORWARD, new_values
from retrotape.tf import core
from retrotape.tf.core import tf

Evaluate = Callable[[Eqn, list[Tensor]], list[Tensor]]
Observer = Callable[[Eqn, bool], None]

observer: Observer | None = None


def observe_ops(call: Observer | None) -> None:
    """Let `call` be called with each equation before it runs, and whether its gradient is what runs.

    There is one observer in a process: that of an isolated tape tells which op ran when the process died.
    """
    global observer
    observer = call


def announce(eqn: Eqn, backward: bool = False) -> None:
    """Tell the observer that an equation, or its gradient, is about to run."""
    if observer is not None:
        observer(eqn, backward)


def run(
    program: Program, feeds: MutableMapping[int, Tensor], indices: Iterable[int] | None = None
) -> MutableMapping[int, Tensor]:
    """Run a program on `feeds`, values by var, which grow by what the equations make; return them.

    Args:
      program: What to run.
      feeds: The values of its leaves, or of whatever else the equations take.
      indices: The equations to run, in order; all if None.
    """
    for _ in run_steps(program, feeds, indices):
        pass
    return feeds


def run_steps(
    program: Program,
    env: MutableMapping[int, Tensor],
    indices: Iterable[int] | None = None,
    evaluate: Evaluate | None = None,
) -> Iterator[tuple[int, Eqn]]:
    """Run a program equation by equation, and yield each after its outputs are in `env`.

    Args:
      program: What to run.
      env: Values by var: feeds at first, then what the equations make.
      indices: The equations to run, in order; all if None. It is read as the loop goes, so it may look at `env`.
      evaluate: Computes the outputs of an equation; `run_eqn` if None.
    """
    eqns, evaluate = program.eqns, evaluate or run_eqn
    for index in range(len(eqns)) if indices is None else indices:
        eqn = eqns[index]
        env.update(zip(eqn.outputs, evaluate(eqn, [env[var] for var in eqn.inputs]), strict=False))
        yield index, eqn


def run_eqn(eqn: Eqn, inputs: list[Tensor]) -> list[Tensor]:
    """Compute the outputs of an equation."""
    announce(eqn)
    if eqn.op == CUSTOM:
        return inputs[len(inputs) - len(eqn.outputs) :]
    if eqn.op in FORWARD:
        attrs = {name: for_rule(value) for name, value in eqn.attrs}
        # Tensors of their own, so that each can stand for its var and no other.
        return [tf.identity(value) for value in new_values(eqn.op, attrs, inputs)]
    if eqn.op == "ResourceGather":
        return [tf.gather(*inputs, batch_dims=dict(eqn.attrs).get("batch_dims", 0))]
    if eqn.op == "ResourceGatherNd":
        return [tf.gather_nd(*inputs)]
    return core.run(eqn.op, inputs, for_execution(eqn.attrs), len(eqn.outputs))


def evaluator(trace: Trace, *, resized: bool = False) -> Evaluate:
    """Return what runs an equation of a trace; one of a file is checked before and after it runs.

    Args:
      trace: Where the equation is from.
      resized: Whether results may have other sizes than the program has, as in a replay.
    """
    if trace.guard is None:
        return run_eqn
    return partial(_run_guarded, trace, resized)


def _run_guarded(trace: Trace, resized: bool, eqn: Eqn, inputs: list[Tensor]) -> list[Tensor]:
    announce(eqn)  # a check can fail as badly as the op
    return trace.guard.run(eqn, inputs, trace.program.types, resized=resized)
