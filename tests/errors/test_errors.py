"""Every error says what was got, what was expected and what to type."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors


@pytest.fixture
def x() -> tf.Tensor:
    return tf.constant(3.0)


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


# ------------------------------------------------------------------ the family


def all_errors() -> list[type[errors.RetrotapeError]]:
    found = [value for _, value in inspect.getmembers(errors, inspect.isclass) if value.__module__ == errors.__name__]
    return [value for value in found if value is not errors.RetrotapeError and not issubclass(value, Warning)]


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_every_error_has_one_base_and_one_of_pythons(error):
    assert issubclass(error, errors.RetrotapeError)
    builtin = [base for base in error.__mro__ if base.__module__ == "builtins"]
    assert builtin[0] not in (Exception, BaseException, object) or error is errors.IncompatibleTensorFlowError
    assert error.__doc__


# ------------------------------------------------------------------ TensorFlow itself


def test_without_tensorflow_the_error_says_what_to_install():
    done = run(
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('tensorflow', 'keras'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "import retrotape as rt\n"
        "try:\n"
        "    rt.Tape\n"
        "except rt.errors.MissingTensorFlowError as error:\n"
        "    print(isinstance(error, ImportError), error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert re.match(
        r"True retrotape needs TensorFlow 2\.16 to 2\.21 and found none\. Install one: `pip install",
        done.stdout,
    )
    assert '"retrotape[cpu]"' in done.stdout


def test_another_tensorflow_is_refused_by_version():
    done = run(
        "import sys, tensorflow as tf\n"
        "import tensorflow.python.eager as eager\n"
        "import tensorflow.python.eager.record\n"
        "del eager.record\n"
        "sys.modules['tensorflow.python.eager.record'] = None\n"
        "import retrotape as rt\n"
        "try:\n"
        "    rt.Tape\n"
        "except rt.errors.IncompatibleTensorFlowError as error:\n"
        "    assert error.version == tf.__version__ and 'record' in error.detail\n"
        "    print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"retrotape {rt.__version__} cannot record on TensorFlow {tf.__version__}: ")
    assert "there is no tensorflow.python.eager.record.record_operation;" in done.stdout
    assert "Tested versions are 2.16 to 2.21; install one of them, `pip install" in done.stdout


# ------------------------------------------------------------------ tapes that hold nothing


def empty(reason: str):
    return pytest.raises(errors.EmptyTapeError, match=rf"holds no trace: {reason}\. Record first: `with tape: loss")


@pytest.mark.parametrize(
    "ask",
    [
        lambda tape, x: tape.gradient(x, x),
        lambda tape, x: tape.jacobian(x, x),
        lambda tape, x: tape.batch_jacobian(tf.ones((2, 3)), tf.ones((2, 3))),
        lambda tape, x: tape.memory(),
        lambda tape, x: tape.program,
    ],
    ids=["gradient", "jacobian", "batch_jacobian", "memory", "program"],
)
def test_a_tape_that_holds_nothing_says_why(x, ask):
    tape = rt.Tape()
    with empty("its block was never entered"):
        ask(tape, x)
    with tape:
        x * x
    tape.reset()
    with empty("it was reset"):
        ask(tape, x)


def test_watching_after_a_reset_does_not_hide_that_the_tape_is_empty(x):
    with rt.Tape() as tape:
        y = x * x
    tape.reset()
    tape.watch(x)
    with pytest.raises(errors.EmptyTapeError, match="it was reset"):
        tape.gradient(y, x)


# ------------------------------------------------------------------ tapes in the wrong place


def test_entering_twice(x):
    with rt.Tape() as tape:
        with pytest.raises(
            errors.TapeUseError, match=r"recording already\. Leave the block .* `with rt\.Tape\(\) as inner:`"
        ):
            tape.__enter__()
        y = x * x
    assert float(tape.gradient(y, x)) == 6.0


def test_asking_outside_the_function_that_recorded(x):
    inside = []

    @tf.function
    def square(a):
        with rt.Tape() as tape:
            b = a * a
        inside.append(tape)
        return b

    y = square(x)
    with pytest.raises(
        errors.TapeUseError, match=r"recorded inside a tf\.function and is queried outside it\. Query it inside"
    ):
        inside[0].gradient(y, x)


def test_entering_an_eager_tape_inside_a_function(x):
    tape = rt.Tape()
    with tape:
        y = x * x

    @tf.function
    def square(a):
        with tape:
            return a * a

    square(x)
    assert float(tape.gradient(y, x)) == 6.0  # what was recorded in eager code is still there


def test_a_jacobian_from_a_function_into_eager_code(x):
    tape = rt.Tape()
    with tape:
        y = x * x

    @tf.function
    def jacobian():
        with tape:
            z = y * tf.constant([1.0, 2.0])
        return tape.jacobian(z, x)

    text = (
        r"entered again inside a tf\.function\. There it is queried for a Jacobian.*Record both in eager code, or both"
    )
    with pytest.raises(errors.TapeUseError, match=text):
        jacobian()


def test_stop_recording_outside_the_block(x):
    tape = rt.Tape()
    text = r"stop_recording\(\) needs a tape that is recording\. Use it inside `with tape:`"
    for _ in range(2):
        with pytest.raises(errors.TapeUseError, match=text), tape.stop_recording():
            pass
        with tape:
            x * x


@pytest.mark.parametrize("keep", ["some", "ALL", "", None, 1])
def test_keep_is_one_of_five(keep):
    ways = "'needed', 'all', 'leaves', 'segments', 'disk'"
    with pytest.raises(ValueError, match=f"keep must be one of {ways}, got {keep!r}"):
        rt.Tape(keep=keep)


# ------------------------------------------------------------------ paths that cannot be followed


def test_a_path_through_an_op_without_gradient():
    image = tf.fill((4, 4, 3), 0.5)
    with rt.Tape() as tape:
        line = inspect.currentframe().f_lineno + 1
        turned = tf.image.adjust_hue(image * 1.0, 0.1)
    text = rf"passes AdjustHue \(at .*test_errors\.py:{line}\), for which TensorFlow has no .* Cut .* `tf"
    with pytest.raises(errors.NoRuleError, match=text) as caught:
        tape.gradient(turned, image)
    assert caught.value.op == "AdjustHue"
    assert caught.value.where.endswith(f"test_errors.py:{line}")


def test_an_op_without_gradient_beside_the_path_does_not_matter(x):
    with rt.Tape() as tape:
        image = tf.fill((4, 4, 3), 0.5)
        tf.image.adjust_hue(image, 0.1)
        y = x * x + tf.reduce_sum(tf.stop_gradient(tf.image.adjust_hue(image * x, 0.1)))
    assert float(tape.gradient(y, x)) == 6.0


def test_the_advice_about_an_op_without_gradient_works():
    image = tf.fill((2, 2, 3), 0.5)

    @tf.custom_gradient
    def turn(picture):
        return tf.image.adjust_hue(picture, 0.1), lambda upstream: upstream * 2.0

    with rt.Tape() as tape:
        turned = turn(image)
    np.testing.assert_array_equal(tape.gradient(turned, image), np.full((2, 2, 3), 2.0))


def test_a_value_that_was_overwritten_before_the_tape_read_it(x):
    """The answer is by the value of that time, which the update has shown to the tape; never by another value."""
    late = tf.Variable(2.0, name="late")

    @tf.custom_gradient
    def scaled(a):
        return tf.identity(a), lambda upstream: upstream * late.read_value()

    with rt.Tape() as tape:
        y = scaled(x)
        late.assign_add(1.0)
    assert float(tape.gradient(y, x)) == 2.0


def test_a_lost_value_owns_its_text():
    error = errors.LostValueError("Value number 0 of w was overwritten", "Read it inside the block.")
    assert str(error) == "Value number 0 of w was overwritten. Read it inside the block."
    assert error.what == "Value number 0 of w was overwritten"


def test_an_update_without_rule_owns_its_text():
    error = errors.OpaqueUpdateError("ResourceApplyAdam", "w", "loop.py:3")
    assert re.match(r"The path runs through ResourceApplyAdam \(at loop\.py:3\), which changes w in place", str(error))
    assert "Update the variable with `assign`" in str(error)
    assert (error.op, error.variable, error.where) == ("ResourceApplyAdam", "w", "loop.py:3")


# ------------------------------------------------------------------ gradients that are handed in


@pytest.fixture
def recorded(x):
    with rt.Tape() as tape:
        y = tf.constant([1.0, 2.0]) * x
        z = y * y
    return tape, y, z


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            [tf.ones(2), tf.ones(2)],
            "Got 2 output_gradients for 1 targets; give one for each, in the same order: zeros where nothing flows in",
        ),
        ([], "Got 0 output_gradients for 1 targets"),
        (
            tf.ones(3),
            r"Got an output gradient of shape \(3,\) for a target of shape \(2,\); each .* must have",
        ),
        (tf.ones((2, 1)), r"Got an output gradient of shape \(2, 1\) for a target of shape \(2,\)"),
        (np.ones(3), r"Got an output gradient of shape \(3,\) for a target of shape \(2,\)"),
        (
            tf.ones(2, tf.float64),
            r"dtype float64 for a target of dtype float32; cast it: `tf\.cast\(.*, tf\.float32\)`",
        ),
        (tf.ones(2, tf.int32), "dtype int32 for a target of dtype float32; cast it"),
    ],
)
def test_output_gradients_must_fit(recorded, x, given, text):
    tape, _, z = recorded
    with pytest.raises(errors.ShapeMismatchError, match=text):
        tape.gradient(z, x, output_gradients=given)


def test_output_gradients_must_be_as_many_as_targets(recorded, x):
    tape, y, z = recorded
    with pytest.raises(errors.ShapeMismatchError, match="Got 1 output_gradients for 2 targets"):
        tape.gradient([y, z], x, output_gradients=[tf.ones(2)])


def test_output_gradients_that_fit_are_taken(recorded, x):
    tape, y, z = recorded
    assert float(tape.gradient(z, x, output_gradients=np.array([1.0, 0.0]))) == 6.0
    assert float(tape.gradient([y, z], x, output_gradients=[tf.zeros(2), tf.ones(2)])) == 30.0


@pytest.mark.parametrize(
    ("shape", "other"),
    [((2, 3), (4, 3)), ((), (2, 3)), ((2, 3), ())],
    ids=["batches", "scalar target", "scalar source"],
)
def test_batch_jacobian_needs_the_same_batch(shape, other):
    source = tf.ones(other)
    with rt.Tape() as tape:
        target = tf.ones(shape) * tf.reduce_sum(source)
    shapes = f"{re.escape(str(shape))} and {re.escape(str(other))}"
    text = rf"same first dimension, got shapes {shapes}\. For other shapes use `tape\.jacobian`"
    with pytest.raises(errors.ShapeMismatchError, match=text):
        tape.batch_jacobian(target, source)
