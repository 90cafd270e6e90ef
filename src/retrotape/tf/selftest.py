"""A self test for untested versions of TensorFlow: recording gives the right derivatives.

retrotape uses private APIs of TensorFlow. `compatibility` always checks that the names exist; this checks that they
still behave the same, on programs with known derivatives. On a version where recording misses an op, gradients would
be wrong, so this raises first.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from retrotape._locks import new_lock
from retrotape.errors import IncompatibleTensorFlowError, UntriedTensorFlowWarning
from retrotape.tf import keras_api
from retrotape.tf.compatibility import check_keras, is_release, is_tested, shown
from retrotape.tf.core import StockTape, tf

MakeTape = Callable[[], Any]
Pairs = list[tuple[Any, Any]]  # result of a tape, expected value
Program = Callable[[MakeTape], Pairs]

_lock = new_lock()
_checked = False
_tester: threading.Thread | None = None  # runs the self test


def check_once(make_tape: MakeTape) -> None:
    """Raise if recording on this TensorFlow and Keras cannot be trusted; check once for each.

    Final releases of tested versions are trusted. Nightlies, release candidates and vendor builds have to pass the
    self test first, and so do untested versions, which also cause a warning.
    """
    global _checked
    check_keras(keras_api.imported(), _version())
    if _checked or threading.current_thread() is _tester:  # the self test records too
        return
    with _lock:  # a tape on another thread waits for the result
        if not _checked and not (is_tested(_version()) and is_release(_version())):
            check(make_tape)
            if not is_tested(_version()):
                warnings.warn(UntriedTensorFlowWarning(shown(_version())), stacklevel=3)
        _checked = True


def _version() -> object:
    return getattr(tf, "__version__", None)


def check(make_tape: MakeTape) -> None:
    """Run the programs of the self test on a separate thread; raise if one of them fails."""
    for what, problem in run(make_tape):
        if problem is not None:
            detail = f"the self test of {what} {problem}"
            raise IncompatibleTensorFlowError(shown(_version()), detail) from problem.cause


class Problem(str):
    """Why a program failed, in words, and the exception that was raised, if any."""

    cause: Exception | None = None


def run(
    make_tape: MakeTape, programs: Mapping[str, Program] | None = None, device: str | None = None
) -> Iterator[tuple[str, Problem | None]]:
    """Yield the name of each program and what is wrong with its result, None if nothing is.

    Each runs on a separate thread, without open tapes, graphs and strategies.

    Args:
      make_tape: Returns a new tape.
      programs: The programs; those of the self test by default.
      device: Where they run; where TensorFlow places them by default.
    """
    for what, program in (_PROGRAMS if programs is None else programs).items():
        yield what, _apart(program, make_tape, device)


def _apart(program: Program, make_tape: MakeTape, device: str | None) -> Problem | None:
    global _tester
    found: list[Problem | BaseException | None] = []
    _tester = threading.Thread(
        target=lambda: found.append(_problem(program, make_tape, device)), name="retrotape self test", daemon=True
    )
    _tester.start()
    _tester.join()
    if not found:  # an exception that was raised in the thread from outside, as debuggers do
        return Problem("did not end")
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _problem(program: Program, make_tape: MakeTape, device: str | None) -> Problem | BaseException | None:
    """Return what is wrong; an exception that says nothing about TensorFlow is to be raised by the caller."""
    try:
        with tf.device(device):
            right = all(_equal(got, expected) for got, expected in program(make_tape))
    except MemoryError as error:
        return error
    except Exception as error:  # any: on a compatible TensorFlow there is none
        first = str(error).strip().partition("\n")[0].rstrip(".")  # TensorFlow adds whole tracebacks
        problem = Problem(f"failed with {type(error).__name__}: {first}")
        problem.cause = error
        return problem
    except BaseException as error:  # such as SystemExit
        return error
    return None if right else Problem("gave a wrong result")


def _equal(got: Any, expected: Any) -> bool:
    return got is not None and bool(tf.reduce_all(tf.abs(tf.convert_to_tensor(got) - expected) < 1e-5))


def _reads(make_tape: MakeTape) -> Pairs:
    """A variable passed directly to an op, one read in a function, and one whose value is not used."""
    x, v, w = tf.constant([0.3, -1.2]), tf.Variable([2.0, 0.5]), tf.Variable(1.0)
    function = tf.function(lambda value: value * tf.tanh(v))
    with StockTape() as stock, make_tape() as tape:
        stock.watch(x)
        y = tf.reduce_sum(function(tf.nn.silu(tf.sin(v) * x)))
        w.read_value()
    known = {id(variable) for variable in tape.watched_variables()}
    found = zip(tape.gradient(y, [x, v]), stock.gradient(y, [x, v]), strict=True)
    return [*found, (float({id(v), id(w)} == known), 1.0)]


def _custom(make_tape: MakeTape) -> Pairs:
    """A custom gradient that differs from the true one, and a `tf.recompute_grad` around a random op."""
    x = tf.constant(3.0)
    seven = tf.custom_gradient(lambda value: (tf.identity(value), lambda upstream: 7.0 * upstream))
    draw = tf.recompute_grad(lambda value: value * tf.random.uniform([], 1.0, 2.0))
    drawn = tf.function(lambda value: draw(value), autograph=False)
    with make_tape() as tape:
        y = seven(x)
        z = drawn(x)
    return [(tape.gradient(y, x), 7.0), (tape.gradient(z, x), z / x)]


def _gathers(make_tape: MakeTape) -> Pairs:
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    with make_tape() as tape:
        y = tf.reduce_sum(tf.gather(v, [2, 0, 2]) ** 2)
    return [(tape.gradient(y, v), [[2.0, 4.0], [0.0, 0.0], [20.0, 24.0]])]


def _updates(make_tape: MakeTape) -> Pairs:
    """Updates in eager code and in a function: (2x)² and then (2x)² + x."""
    x, v = tf.constant(3.0), tf.Variable(2.0)
    function = tf.function(lambda value: v.assign_add(value))
    with make_tape() as tape:
        v.assign(v * x)
        y = v * v
        v.assign(y)
        function(x)
        z = v * 1.0
    return [(tape.gradient(target, x, through_updates=True), right) for target, right in ((y, 24.0), (z, 25.0))]


def _second(make_tape: MakeTape) -> Pairs:
    """The second derivative of x³ in a function."""
    x = tf.constant(2.0)
    cube = tf.function(lambda value: value**3)
    with make_tape() as tape:
        y = cube(x)
        first = tape.gradient(y, x)
    return [(first, 12.0), (tape.gradient(first, x), 12.0)]


def _inside(make_tape: MakeTape) -> Pairs:
    v = tf.Variable(5.0)

    def square(value: Any) -> Any:
        with make_tape() as tape:
            y = value * value * v
        return tape.gradient(y, [value, v])

    # AutoGraph has nothing to convert here, and would need the source.
    of_value, of_variable = tf.function(square, autograph=False)(tf.constant(3.0))
    return [(of_value, 30.0), (of_variable, 9.0)]


def _python(make_tape: MakeTape) -> Pairs:
    x = tf.constant(3.0)
    with make_tape() as tape:
        y = tf.py_function(lambda value: value * value, [x], tf.float32)
    return [(tape.gradient(y, x), 6.0)]


def _tangents(make_tape: MakeTape) -> Pairs:
    """The derivative of a tangent: of 3x² · 1, which is 6x."""
    x = tf.constant(2.0)
    with make_tape() as tape, tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)) as accumulator:
        y = x * x * x
        tangent = accumulator.jvp(y)
    values, direction = tf.constant([1.0, 3.0]), tf.constant([1.0, 0.0])
    with make_tape() as other, tf.autodiff.ForwardAccumulator(values, direction) as accumulator:
        _, variance = tf.nn.moments(values, 0)
        along = accumulator.jvp(variance)
    pairs = [(tangent, 12.0), (tape.gradient(tangent, x), 12.0)]
    return [*pairs, (along, -1.0), (other.gradient(along, values), [0.5, -0.5])]


_PROGRAMS: dict[str, Program] = {
    "reads and functions": _reads,
    "custom gradients": _custom,
    "gathers": _gathers,
    "updates of variables": _updates,
    "second derivatives": _second,
    "tapes inside a tf.function": _inside,
    "tf.py_function": _python,
    "forward accumulators": _tangents,
}
