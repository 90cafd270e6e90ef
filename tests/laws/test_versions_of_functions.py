"""Derivatives of every order by values that functions assigned are those of the same program as a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.seeds import seeds
from laws.version_programs import VARIABLES, Eagerly, OnVariables, Pure, gradient, make, start, target


class Recorded:
    """A program on a tape, and the truth about one of its versions and its first input."""

    def __init__(self, seed: int, folder: Any = None) -> None:
        program, (inputs, values) = make(seed), start(seed)
        self.inputs, variables = [tf.constant(one) for one in inputs], [tf.Variable(one) for one in values]
        with rt.Tape() as self.tape:
            machine = OnVariables(self.inputs, variables)
            machine.run(program)
            self.y = target(machine, seed)
        rng = np.random.default_rng(seed + 1)
        number = int(rng.integers(VARIABLES))
        count = len(self.tape.versions(variables[number])) if self._is_used(variables[number]) else 0
        self.k = int(rng.integers(count)) if count else 0
        self.variable, self.count = variables[number], count
        self.x, self.direction = self.inputs[0], tf.constant(rng.normal(size=self.inputs[0].shape))

        def ran(x: tf.Tensor, move: tf.Tensor, assigned: Any = None) -> Pure:
            machine = Pure([x, *self.inputs[1:]], list(map(tf.constant, values)), {(number, self.k): move}, assigned)
            machine.run(program)
            return machine

        self.pure = lambda x, move: target(ran(x, move), seed)
        # As a plain source sees it: its paths end at assignments.
        fixed = tf.identity(self.x)
        self.ended = lambda x, move: target(ran(x, move, ran(fixed, move).assigned), seed)
        self._again = lambda: (Eagerly(self.inputs, [tf.Variable(one) for one in values]), program, seed)
        self.eager_number = ran(self.x, tf.zeros_like(self.x)).eager.get((number, self.k))
        self.number = number
        self.zero = tf.zeros_like(self.x)
        for pure in (self.pure, self.ended):
            np.testing.assert_allclose(self.y, pure(self.x, self.zero), rtol=1e-12)

    def _is_used(self, variable: tf.Variable) -> bool:
        try:
            return bool(self.tape.versions(variable))
        except rt.errors.NotRecordedError:
            return False

    def eagerly(self) -> tuple[rt.Tape, tf.Tensor, Any]:
        """Return a tape of the same program without functions, its result, and the same version."""
        machine, program, seed = self._again()
        with rt.Tape() as tape:
            machine.run(program)
            y = target(machine, seed)
        return tape, y, tape.at(machine.variables[self.number], self.eager_number)

    @property
    def version(self) -> Any:
        return self.tape.at(self.variable, self.k)


def check(got: Any, expected: Any) -> None:
    __tracebackhide__ = True
    got = tf.zeros_like(expected) if got is None else tf.convert_to_tensor(got)
    np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-10)


def by_version(of: Recorded) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda move: of.pure(of.x, move)


def first(of: Recorded) -> None:
    check(of.tape.gradient(of.y, of.version), gradient(by_version(of), of.zero)[0])


def hvp(of: Recorded) -> None:
    def moved(move: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(gradient(by_version(of), move)[0] * of.direction)

    check(of.tape.hvp(of.y, of.version, of.direction), gradient(moved, of.zero)[0])


def hessian(of: Recorded) -> None:
    rows = [
        gradient(lambda move, i=i: gradient(by_version(of), move)[0][i], of.zero)[0] for i in range(of.zero.shape[0])
    ]
    check(of.tape.hessian(of.y, of.version), tf.stack(rows))


def jvp(of: Recorded) -> None:
    check(
        of.tape.jvp(of.y, of.version, of.direction),
        tf.reduce_sum(gradient(by_version(of), of.zero)[0] * of.direction),
    )


def gradient_of_gradient(of: Recorded) -> None:
    found = of.tape.gradient(of.y, of.version)
    if found is not None:
        wanted = gradient(lambda move: tf.reduce_sum(gradient(by_version(of), move)[0]), of.zero)[0]
        check(of.tape.gradient(found, of.version), wanted)


def jvp_of_gradient(of: Recorded) -> None:
    found = of.tape.gradient(of.y, of.version)
    if found is not None:

        def moved(move: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(gradient(by_version(of), move)[0] * of.direction)

        check(of.tape.jvp(found, of.version, of.direction), gradient(moved, of.zero)[0])  # the Hessian is symmetric


def third(of: Recorded) -> None:
    def moved(move: tf.Tensor) -> tf.Tensor:
        inner = gradient(lambda m: tf.reduce_sum(gradient(by_version(of), m)[0] * of.direction), move)[0]
        return tf.reduce_sum(inner * of.direction)

    product = of.tape.hvp(of.y, of.version, of.direction)
    if product is not None:
        check(of.tape.gradient(product, of.version, output_gradients=of.direction), gradient(moved, of.zero)[0])


def jacobian_of_gradient(of: Recorded) -> None:
    found = of.tape.gradient(of.y, of.version)
    if found is not None:
        rows = [gradient(lambda m, i=i: gradient(by_version(of), m)[0][i], of.zero)[0] for i in range(len(found))]
        check(of.tape.jacobian(found, of.version, unconnected_gradients="zero"), tf.stack(rows))


def hvp_with_an_input(of: Recorded) -> None:
    """Both sources are in one request: one may not see less of a function than the other."""

    if of.eager_number is not None:  # a call that might have assigned, but did not, has no counterpart
        tape, y, version = of.eagerly()
        vectors = [of.direction, -2.0 * of.direction]
        wanted = tape.hvp(y, [of.x, version], vectors)
        for one, other in zip(of.tape.hvp(of.y, [of.x, of.version], vectors), wanted, strict=True):
            check(one, of.zero if other is None else other)


def gradient_by_an_input_first(of: Recorded) -> None:
    """What was computed before anybody asked about the version depends on it too."""
    found = of.tape.gradient(of.y, of.x)
    if found is not None:
        inner = lambda move: tf.reduce_sum(gradient(of.ended, of.x, move)[0] * of.direction)  # noqa: E731
        got = of.tape.gradient(found, of.version, output_gradients=of.direction)
        check(got, gradient(inner, of.zero)[0])


ASKED = [
    first,
    hvp,
    hessian,
    jvp,
    gradient_of_gradient,
    jvp_of_gradient,
    third,
    jacobian_of_gradient,
    hvp_with_an_input,
    gradient_by_an_input_first,
]


@pytest.mark.parametrize("seed", seeds(16, 200))
def test_by_a_version(seed: int) -> None:
    recorded = Recorded(seed)
    if recorded.count:
        for ask in ASKED:
            ask(recorded)


@pytest.mark.parametrize("ask", ASKED, ids=lambda ask: ask.__name__)
@pytest.mark.parametrize("seed", [3, 11])
def test_each_question_first(seed: int, ask: Callable[[Recorded], None]) -> None:
    """No question relies on what an earlier one has left behind."""
    recorded = Recorded(seed)
    assert recorded.count
    ask(recorded)


@pytest.mark.parametrize("inside", [False, True])
def test_a_gradient_that_was_computed_before_anybody_asked(inside: bool) -> None:
    """The gradient of a call that was recorded in the block cannot show how it depends on what the call assigned."""
    v, x = tf.Variable([0.5, 1.5]), tf.constant([2.0, 3.0])
    f = tf.function(lambda x: (v.assign(v * x), tf.sin(v.read_value()) * x)[1])
    with rt.Tape() as tape:
        y = tf.reduce_sum(f(x))
        grad = tape.gradient(y, x) if inside else None
    if not inside:
        np.testing.assert_allclose(tape.gradient(tape.gradient(y, x), tape.at(v, 1)), np.cos([1.0, 4.5]), rtol=1e-5)
        return
    match = r"The target was computed from the gradient of __forward_.* \(called at .*:\d+\), .* after the block\.$"
    with pytest.raises(rt.errors.TapeUseError, match=match):
        tape.gradient(grad, tape.at(v, 1))
