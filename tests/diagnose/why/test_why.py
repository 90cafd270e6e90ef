"""What `tape.why` says where programs alone do not show it, and `none=` of the questions."""

from __future__ import annotations

import json
import re
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors
from retrotape.diagnose.why import Verdict, _explain, _walk
from retrotape.record import python_constants

DATA = np.array([0.3, 0.4], np.float32)  # not typed in the code that uses it

# ------------------------------------------------------------------ never a guess


def test_without_a_witness_it_is_unknown_and_shows_both_ends(monkeypatch):
    w = tf.Variable(2.0)
    with rt.Tape() as tape:
        loss = tf.stop_gradient(w * 2.0) + 1.0
    monkeypatch.setattr(_explain.Between, "cuts", lambda self, flowing: [])
    found = tape.why(loss, w)
    assert found.verdict is Verdict.UNKNOWN
    assert [step.op for step in found.reached] == ["Mul", "StopGradient", "AddV2"]
    assert [step.op for step in found.leading] == ["Mul", "StopGradient", "AddV2"]


def test_a_look_for_the_log_is_no_witness():
    """The target has other variables and numbers, made after Python saw what comes from the source."""
    w, v = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    with rt.Tape() as tape:
        float(tf.reduce_sum(w))
        loss = tf.reduce_sum(v * tf.constant(DATA))
    found = tape.why(loss, w)
    assert found.verdict is Verdict.NO_PATH
    assert "Python read a value computed from the source" in found.detail


def test_a_constant_of_before_the_look_is_no_witness():
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        hidden = w * 2.0
        constant = tf.constant(DATA)
        hidden.numpy()
        loss = tf.reduce_sum(constant**2)
    assert tape.why(loss, w).verdict is Verdict.NO_PATH


def test_a_condition_is_no_value_that_comes_back():
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        if tf.reduce_all(w > 0.0):
            loss = tf.reduce_sum(tf.constant(DATA))
    assert tape.why(loss, w).verdict is Verdict.NO_PATH


def test_numbers_in_the_code_are_not_born():
    w = tf.Variable(1.0)
    with rt.Tape() as tape:
        loss = w * 1.5 - 2.5 + tf.constant([1.5, -2.5])
        other = loss * tf.constant(DATA)
    trace = tape._session.trace
    assert [trace.program.types[var].shape for var in python_constants(trace, trace)] == [(2,)]
    assert other.shape == (2,)


def test_of_several_routes_all_are_counted():
    w = tf.Variable(2.0)
    with rt.Tape() as tape:
        many = tf.add_n([tf.stop_gradient(w) * float(number) for number in range(1, 7)])
        kinds = tf.stop_gradient(w) + tf.round(w) + tf.floor(w) + tf.math.ceil(w) + tf.math.rint(w)
    line = r"\(.*test_why.py:\d+\)"
    assert re.search(rf"5 more on other paths: StopGradient {line} 5 times\.", tape.why(many, w).detail)
    assert "4 more on other paths: " in tape.why(kinds, w).detail
    assert tape.why(kinds, w).detail.endswith(" and 1 other.")


def test_a_route_about_shapes_is_not_the_one_that_is_meant():
    w = tf.Variable([[1.0, 2.0]])
    with rt.Tape() as tape:
        flat = tf.zeros(tf.shape(w))
        loss = tf.reduce_sum(flat + tf.stop_gradient(w))
    found = tape.why(loss, w)
    assert (found.verdict, found.cut.op) == (Verdict.STOP_GRADIENT, "StopGradient")
    assert "more on other paths" not in found.detail


def test_variables_without_a_name_are_not_of_the_same_name():
    used, unused = tf.Variable(1.0), tf.Variable(1.0)
    with rt.Tape() as tape:
        loss = used * 2.0
    assert used.name == unused.name
    assert tape.why(loss, unused).verdict is Verdict.SOURCE_NOT_RECORDED


