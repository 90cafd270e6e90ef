"""A trace as a pure computation: values of variables go in, and new values come out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from retrotape.errors import LostValueError, NotPersistableError, OpaqueUpdateError
from retrotape.execute import run_eqn
from retrotape.ir import COLLECTIVES, CUSTOM, LEAF, Attr, DType, Eqn, TensorType
from retrotape.lower import Computation, NotCompilableError, Observation
from retrotape.record import Kind, Recorder, Trace, is_deterministic, is_pure_loop, traits
from retrotape.rules import FORWARD
from retrotape.tf import core
from retrotape.transform import flatten

# Ops with an effect that may be repeated in the order in which they ran.
EFFECTS = frozenset(
    """
    Assert PrintV2 WriteAudioSummary WriteGraphSummary WriteHistogramSummary WriteImageSummary WriteRawProtoSummary
    WriteScalarSummary WriteSummary FlushSummaryWriter
    """.split()  # noqa: SIM905
)
# Ops that draw random numbers by a state that TensorFlow keeps for each of them.
RANDOM = frozenset(
    """
    Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoisson RandomPoissonV2 RandomShuffle
    RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal
    """.split()  # noqa: SIM905
)
_SIMPLE = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}
_SLICES = {"ResourceStridedSliceAssign": "TensorStridedSliceUpdate"}  # with the same attributes


class Pure(NamedTuple):
    """A trace without variables: their first values are leaves, and their last values are computed.

    Vars are numbered in order of appearance, so that two traces that begin alike have the same numbers there.

    Attributes:
      types: The types of vars.
      producers: For each var, the number of its equation, or `LEAF`.
      eqns: The equations.
      origins: For each equation, the number of the one of the trace that it stands for.
      number: The var of a var of the trace, if an equation uses or makes it.
      constants: The bytes of leaves that are constants of inlined updates.
    """

    types: list[TensorType]
    producers: list[int]
    eqns: list[Eqn]
    origins: list[int]
    number: dict[int, int]
    constants: dict[int, bytes]

    def var(self, var: int, kind: TensorType) -> int:
        """Return the var of a var of the trace; a new leaf if no equation uses it."""
        if var not in self.number:
            self.number[var] = self.leaf(kind)
        return self.number[var]

    def leaf(self, kind: TensorType) -> int:
        """Add a leaf."""
        self.types.append(kind)
        self.producers.append(LEAF)
        return len(self.types) - 1

    def append(self, origin: int, eqn: Eqn) -> None:
        """Add an equation, whose outputs are leaves so far."""
        for var in eqn.outputs:
            self.producers[var] = len(self.eqns)
        self.eqns.append(eqn)
        self.origins.append(origin)


def check_updates(trace: Trace) -> None:
    """Raise if variables were created or changed in a way that cannot be repeated."""
    facts = trace.facts
    for var in facts.opaque:
        raise NotCompilableError(f"it updates {trace.name_of(facts.history_of[var])} by an op that has no rule")
    for key, variable in trace.variables.items():
        if not variable.shape.is_fully_defined():
            raise NotCompilableError(f"it uses {trace.name_of(facts.histories[key])}, whose shape may change")
    for var in facts.unrecorded_updates:
        raise NotCompilableError(f"it changes {trace.name_of(facts.history_of[var])} by an op that was not recorded")


def without_calls(trace: Trace) -> Trace:
    """Return the trace with function calls inlined, but not those of loops without effects."""
    if not trace.facts.calls:
        return trace
    try:
        return flatten(trace, keep=is_pure_loop)
    except (NotPersistableError, OpaqueUpdateError, LostValueError) as error:
        raise NotCompilableError(f"a tf.function that it calls cannot be repeated: {error}") from error


def purify(trace: Trace, inputs: Sequence[int]) -> Pure:
    """Return a trace, which has no calls, as a pure computation; `inputs` get the first numbers.

    Raises:
      NotCompilableError: If it runs an op that cannot be repeated.
    """
    program, pure = trace.program, Pure([], [], [], [], {}, {})
    for var in inputs:
        pure.var(var, program.types[var])
    for index, eqn in enumerate(program.eqns):
        try:
            parts = _pure(eqn, [program.types[var] for var in eqn.inputs])
        except NotCompilableError as error:
            raise NotCompilableError(f"{error}, at {program.frame_of(eqn)}") from None
        inputs = tuple(pure.var(var, program.types[var]) for var in eqn.inputs)
        if parts is not None:
            outputs = tuple(pure.var(var, program.types[var]) for var in eqn.outputs)
            for one in parts:
                pure.append(index, one._replace(inputs=tuple(inputs[k] for k in one.inputs), outputs=outputs))
        else:
            _splice(pure, index, eqn, inputs, program.types)
    return pure


def _pure(eqn: Eqn, kinds: list[TensorType]) -> list[Eqn] | None:
    """Return the equation that computes what an equation does, with the positions of inputs; None for several."""
    everything = tuple(range(len(eqn.inputs)))
    if eqn.op == CUSTOM:
        return [eqn._replace(inputs=everything, frame=0)]
    if eqn.op in COLLECTIVES:
        raise NotCompilableError(f"it runs {eqn.op}, which takes values of other replicas")
    if eqn.op == "DisableCopyOnRead":  # reads of slices are inlined
        return []
    if eqn.op in ("ReadVariableOp", "AssignVariableOp"):
        return [Eqn(CUSTOM, (0,), eqn.outputs, (), 0)]
    if eqn.op in _SIMPLE:
        return [Eqn(_SIMPLE[eqn.op], everything, eqn.outputs, (("T", DType(kinds[0].dtype)),), 0)]
    if eqn.op in _SLICES:
        return [eqn._replace(op=_SLICES[eqn.op], inputs=everything, frame=0)]
    if eqn.op in FORWARD or eqn.op.startswith("ResourceGather"):
        return None
    if eqn.op in EFFECTS and not eqn.outputs:
        return [eqn._replace(inputs=everything, frame=0)]
    if traits(eqn.op).kind is not Kind.PLAIN:
        raise NotCompilableError(f"it runs {eqn.op}, which has an effect that cannot be repeated")
    if eqn.op in RANDOM and any(value for name, value in eqn.attrs if name in ("seed", "seed2")):
        raise NotCompilableError(
            f"it runs {eqn.op} with a seed, which eager code would continue from another state; use `keras.random` "
            "with a `SeedGenerator`, or `tf.random.stateless_*`"
        )
    if eqn.op not in RANDOM and not is_deterministic(eqn.op):
        raise NotCompilableError(f"it runs {eqn.op}, which has an effect, or another result each time")
    return [eqn._replace(inputs=everything, frame=0)]


def _splice(pure: Pure, index: int, eqn: Eqn, inputs: Sequence[int], kinds: Sequence[TensorType]) -> None:
    """Add the plain ops that compute the new value of a variable, or rows of one."""
    inner = _inlined(eqn.op, eqn.attrs, tuple(kinds[var] for var in eqn.inputs), len(eqn.outputs))
    number = dict(zip(inner.inputs, inputs, strict=True))

    def of(var: int) -> int:
        if var not in number:
            number[var] = pure.leaf(inner.types[var])
        return number[var]

    for var, data in inner.constants:
        pure.constants[of(var)] = data
    for one in inner.eqns:
        ins = tuple(map(of, one.inputs))
        pure.append(index, one._replace(inputs=ins, outputs=tuple(map(of, one.outputs))))
    for var, (result,) in zip(eqn.outputs, inner.results, strict=True):  # which may be an input
        pure.append(index, Eqn(CUSTOM, (of(result),), (pure.var(var, kinds[var]),), (), 0))


@lru_cache(512)
def _inlined(op: str, attrs: tuple[Attr, ...], kinds: tuple[TensorType, ...], count: int) -> Computation:
    """Return the plain ops of an update, observed on zeros."""
    eqn = Eqn(op, tuple(range(len(kinds))), tuple(range(len(kinds), len(kinds) + count)), attrs, 0)
    zeros = [core.zeros(kind.shape, kind.dtype) for kind in kinds]
    observation = Observation(Recorder("leaves"), zeros)
    found = observation.computation(observation.run(lambda: run_eqn(eqn, zeros)))
    if found.read_inside or found.feeds:
        raise NotCompilableError(f"it runs {op}, whose result depends on values in Python")
    return found
