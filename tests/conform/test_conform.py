"""Where the stock tape has an answer, ours is the same.

Each program runs once under both tapes, so that random draws, states and branches are the same for both; then
each tape on its own, as users have it; then both inside a `tf.function`. Our tape is told of no source.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from conform import cases_flow
from conform.asking import answers_of, inputs_of, is_variable, questions_about, tensors_in
from conform.cases import CASES
from conform.table import Ask, Case


class Recorded(NamedTuple):
    """A case after its one forward pass, and what the stock tape said about it."""

    case: Case
    sources: list[Any]
    tape: rt.Tape
    questions: list[Ask]
    expected: list[list[Any]]


# ------------------------------------------------------------------ comparing


def _array(gradient: Any) -> np.ndarray:
    gradient = tf.convert_to_tensor(gradient)
    wide = tf.float32 if gradient.dtype in (tf.float16, tf.bfloat16) else gradient.dtype
    return tf.cast(gradient, wide).numpy()


def _same(got: Any, expected: Any, tolerance: float) -> None:
    __tracebackhide__ = True
    assert type(got) is type(expected)
    assert got.dtype == expected.dtype
    if isinstance(expected, (tf.SparseTensor, tf.RaggedTensor)):
        pairs = zip(tf.nest.flatten(got, True), tf.nest.flatten(expected, True), strict=True)
        for one, other in pairs:
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=tolerance)
        return
    one, other = _array(got), _array(expected)
    assert one.shape == other.shape
    finite = np.abs(other[np.isfinite(other)])
    largest = finite.max() if finite.size else 0.0
    np.testing.assert_allclose(one, other, rtol=0.0, atol=tolerance * largest)


def _compare(case: Case, got: list[list[Any]], expected: list[list[Any]]) -> None:
    __tracebackhide__ = True
    for ours, theirs in zip(got, expected, strict=True):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            if other is None:
                assert one is None or case.more, "the stock tape says None"
                continue
            assert one is not None, "the stock tape has an answer"
            _same(one, other, case.tolerance)


def _identical(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    parts = zip(tf.nest.flatten(one, True), tf.nest.flatten(other, True), strict=True)
    return type(one) is type(other) and all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in parts)


def _all_identical(got: list[list[Any]], before: list[list[Any]]) -> bool:
    pairs = [pair for ours, theirs in zip(got, before, strict=True) for pair in zip(ours, theirs, strict=True)]
    return all(_identical(one, other) for one, other in pairs)


# ------------------------------------------------------------------ eager: one forward pass, several tests


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    case: Case = request.param
    run, sources = case.made()
    with tf.GradientTape(persistent=True) as stock, rt.Tape() as tape:
        stock.watch(tensors_in(sources))
        outcome = run(*sources)
    questions = questions_about(outcome, sources)
    return Recorded(case, sources, tape, questions, answers_of(stock, questions))


def test_gradients_are_those_of_the_stock_tape(recorded: Recorded) -> None:
    _compare(recorded.case, answers_of(recorded.tape, recorded.questions), recorded.expected)


def test_second_answer_is_the_first(recorded: Recorded) -> None:
    with rt.config(compile=False):  # compiled, a power may be a square, which differs in the last bit
        first = answers_of(recorded.tape, recorded.questions)
        assert _all_identical(answers_of(recorded.tape, recorded.questions), first)


def test_program_survives_being_printed_and_read(recorded: Recorded) -> None:
    program = recorded.tape.program
    assert rt.Program.parse(str(program)) == program


def test_answer_does_not_depend_on_what_variables_hold_now(recorded: Recorded) -> None:
    # Last of those that share a recording: nothing may look at the variables after this.
    with rt.config(compile=False):
        before = answers_of(recorded.tape, recorded.questions)
    for source in filter(is_variable, tf.nest.flatten(recorded.sources)):
        source.assign(tf.ones_like(source) * 3)
    with rt.config(compile=False):
        assert _all_identical(answers_of(recorded.tape, recorded.questions), before)


# ------------------------------------------------------------------ each tape alone, and inside a function


def _stock(run: Callable[..., Any], sources: list[Any]) -> tuple[tf.GradientTape, list[Ask]]:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tensors_in(sources))
        outcome = run(*sources)
    return tape, questions_about(outcome, sources)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tape_alone(case: Case) -> None:
    # A stock tape that is open changes how functions and custom gradients run; users have none.
    run, sources = case.made()
    stock, questions = _stock(run, sources)
    expected = answers_of(stock, questions)
    run, sources = case.made()
    with rt.Tape() as tape:
        outcome = run(*sources)
    _compare(case, answers_of(tape, questions_about(outcome, sources)), expected)


TRACED = [case for case in CASES if case.eager_only is None]
FLOW = [case for case in TRACED if case in cases_flow.CASES]
REWRITTEN = [*FLOW, *(case for case in TRACED if case.name == "dataset_loop")]  # what AutoGraph has to convert


@pytest.mark.parametrize("case", TRACED, ids=lambda case: case.name)
def test_inside_a_function(case: Case) -> None:
    # A stock tape that is not persistent can be asked once; that is enough, and the graph stays small.
    if case.apart:
        _compare(case, _traced(case, rt.Tape), _traced(case, tf.GradientTape))
    else:
        # The stock tape first: TensorFlow adds outputs to a branch that it differentiates, and the stock tape cannot
        # cope with outputs that somebody else (`tf.gradients`, say) had added.
        theirs, ours = _traced(case, tf.GradientTape, rt.Tape)
        _compare(case, [ours], [theirs])


def _traced(case: Case, outer: Any, inner: Any = nullcontext) -> list[list[Any]]:
    """Return the answer of each tape, all of them inside one function and around one forward pass."""
    run, sources = case.made()

    @tf.function(autograph=case in REWRITTEN)  # converting all of them takes as long as the rest
    def asked(given):
        inputs = inputs_of(given, sources)
        with outer() as one, inner() as other:
            if outer is tf.GradientTape:
                one.watch(tensors_in(inputs))
            outcome = run(*inputs)
        question = questions_about(outcome, inputs)[-1:]
        return [answers_of(tape, question)[0] for tape in (one, other) if tape is not None]

    return asked([None if is_variable(source) else source for source in sources])


@pytest.mark.parametrize("shape", [[3], [20, 10]], ids=["copied into the graph", "captured by the graph"])
def test_source_from_outside_the_function(shape: list[int]) -> None:
    x = tf.fill(shape, 0.3)

    @tf.function
    def asked():
        with tf.GradientTape() as stock, rt.Tape() as tape:
            stock.watch(x)
            y = tf.sin(x) * x
        return stock.gradient(y, x), tape.gradient(y, x)

    theirs, ours = asked()
    _same(ours, theirs, 1e-6)


@pytest.mark.parametrize("case", FLOW, ids=lambda case: case.name)
def test_inside_a_function_beside_a_persistent_tape(case: Case) -> None:
    # TensorFlow then wraps loops and branches into functions of their own.
    run, sources = case.made()

    @tf.function
    def asked(given):
        inputs = inputs_of(given, sources)
        with tf.GradientTape(persistent=True) as stock, rt.Tape() as tape:
            stock.watch(tensors_in(inputs))
            outcome = run(*inputs)
        questions = questions_about(outcome, inputs)
        return answers_of(tape, questions), answers_of(stock, questions)

    _compare(case, *asked([None if is_variable(source) else source for source in sources]))


# ------------------------------------------------------------------ the table itself


def test_table_is_large_and_its_names_are_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert len(names) >= 170


def test_cases_that_cannot_be_traced_are_few_and_cannot() -> None:
    held_back = [case for case in CASES if case.eager_only is not None]
    assert len(held_back) < len(CASES) / 20
    for case in held_back:
        run, sources = case.made()
        with pytest.raises(Exception):  # noqa: B017, PT011 (each fails in its own way; that it fails is the point)
            tf.function(run)(*sources)
