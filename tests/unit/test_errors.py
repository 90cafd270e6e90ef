from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading

import keras
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
    return [value for value in found if value is not errors.RetrotapeError]


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
    assert done.stdout.startswith(f"retrotape cannot record on TensorFlow {tf.__version__}: ")
    assert "Tried versions are 2.16 to 2.21; install one of them, or a newer retrotape." in done.stdout


# ------------------------------------------------------------------ targets that are not on the tape


def not_recorded(reason: str, remedy: str):
    return pytest.raises(errors.NotRecordedError, match=rf"The target .* is not on this tape: {reason}\. {remedy}")


def test_target_made_after_recording(x):
    with rt.Tape() as tape:
        y = x * x
    z = y * 2.0
    with not_recorded(
        "it was made after recording ended", "Move the code that makes it into the `with` block"
    ) as caught:
        tape.gradient(z, x)
    assert caught.value.target == "tensor float32[]"
    assert caught.value.reason == "it was made after recording ended"


def test_target_made_before_recording(x):
    z = x * 2.0
    with rt.Tape() as tape:
        x * x
    with not_recorded("it was made before recording began and took no part in it", "Move the code that makes it into"):
        tape.gradient(z, x)


def test_target_made_between_two_blocks(x):
    tape = rt.Tape()
    with tape:
        x * x
    z = x * 2.0
    with tape:
        x * x
    with pytest.raises(errors.NotRecordedError, match="is not on this tape") as caught:
        tape.gradient(z, x)
    assert "stop_recording" not in str(caught.value)
    assert "`with` block" in str(caught.value)


def test_target_made_while_paused(x):
    with rt.Tape() as tape:
        y = x * x
        with tape.stop_recording():
            z = x * 3.0
        y * y
    with not_recorded("it was made while recording was paused", r"Move .* out of `tape\.stop_recording\(\)`"):
        tape.gradient(z, x)


def test_target_made_while_paused_and_asked_there(x):
    with rt.Tape() as tape:
        x * x
        with tape.stop_recording():
            z = x * 3.0
            with not_recorded("it was made while recording was paused", "Move the code"):
                tape.gradient(z, x)


def test_target_made_in_another_thread_has_no_path_as_on_the_stock_tape(x):
    for kind in (tf.GradientTape, rt.Tape):
        made = []
        with kind() as tape:
            tape.watch(x)
            x * x
            worker = threading.Thread(target=lambda made=made: made.append(x * 5.0))
            worker.start()
            worker.join()
        assert tape.gradient(made[0], x) is None


def test_target_that_is_symbolic(x):
    inner = []

    @tf.function
    def square(a):
        inner.append(a * a)
        return inner[-1]

    with rt.Tape() as tape:
        square(x)
    with not_recorded("it is symbolic, made inside a tf.function, .* outside", "Return it from the function"):
        tape.gradient(inner[0], x)


def test_target_of_a_graph_made_outside_the_block(x):
    @tf.function
    def early(a):
        b = a * a
        with rt.Tape() as tape:
            a * 2.0
        return tape.gradient(b, a)

    with pytest.raises(
        errors.NotRecordedError, match="is not on this tape: it was added to the graph before recording"
    ):
        early(x)


def test_target_that_is_a_variable_nobody_read(x):
    lonely = tf.Variable(1.0, name="lonely")
    with rt.Tape() as tape:
        x * x
    with pytest.raises(
        errors.NotRecordedError, match=r"'lonely:0' \(float32\[\]\) .* it was not read .* Read it inside"
    ):
        tape.gradient(lonely, x)


def test_jacobians_name_the_target_too():
    x = tf.ones((2, 3))
    with rt.Tape() as tape:
        x * x
    z = x * 2.0
    with not_recorded("it was made after recording ended", "Move"):
        tape.jacobian(z, x)
    with not_recorded("it was made after recording ended", "Move"):
        tape.batch_jacobian(z, x)


# ------------------------------------------------------------------ targets and sources of a wrong kind


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.uint8, tf.bool])
def test_target_without_derivative(x, dtype):
    with rt.Tape() as tape:
        y = tf.cast(x, dtype)
    text = rf"The target tensor {dtype.name}\[\] has dtype {dtype.name}; a target must be .* cast it inside"
    with pytest.raises(errors.NotDifferentiableError, match=text) as caught:
        tape.gradient(y, x)
    assert caught.value.dtype == dtype.name
    with pytest.raises(errors.NotDifferentiableError, match=dtype.name):
        tape.jacobian(y, x)


