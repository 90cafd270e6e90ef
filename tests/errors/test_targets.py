"""Targets and sources that cannot be asked about: not on the tape, or of a wrong kind."""

from __future__ import annotations

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
    with not_recorded("it was made before recording began and was not used in it", "Move the code that makes it into"):
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


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (None, "NoneType None"),
        (1.0, "float 1.0"),
        (np.ones(2), r"ndarray array\(\[1\., 1\.\]\)"),
        (np.float32(1.0), "float32 "),
        (np.zeros(100), r"ndarray array\(\[.*\.\.\.\. An array is not recorded: give the tensor made from it"),
    ],
    ids=["None", "float", "array", "scalar", "long"],
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
    with pytest.raises(errors.NotASourceError, match="Give a tensor that was used while recording, or a nest"):
        tape.gradient(2.0, x)


def test_a_keras_tensor_is_symbolic(x):
    with rt.Tape() as tape:
        y = x * x
    symbolic = keras.Input((2,))
    text = "got KerasTensor .* It is symbolic: give the tensor that the model returned when it was called"
    with pytest.raises(errors.NotASourceError, match=f"A source .*{text}"):
        tape.gradient(y, symbolic)
    with pytest.raises(errors.NotASourceError, match=f"A target .*{text}"):
        tape.gradient(symbolic, x)


def test_a_jacobian_has_one_target(x):
    with rt.Tape() as tape:
        y = x * tf.ones((2, 3))
    with pytest.raises(
        errors.ShapeMismatchError, match="jacobian takes one target, got 2 in a list; call it once for each"
    ):
        tape.jacobian([y, y], x)


def test_a_batch_jacobian_has_one_source():
    m = tf.ones((2, 3))
    with rt.Tape() as tape:
        y = m * m
    text = "batch_jacobian takes one source, got 2 in a list; call it once for each"
    with pytest.raises(errors.ShapeMismatchError, match=text):
        tape.batch_jacobian(y, [m, m])


# ------------------------------------------------------------------ a block without ops


def test_a_block_without_ops_has_nothing_but_what_is_asked_about(x):
    made_before = x * 2.0
    with rt.Tape() as tape:
        pass
    assert len(tape.program.eqns) == 0
    assert tape.memory().bytes == 0
    assert float(tape.gradient(x, x)) == 1.0
    with not_recorded("it was made before recording began and was not used in it", "Move"):
        tape.gradient(made_before, x)
