"""Queries inside an open block: from the fourth run on a function takes their place, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.warm import forgetful
from laws.inside_programs import PROGRAMS, Program, forward, penalty, sparse, updates_by_hand, used_in_the_forward_pass
from retrotape.execute import Values
from retrotape.lower import _inside

RUNS = 7


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often a function took the place of a query."""
    counted, run = [0], _inside._run

    def count(*args: Any) -> Any:
        found = run(*args)
        counted[0] += found is not None
        return found

    monkeypatch.setattr(_inside, "_run", count)
    return counted


NEVER = {"custom", "by_another_tape", "while_paused"}


def inputs(number: int) -> Any:
    return tf.constant(np.random.default_rng(number).normal(size=3) + number, tf.float32)


def run(program: Program, numbers: Any, make: Callable[..., Any] = rt.Tape, **options: Any) -> list[list[Any]]:
    """Return the results and gradients of some runs, with the same variables."""
    variables = [tf.Variable([0.3, -0.5, 0.9]), tf.Variable([1.0, 0.2, -0.4])]
    rows = []
    for number in numbers:
        x = inputs(number)
        with make(persistent=True) as tape:
            tape.watch(x)
            found = program(tape, x, variables)
        grads = tape.gradient(found, [x, *variables], **options)
        rows.append([one if one is None else tf.convert_to_tensor(one).numpy() for one in (*found, *grads)])
        for variable in variables:
            variable.assign(variable * 0.9 + 0.01)
    return rows


def check(ours: list[list[Any]], theirs: list[list[Any]], tolerance: float = 0.0) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for left, right in zip(one, other, strict=True):
            if right is None:
                assert left is None
            elif tolerance:
                np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)
            else:
                np.testing.assert_array_equal(left, right)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_results_are_those_of_op_by_op_and_of_the_stock_tape(program: Program, used: list[int]):
    numbers = range(RUNS)
    with rt.config(compile=False):
        cold = run(program, numbers)
    with rt.config(compile=True):
        check(run(program, numbers), cold, 1e-6)
    assert bool(used[0]) is (program.__name__ not in NEVER)
    check(cold, run(program, numbers, tf.GradientTape), 1e-5)


@pytest.mark.parametrize("program", [used_in_the_forward_pass, penalty, updates_by_hand, sparse])
def test_through_updates(program: Program, used: list[int]):
    with rt.config(compile=False):
        cold = run(program, range(RUNS), through_updates=True)
    with rt.config(compile=True):
        check(run(program, range(RUNS), through_updates=True), cold, 1e-6)
    assert used[0]


@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_a_stock_optimizer(make: Any, used: list[int]):
    def loop(compile: bool) -> list[list[Any]]:
        w = keras.Variable(np.float32([0.3, -0.5, 0.9]))
        optimizer = make(0.1)
        optimizer.build([w])
        state = [(variable, variable.numpy()) for variable in [w, *optimizer.variables]]
        rows = []
        for number in range(RUNS):
            for variable, value in state:
                variable.assign(value)
            x = inputs(number)
            with rt.config(compile=compile), rt.Tape() as tape:
                for _ in range(3):
                    optimizer.apply(tape.gradient(tf.reduce_sum(tf.tanh(w * x) ** 2), [w]), [w])
                loss = tf.reduce_sum(tf.sin(w * x))
            with rt.config(compile=compile):
                found = tape.gradient(loss, [optimizer.learning_rate, w, x], through_updates=True)
            rows.append([loss.numpy(), *(grad.numpy() for grad in found)])
        return rows

    check(loop(True), loop(False), 1e-6)
    assert used[0] >= 3 * (RUNS - 3)


def test_the_program_is_the_same(used: list[int]):
    def recorded(mode: bool) -> list[Any]:
        variables = [tf.Variable([0.3, -0.5, 0.9]), tf.Variable([1.0, 0.2, -0.4])]
        found = []
        for number in range(RUNS):
            x = inputs(number)
            with rt.config(compile=mode), rt.Tape() as tape:
                results = penalty(tape, x, variables) + updates_by_hand(tape, x, variables)
            trace = tape._session.trace
            where = [str(trace.frames[eqn.frame]) for eqn in trace.program.eqns]
            values = {var: tape_value(trace, var) for var in range(len(trace.program.types))}
            found.append(
                [trace.snapshot().eqns, where, sorted(trace.facts.times) == trace.facts.times, values, results]
            )
        return found

    for ours, theirs in zip(recorded(True), recorded(False), strict=True):
        assert ours[1:3] == theirs[1:3]
        assert [eqn[:4] for eqn in ours[0]] == [eqn[:4] for eqn in theirs[0]]
        for var, value in theirs[3].items():
            np.testing.assert_allclose(ours[3][var], value, rtol=1e-6, atol=1e-6)
    assert used[0]


