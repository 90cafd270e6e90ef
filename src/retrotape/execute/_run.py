"""Runs a program forward: the only loop that does, and the only function that runs an equation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial

from retrotape._types import Tensor
from retrotape.errors import LostValueError
from retrotape.ir import COLLECTIVES, CUSTOM, Eqn, Program, replicas_of
from retrotape.record import Trace, for_execution, for_rule
from retrotape.rules import FORWARD, new_values
from retrotape.tf import core
from retrotape.tf.core import tf

Evaluate = Callable[[Eqn, list[Tensor]], list[Tensor]]
Observer = Callable[[Eqn, bool], None]

observer: Observer | None = None


def observe_ops(call: Observer | None) -> None:
    """Call `call` before each equation runs, with the equation and whether it is its gradient that runs.

    There is one observer per process: an isolated tape uses it to report which op was running when the process died.
    """
    global observer
    observer = call


def announce(eqn: Eqn, backward: bool = False) -> None:
    """Notify the observer that an equation, or its gradient, is about to run."""
    if observer is not None:
        observer(eqn, backward)


def run(
    program: Program, feeds: MutableMapping[int, Tensor], indices: Iterable[int] | None = None
) -> MutableMapping[int, Tensor]:
    """Run a program on `feeds`, values by var; add the outputs of its equations to them, and return them.

    Args:
      program: What to run.
      feeds: The values of its leaves, or of any other inputs of the equations.
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
      env: Values by var: the feeds, to which outputs are added.
      indices: The equations to run, in order; all if None. It is consumed lazily, so it may read `env`.
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
    if eqn.op in COLLECTIVES:
        raise LostValueError(
            f"The result of an {eqn.op} of {replicas_of(eqn)} replicas can be computed only from the tapes "
            "of all workers",
            "Save the tape on every worker, `tape.save('job/', names)`, and query the whole: `rt.load('job/')`.",
        )
    if eqn.op in FORWARD:
        attrs = {name: for_rule(value) for name, value in eqn.attrs}
        # New tensors, so that each identifies one var.
        return [tf.identity(value) for value in new_values(eqn.op, attrs, inputs)]
    if eqn.op == "ResourceGather":
        return [tf.gather(*inputs, batch_dims=dict(eqn.attrs).get("batch_dims", 0))]
    if eqn.op == "ResourceGatherNd":
        return [tf.gather_nd(*inputs)]
    return core.run(eqn.op, inputs, for_execution(eqn.attrs), len(eqn.outputs))


def evaluator(trace: Trace, *, resized: bool = False) -> Evaluate:
    """Return the function that runs equations of a trace; those of a file are checked before and after they run.

    Args:
      trace: The trace of the equations.
      resized: Whether results may differ in size from the program's types, as in a replay.
    """
    if trace.guard is None:
        return run_eqn
    return partial(_run_guarded, trace, resized)


def _run_guarded(trace: Trace, resized: bool, eqn: Eqn, inputs: list[Tensor]) -> list[Tensor]:
    announce(eqn)  # before the check, which can crash the process as the op can
    return trace.guard.run(eqn, inputs, trace.program.types, resized=resized)