def test_target_of_strings(x):
    with rt.Tape() as tape:
        y = tf.strings.as_string(x)
    with pytest.raises(errors.NotDifferentiableError, match="has dtype string"):
        tape.gradient(y, x)


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (None, "NoneType None"),
        (1.0, "float 1.0"),
        ("x", "str 'x'"),
        (np.ones(2), r"ndarray array\(\[1\., 1\.\]\)"),
        (np.float32(1.0), "float32 "),
        (np.zeros(100), r"ndarray array\(\[.*\.\.\.\. Give"),
    ],
    ids=["None", "float", "str", "array", "scalar", "long"],
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"a": (v,)}], ids=["bare", "list", "nest"])
def test_source_and_target_must_be_tensors(x, bad, shown, wrap):
    with rt.Tape() as tape:
        y = x * x
    text = rf"must be a tensor, a tf\.Variable or a Keras variable, got {shown}"
    with pytest.raises(errors.NotASourceError, match=rf"(?s)A target {text}") as caught:
        tape.gradient(wrap(bad), x)
    assert caught.value.role == "target"
    with pytest.raises(errors.NotASourceError, match=rf"(?s)A source {text}"):
        tape.gradient(y, wrap(bad))
    with pytest.raises(errors.NotASourceError, match=rf"(?s)A watched value {text}"):
        tape.watch(wrap(bad))


def test_the_error_about_a_number_says_what_to_give(x):
    with rt.Tape() as tape:
        x * x
    with pytest.raises(errors.NotASourceError, match="Give the tensor that took part in the recording, or a nest"):
        tape.gradient(2.0, x)


def test_a_keras_tensor_is_symbolic(x):
    with rt.Tape() as tape:
        y = x * x
    symbolic = keras.Input((2,))
    text = "got KerasTensor .* It is symbolic: ask about the tensor that the model returned when it was called"
    with pytest.raises(errors.NotASourceError, match=f"A source .*{text}"):
        tape.gradient(y, symbolic)
    with pytest.raises(errors.NotASourceError, match=f"A target .*{text}"):
        tape.gradient(symbolic, x)


def test_a_jacobian_has_one_target(x):
    with rt.Tape() as tape:
        y = x * tf.ones((2, 3))
    with pytest.raises(errors.RetrotapeError, match="target"):
        tape.jacobian([y, y], x)


def test_a_batch_jacobian_has_one_source():
    m = tf.ones((2, 3))
    with rt.Tape() as tape:
        y = m * m
    with pytest.raises(errors.RetrotapeError, match="source"):
        tape.batch_jacobian(y, [m, m])


# ------------------------------------------------------------------ tapes that hold nothing


def empty(reason: str):
    return pytest.raises(errors.EmptyTapeError, match=rf"holds no recording: {reason}\. Record first: `with tape: loss")


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


def test_a_block_without_ops_has_nothing_but_what_is_asked_about(x):
    made_before = x * 2.0
    with rt.Tape() as tape:
        pass
    assert len(tape.program.eqns) == 0
    assert tape.memory().bytes == 0
    assert float(tape.gradient(x, x)) == 1.0
    with not_recorded("it was made before recording began and took no part in it", "Move"):
        tape.gradient(made_before, x)


def test_watching_after_a_reset_does_not_hide_that_the_tape_is_empty(x):
    with rt.Tape() as tape:
        y = x * x
    tape.reset()
    tape.watch(x)
    with pytest.raises(errors.RetrotapeError, match="tape"):
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
        errors.TapeUseError, match=r"recorded inside a tf\.function and is asked outside of it\. Ask inside"
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

    with pytest.raises(errors.TapeUseError, match=r"recorded in eager code and is now entered inside a tf\.function"):
        square(x)
    assert float(tape.gradient(y, x)) == 6.0


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


def test_a_value_that_was_overwritten_before_the_tape_saw_it(x):
    """The answer is the value of that time, or an error that says what is missing; never another value."""
    late = tf.Variable(2.0, name="late")

    @tf.custom_gradient
    def scaled(a):
        return tf.identity(a), lambda upstream: upstream * late.read_value()

    with rt.Tape() as tape:
        y = scaled(x)
        late.assign_add(1.0)
    try:
        outcome = str(float(tape.gradient(y, x)))
    except errors.LostValueError as error:
        outcome = str(error)
    assert re.match(r"2\.0|.* was overwritten before the tape saw it\. Read the variable inside the block", outcome)


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
            "Got 2 output_gradients for 1 targets; give one for each, None where nothing flows in",
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
    assert float(tape.gradient([y, z], x, output_gradients=[None, tf.ones(2)])) == 30.0


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