def tape_value(trace: Any, var: int) -> Any:
    return Values(trace)(var).numpy()


def test_what_comes_after_may_differ(used: list[int]):
    """The run leaves its template after the function: values that it did not keep are computed again."""

    def loop(compile: bool) -> list[list[Any]]:
        variables = [tf.Variable([0.3, -0.5, 0.9]), tf.Variable([1.0, 0.2, -0.4])]
        rows = []
        for number in range(9):
            x = inputs(number)
            with rt.config(compile=compile), rt.Tape() as tape:
                first, second = tape.gradient(forward(x, variables), variables)
                y = tf.sin(first) * second
                if number >= 5:
                    y = y**3 + tf.cos(second) * number
                loss = tf.reduce_sum(y)
            with rt.config(compile=compile):
                rows.append([*tape.gradient(loss, [*variables, x]), *tape.gradient(first, [*variables, x])])
        return [[one.numpy() for one in row] for row in rows]

    check(loop(True), loop(False), 1e-6)
    assert used[0]


def test_two_places_are_told_apart(used: list[int]):
    def loop(compile: bool) -> list[list[Any]]:
        w, rows = tf.Variable([0.3, -0.5, 0.9]), []
        for number in range(14):
            x = inputs(number)
            with rt.config(compile=compile), rt.Tape() as tape:
                loss = tf.reduce_sum(tf.tanh(w * x) ** 2)
                if number % 3:
                    (grad,) = tape.gradient(loss, [w])
                else:
                    (grad,) = tape.gradient(loss, [x])
                out = tf.reduce_sum(grad**2)
            frames = tape._session.trace.frames
            rows.append([*(one.numpy() for one in tape.gradient(out, [w, x])), frames[len(frames) - 1].line])
        return rows

    check(loop(True), loop(False), 1e-6)
    assert used[0]


def test_two_programs_in_turn(used: list[int]):
    def loop(compile: bool) -> list[list[Any]]:
        w, rows = tf.Variable([0.3, -0.5, 0.9]), []
        for number in range(16):
            x = inputs(number)
            with rt.config(compile=compile), rt.Tape() as tape:
                loss = tf.reduce_sum(tf.tanh(w * x) ** 2)
                (grad,) = tape.gradient(loss, [w] if number % 2 else [x])
                out = tf.reduce_sum(grad**2)
            with rt.config(compile=compile):
                rows.append([one.numpy() for one in tape.gradient(out, [w, x])])
        return rows

    check(loop(True), loop(False), 1e-6)
    assert used[0] >= 6


def test_a_backward_function_that_changes_later(used: list[int]):
    def loop(compile: bool) -> list[list[Any]]:
        w, rows = tf.Variable([0.3, -0.5, 0.9]), []
        for number in range(9):
            scale = 0.5 if number < 5 else 1.5

            @tf.custom_gradient
            def sine(a: Any, scale: float = scale) -> Any:
                return tf.sin(a), lambda dy: dy * tf.cos(a) * scale

            with rt.config(compile=compile), rt.Tape() as tape:
                (grad,) = tape.gradient(tf.reduce_sum(sine(w * 2.0)), [w])
                out = tf.reduce_sum(grad * w)
            rows.append([out.numpy(), tape.gradient(out, [w])[0].numpy()])
        return rows

    check(loop(True), loop(False), 1e-6)
    assert used[0]