def test_where_zeros_are_made_by_several_ops_none_is_blamed():
    w, mask = tf.Variable([1.0, -1.0]), tf.constant([0.0, 1.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.nn.relu(w) * mask)
    found = tape.why(loss, w)
    assert found.verdict is Verdict.ZERO
    assert found.cut is None or "dead" not in found.detail


def test_zero_times_something_is_not_multiplied_by_zeros():
    """The factor that is zero is the one that comes from the source: the other one counts."""
    w = tf.Variable([0.0, 0.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.constant([3.0, 4.0]) * w)
    assert tape.why(loss, w).verdict is Verdict.CONNECTED


# ------------------------------------------------------------------ through updates


def test_through_updates():
    code, kernel = tf.Variable(2.0, name="code"), tf.Variable(1.0, name="kernel")
    with rt.Tape() as tape:
        kernel.assign(code * 3.0)
        kernel.assign(kernel * 2.0)
        loss = kernel * kernel
    assert tape.why(loss, code).verdict is Verdict.ASSIGNMENT
    assert tape.why(loss, code, through_updates=True).verdict is Verdict.CONNECTED
    late = tape.why(loss, code, through_updates=True, since=-1)
    assert (late.verdict, late.cut.op) == (Verdict.SINCE, "AssignVariableOp")
    assert tape.why(loss, tape.at(kernel, 1)).verdict is Verdict.CONNECTED


def test_a_cut_behind_an_assignment_promises_nothing():
    code, kernel = tf.Variable(2.0), tf.Variable(1.0)
    with rt.Tape() as tape:
        kernel.assign(code * 3.0)
        loss = tf.stop_gradient(kernel) * 2.0
    found = tape.why(loss, code)
    assert found.verdict is Verdict.ASSIGNMENT
    assert found.remedy.startswith("There is another cut after it")
    assert tape.gradient(loss, code, through_updates=True) is None


def test_a_gradient_can_be_the_target():
    x, y = tf.Variable(3.0), tf.Variable(1.0)
    with rt.Tape() as tape:
        loss = x * x + tf.stop_gradient(y)
    slope = tape.gradient(loss, x)
    assert tape.why(slope, x).verdict is Verdict.CONNECTED
    assert tape.why(slope, y).verdict is Verdict.NO_PATH


def test_a_gradient_that_is_constant_has_a_derivative_of_zero():
    x = tf.Variable(3.0)
    with rt.Tape() as tape:
        loss = 5.0 * x
    slope = tape.gradient(loss, x)
    assert float(tape.gradient(slope, x)) == 0.0
    found = tape.why(slope, x)
    assert found.verdict is Verdict.ZERO
    assert found.detail == "The target is a gradient that does not depend on the source: it is constant."


# ------------------------------------------------------------------ large tapes


def long_chain(cut: str, count: int) -> tuple[rt.Tape, tf.Tensor, tf.Variable]:
    w = tf.Variable(1.0)
    with rt.Tape() as tape:
        h = {"none": tf.identity, "stop": tf.stop_gradient, "round": tf.round}[cut](w * 1.0)
        for _ in range(count // 2):
            h = tf.raw_ops.Mul(x=h, y=h)
            h = tf.raw_ops.Sqrt(x=h)
    return tape, h, w


def test_a_long_path_is_explained_as_a_short_one_is():
    short, long = (tape.why(target, source) for tape, target, source in (long_chain("none", n) for n in (60, 6000)))
    assert short.verdict.name == long.verdict.name == "CONNECTED"
    assert short.detail == long.detail
    assert long.detail.startswith("The norm of the gradient is 1. It changes most at Mul (")
    assert len(long.reached) > 90 * len(short.reached)


def test_gradients_on_the_path_are_not_held(monkeypatch):
    tape, target, source = long_chain("none", 60)
    seen, alive = [], []
    measure = _walk.measure

    def watching(grad):
        seen.append(weakref.ref(grad))
        alive.append(sum(one() is not None for one in seen))
        return measure(grad)

    monkeypatch.setattr(_walk, "measure", watching)
    tape.why(target, source)
    assert len(seen) > 100
    assert max(alive) < 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut", "verdict"), [("none", "CONNECTED"), ("stop", "STOP_GRADIENT"), ("round", "RULE_RETURNED_NONE")]
)
def test_a_hundred_thousand_ops(cut, verdict):  # how long it takes: benchmarks/notes.py
    tape, target, source = long_chain(cut, 100_000)
    assert tape.why(target, source).verdict.name == verdict


# ------------------------------------------------------------------ none=


def test_none():
    used, unused = tf.Variable([2.0]), tf.Variable([3.0, 4.0])
    with rt.Tape() as tape:
        loss = used * 2.0
    assert tape.gradient(loss, [used, unused], none="keep")[1] is None
    assert tape.gradient(loss, [used, unused], none="zero")[1].numpy().tolist() == [0.0, 0.0]
    assert tape.gradient(loss, {"w": used}, none="raise")["w"].numpy().tolist() == [2.0]
    with pytest.raises(ValueError, match=r"none= must be one of 'keep', 'zero', 'raise', got 'ignore'\."):
        tape.gradient(loss, used, none="ignore")


@pytest.mark.parametrize("ask", ["gradient", "backward", "vjp"])
def test_none_raises_with_what_why_says(ask):
    w, v, u = (tf.Variable(2.0, name=name) for name in "wvu")
    with rt.Tape() as tape:
        loss = tf.stop_gradient(w) * v + tf.stop_gradient(u)
    arguments = (tf.constant(1.0),) if ask == "vjp" else ()
    with pytest.raises(
        errors.MissingGradientError, match=r"no gradient with respect to 'w:0' \(float32\[\]\)"
    ) as caught:
        getattr(tape, ask)(loss, [w, v, u], *arguments, none="raise")
    assert str(tape.why(loss, w)) in str(caught.value)
    assert "(and 1 more of the sources)" in str(caught.value)
    assert caught.value.others == 1


def test_none_raises_in_a_function():
    w, v = tf.Variable(2.0), tf.Variable(3.0)

    @tf.function
    def step(x):
        with rt.Tape() as tape:
            loss = tf.stop_gradient(w) * v * x
        return tape.gradient(loss, [v, w], none="raise")

    with pytest.raises(errors.MissingGradientError, match=r"cuts the path: StopGradient \(.*test_why.py:\d+\)"):
        step(tf.constant(1.0))


def test_none_raises_through_updates():
    code, kernel = tf.Variable(2.0), tf.Variable(1.0)
    with rt.Tape() as tape:
        kernel.assign(code * 3.0)
        loss = kernel * kernel
    with pytest.raises(errors.MissingGradientError, match="a variable assignment, where it ends"):
        tape.gradient(loss, code, none="raise")
    assert float(tape.gradient(loss, code, through_updates=True, none="raise")) == 36.0


def test_apply_names_the_cut_of_each():
    w, v = tf.Variable(2.0, name="w"), tf.Variable(3.0, name="v")
    with rt.Tape() as tape:
        loss = tf.stop_gradient(w * v)
    grads = tape.backward(loss)
    with pytest.raises(
        errors.NothingToApplyError,
        match=r"w, v \(`tf.stop_gradient` cuts the path: StopGradient \(.*test_why.py:\d+\)\)",
    ):
        grads.apply(keras.optimizers.SGD(0.1))


# ------------------------------------------------------------------ looks and files


def test_numpy_function_is_a_look_only_while_recording():
    from tensorflow.python.ops import script_ops

    before = script_ops.py_func_common
    x, w = tf.constant([1.0, 2.0]), tf.Variable([3.0, 4.0])
    with rt.Tape() as tape:
        for part in (x, w, keras.Variable([5.0, 6.0])):
            tf.numpy_function(np.square, [part], tf.float32)
        assert script_ops.py_func_common is not before
    assert script_ops.py_func_common is before
    assert [look.method for look in tape._session.trace.facts.host_reads] == ["numpy_function"] * 3


def test_a_tape_that_is_saved_twice_still_knows_what_was_born(tmp_path):
    w = tf.Variable([0.5, 1.5], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.constant((w * 2.0).numpy() + 0.125))
    tape.save(tmp_path / "one.tape", {"loss": loss})
    once = rt.load(tmp_path / "one.tape")
    assert once.why("loss", "w").verdict is Verdict.LEFT_TENSORFLOW
    once.save(tmp_path / "two.tape")
    assert rt.load(tmp_path / "two.tape").why("loss", "w").verdict is Verdict.LEFT_TENSORFLOW


def test_as_plain_data():
    w = tf.Variable(2.0, name="w")
    with rt.Tape() as tape:
        loss = tf.stop_gradient(w) * 3.0
    data = json.loads(json.dumps(tape.why(loss, w).to_json()))
    assert data["verdict"] == "STOP_GRADIENT"
    assert data["cut"]["op"] == "StopGradient"
    assert data["remedy"] == Verdict.STOP_GRADIENT.remedy
