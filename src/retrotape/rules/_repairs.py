"""A pattern whose second derivative TensorFlow has wrong, and where it is put right.

`tf.nn.moments`, and with it Keras' BatchNormalization, computes the variance as the mean of
`squared_difference(y, stop_gradient(mean(y)))`. That is right for the first derivative: the part through the
mean is zero. It is wrong for the second, where that part counts. So a `stop_gradient` in this pattern is passed
where something else than the `squared_difference` looks at it, which is what a recorded first derivative does, and
stops where nothing else does: first derivatives are untouched, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from retrotape.ir import Eqn, Equations


def repairable(program: Equations, indices: Sequence[int]) -> frozenset[int]:
    """Return the outputs of those `stop_gradient`s among the equations that this derivative has to pass."""
    eqns, producers = program.eqns, program.producers
    centers: dict[int, int] = {}  # stopped mean → what it is the mean of
    for index in indices:
        eqn = eqns[index]
        if eqn.op == "StopGradient":
            producer = producers[eqn.inputs[0]]
            if producer >= 0 and eqns[producer].op == "Mean":
                centers[eqn.outputs[0]] = eqns[producer].inputs[0]
    if not centers:
        return frozenset()
    looked_at = {
        var
        for index in indices
        for var in centers.keys() & set(eqns[index].inputs)
        if not _is_variance(eqns[index], var, centers)
    }
    squared = {var for eqn in eqns for var in looked_at & set(eqn.inputs) if _is_variance(eqn, var, centers)}
    return frozenset(squared)


def _is_variance(eqn: Eqn, var: int, centers: dict[int, int]) -> bool:
    return eqn.op == "SquaredDifference" and set(eqn.inputs) == {var, centers[var]}