@pytest.mark.parametrize("first", ["compiled", "op by op"])
@pytest.mark.parametrize("later", [[2] * 7, [0, 2, 1, 0, 1, 2, 2], [2, 1, 4, 3, 5, 6, 0]], ids=["one", "some", "many"])
def test_constants_that_an_earlier_query_made_from_values(later: list[int], first: str, used: list[int]):
    """The rule of a slice reads in Python where it begins. What the first query records has that as a constant."""

    def loop(compile: bool) -> list[list[Any]]:
        w, rows = tf.Variable(np.arange(1.0, 9.0, dtype=np.float32) / 4.0), []
        for number, begin in enumerate([0] * 7 + later):
            x = tf.constant(np.random.default_rng(number).normal(size=8), tf.float32)
            with rt.config(compile=compile), rt.Tape() as tape:
                part = (w * x)[begin : begin + 2]
                with rt.config(compile=compile and (first == "compiled" or number < 7)):
                    (grad,) = tape.gradient(tf.reduce_sum(part**3), [w])
                (slope,) = tape.gradient(tf.reduce_sum(grad**2), [part])
                out = tf.reduce_sum(slope**2)
            with rt.config(compile=compile):
                rows.append([one.numpy() for one in (grad, slope, *tape.gradient(out, [w, x, part]))])
        return rows

    with forgetful():
        check(loop(True), loop(False), 1e-5)
    assert used[0] >= 7


def test_another_line_is_another_place(used: list[int]):
    def loop(compile: bool) -> list[list[Any]]:
        w, rows = tf.Variable([0.3, -0.5, 0.9]), []
        for number in range(9):
            with rt.config(compile=compile), rt.Tape() as tape:
                loss = tf.reduce_sum(tf.tanh(w) ** 2)
                if number < 5:
                    (grad,) = tape.gradient(loss, [w])
                else:
                    (grad,) = tape.gradient(loss, [w])
                out = tf.reduce_sum(grad**2)
            rows.append([[tape.program.frame_of(eqn).line for eqn in tape.program.eqns]])
            tape.gradient(out, [w])
        return rows

    assert loop(True) == loop(False)
    assert used[0]


def test_an_error_of_an_op_names_its_line(used: list[int]):
    w = tf.Variable([1.0, 2.0])
    for number in range(6):
        with rt.Tape() as tape:
            y = tf.debugging.check_numerics(w * 1.0, "forward")
            z = tf.reduce_sum(y / tf.constant(0.0 if number == 5 else 1.0))
            if number < 5:
                tape.gradient(z, [w])
            else:
                with pytest.raises(tf.errors.InvalidArgumentError, match="gradient"):
                    tape.gradient(z, [w])
    assert used[0]


def test_a_reset_inside_the_block():
    w = tf.Variable([1.0, 2.0])
    for number in range(6):
        with rt.Tape() as tape:
            tape.gradient(tf.reduce_sum(w**2), [w])
            tape.reset()
            (grad,) = tape.gradient(tf.reduce_sum(w**3), [w])
            loss = tf.reduce_sum(grad)
        np.testing.assert_allclose(tape.gradient(loss, [w])[0], 6 * w.numpy())
        w.assign_add([0.5, float(number)])


def warm(number: int = RUNS) -> tuple[Any, Any, list[Any]]:
    """Return a tape whose queries inside the block were compiled, its last result, and the variables."""
    variables = [tf.Variable([0.3, -0.5, 0.9]), tf.Variable([1.0, 0.2, -0.4])]
    for _ in range(number):
        with rt.Tape() as tape:
            loss = updates_by_hand(tape, tf.constant([1.0, 2.0, 3.0]), variables)[0]
        tape.gradient(loss, variables, through_updates=True)
        for variable, value in zip(variables, ([0.3, -0.5, 0.9], [1.0, 0.2, -0.4]), strict=True):
            variable.assign(value)
    return tape, loss, variables


@pytest.mark.parametrize("use", ["save", "join", "hessian"])
def test_the_tape_can_be_used_as_any_other(use: str, used: list[int], tmp_path: Any):
    def result() -> Any:
        tape, loss, variables = warm()
        if use == "save":
            tape.save(tmp_path / "tape.rt", names={"loss": loss, "w": variables[0], "v": variables[1]})
            return rt.load(tmp_path / "tape.rt").gradient("loss", ["w", "v"], through_updates=True)
        if use == "join":
            with rt.Tape() as more:
                out = loss**2
            return rt.join(tape, more).gradient(out, variables, through_updates=True)
        if use == "hessian":
            return tape.hessian(loss, variables[0])
        raise AssertionError(use)

    ours = [np.asarray(tf.convert_to_tensor(one)) for one in tf.nest.flatten(result())]
    assert used[0]
    with rt.config(compile=False):
        theirs = [np.asarray(tf.convert_to_tensor(one)) for one in tf.nest.flatten(result())]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
