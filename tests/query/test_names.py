"""Names: nested, by their ends, in the place of tensors and variables in every question."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.trips import assert_same, trip
from retrotape.errors import AmbiguousNameError, NotRecordedError, UnknownNameError


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Any:
    """Return a tape of two models in a row, what was loaded of it, and what is on it."""
    keras.utils.set_random_seed(3)
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 3)), tf.float32)
    layers = [keras.layers.Dense(2, "tanh", name="dense"), keras.layers.Dense(2, name="last")]
    first = keras.Sequential([keras.Input((3,)), *layers], name="first")
    second = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="dense")], name="second")
    with rt.Tape() as tape:
        y = first(x)
        rows = tf.reduce_sum(second(y) ** 2, axis=1)
        loss = tf.reduce_mean(rows)
    names = {"data": {"x": x, "out": [y, rows]}, "loss": loss}
    made = trip(tape, names, tmp_path_factory.mktemp("names"))
    kernel = first.layers[1].kernel
    return {"tape": tape, "loaded": made.loaded, "x": x, "y": y, "rows": rows, "loss": loss, "kernel": kernel}


def test_names_are_flat_and_variables_keep_their_own(parts):
    assert parts["loaded"].names == (
        "data/out/0",
        "data/out/1",
        "data/x",
        "first/dense/bias",
        "first/dense/kernel",
        "first/last/bias",
        "first/last/kernel",
        "loss",
        "second/dense/bias",
        "second/dense/kernel",
    )
    assert list(parts["loaded"]) == list(parts["loaded"].names)
    assert [variable.name for variable in parts["loaded"].variables] == [
        *("first/dense/kernel", "first/dense/bias", "first/last/kernel", "first/last/bias"),
        *("second/dense/kernel", "second/dense/bias"),
    ]
    assert all(variable.trainable for variable in parts["loaded"].variables)


def test_the_end_of_a_name_is_enough_where_it_is_clear(parts):
    loaded = parts["loaded"]
    assert loaded["last/kernel"] is loaded["first/last/kernel"]
    assert loaded["x"] is loaded["data/x"]
    assert loaded["out/1"] is loaded["data/out/1"]
    for name in ("last/kernel", "x", "loss", "first/dense/bias"):
        assert name in loaded
    for name in ("dense/kernel", "kernel", "ast/kernel", "nobody", "data", "", 3, None):
        assert name not in loaded
    with pytest.raises(
        AmbiguousNameError, match=r"'dense/kernel' may be any of 'first/dense/kernel', 'second/dense/kernel'. Give more"
    ):
        loaded["dense/kernel"]
    with pytest.raises(UnknownNameError, match=r"nothing named 'ast/kernel'; its names are 'data/out/0', 'data/out/1'"):
        loaded["ast/kernel"]
    with pytest.raises(TypeError, match=r"known by name: `tape\['name'\]`; got 3"):
        loaded[3]


def test_a_name_gives_the_same_tensor_each_time(parts):
    loaded = parts["loaded"]
    for name in ("data/x", "loss", "data/out/0"):
        assert loaded[name] is loaded[name]
    by_name = loaded.gradient("loss", "data/x")
    by_tensor = loaded.gradient(loaded["loss"], loaded["data/x"])
    np.testing.assert_array_equal(by_name, by_tensor)
    assert_same(by_name, parts["tape"].gradient(parts["loss"], parts["x"]))


def gradients(found: Any) -> list[Any]:
    return [grad for _, grad in found.items()]


def ones(*shape: int) -> tf.Tensor:
    return tf.ones(shape)


QUESTIONS: dict[str, Any] = {
    "gradient": lambda t, n: t.gradient(n("loss"), n("x")),
    "gradient of a nest": lambda t, n: t.gradient([n("loss"), n("rows")], {"x": n("x"), "k": [n("kernel")]}),
    "gradient, named": lambda t, n: t.gradient(target=n("loss"), sources=n("kernel")),
    "vjp": lambda t, n: t.vjp(n("y"), n("x"), ones(4, 2)),
    "jvp": lambda t, n: t.jvp(n("y"), n("x"), ones(4, 3)),
    "jacobian": lambda t, n: t.jacobian(n("y"), n("kernel")),
    "batch_jacobian": lambda t, n: t.batch_jacobian(n("y"), n("x")),
    "per_example": lambda t, n: t.per_example(n("rows"), n("kernel")),
    "hvp": lambda t, n: t.hvp(n("loss"), n("kernel"), ones(2, 2)),
    "hessian": lambda t, n: t.hessian(n("loss"), n("kernel")),
    "backward": lambda t, n: gradients(t.backward(n("loss"), n("kernel"))),
    "backward, all": lambda t, n: gradients(t.backward(n("loss"))),
    "backward, named": lambda t, n: gradients(t.backward(loss=n("loss"), wrt=[n("kernel"), n("x")])),
    "backward_each": lambda t, n: [gradients(found) for found in t.backward_each([n("loss")] * 2, n("kernel"))],
    "stream": lambda t, n: [grad for _, grad in t.stream(n("loss"), [n("kernel"), n("x")])],
    "stream, since": lambda t, n: [
        grad for _, grad in t.stream(n("loss"), [n("kernel")], through_updates=True, since=0)
    ],
    "versions": lambda t, n: [version.value for version in t.versions(n("kernel"))],
    "at": lambda t, n: t.gradient(n("loss"), t.at(n("kernel"), 0)),
    "value": lambda t, n: t.value(n("rows")),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_names_in_every_question(name, parts):
    known = {"x": "data/x", "y": "data/out/0", "rows": "data/out/1", "loss": "loss", "kernel": "first/last/kernel"}
    ask = QUESTIONS[name]
    ours, theirs = ask(parts["loaded"], known.__getitem__), ask(parts["tape"], parts.__getitem__)
    tf.nest.assert_same_structure(ours, theirs)
    for got, wanted in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
        assert_same(got, wanted)


def test_unknown_names_in_questions(parts):
    loaded = parts["loaded"]
    for ask in (
        lambda: loaded.gradient("nobody", "x"),
        lambda: loaded.gradient("loss", ["x", "nobody"]),
        lambda: loaded.backward("loss", wrt="nobody"),
        lambda: loaded.value("nobody"),
        lambda: loaded.replay({"nobody": 1.0}),
        lambda: list(loaded.stream("nobody")),
        lambda: loaded.versions("nobody"),
    ):
        with pytest.raises(UnknownNameError, match="nothing named 'nobody'"):
            ask()


def test_tensors_of_this_process_are_not_on_a_loaded_tape(parts):
    loaded = parts["loaded"]
    with pytest.raises(
        NotRecordedError,
        match=r"made in this process, and the tape was loaded. Use a tensor of the tape: .*tape\['name'\]",
    ):
        loaded.gradient(parts["loss"], "x")
    assert loaded.gradient("loss", parts["x"]) is None
    assert loaded.gradient("loss", parts["kernel"]) is None


def test_live_tapes_know_variables_by_name_and_no_tensors(parts):
    tape = parts["tape"]
    unknown = pytest.raises(UnknownNameError, match=r"nothing named 'x'; its names are .* give tensors themselves")
    with unknown:
        tape.gradient(parts["loss"], "x")
    with unknown:
        tape.replay({"x": 1.0})
    np.testing.assert_array_equal(
        tape.gradient(parts["loss"], "last/kernel"), parts["loaded"].gradient("loss", "last/kernel")
    )


# ------------------------------------------------------------------ giving names


@pytest.fixture
def squares() -> Any:
    x, a, b = tf.constant(2.0), tf.Variable(3.0, name="v"), tf.Variable(5.0, name="v")
    with rt.Tape() as tape:
        y = x * a * b**2
    return tape, x, a, b, y


def test_many_variables_of_one_name(tmp_path):
    many = [tf.Variable(float(number), name="v") for number in range(1, 5)]
    with rt.Tape() as tape:
        y = many[0] * many[1] * many[2] * many[3]
    loaded = trip(tape, {"y": y}, tmp_path).loaded
    assert loaded.names == ("v", "v'", "v'3", "v'4", "y")
    assert [float(grad) for grad in loaded.gradient("y", ["v", "v'", "v'3", "v'4"])] == [24.0, 12.0, 8.0, 6.0]
    assert trip(loaded, {}, tmp_path).loaded.names == loaded.names


def test_variables_of_one_name(squares, tmp_path):
    tape, x, a, b, y = squares
    loaded = trip(tape, {"x": x, "y": y}, tmp_path).loaded
    assert loaded.names == ("v", "v'", "x", "y")
    assert [float(grad) for grad in loaded.gradient("y", ["v", "v'"])] == [50.0, 60.0]
    loaded = trip(tape, {"y": y, "v": b}, tmp_path).loaded  # what the user says comes first
    assert float(loaded.gradient("y", "v")) == 60.0
    assert float(loaded.gradient("y", "v'")) == 50.0
    loaded = trip(tape, {"y": y, "left": a, "right": b}, tmp_path).loaded
    assert [float(grad) for grad in loaded.gradient("y", ["left", "right"])] == [50.0, 60.0]


def test_keras_variables_and_what_is_inside_them(tmp_path):
    rate = keras.Variable(0.5, name="rate")
    with rt.Tape() as tape:
        y = rate * 3.0
    for named in (rate, rate.value):
        loaded = trip(tape, {"y": y, "mine": named}, tmp_path).loaded
        assert float(loaded.gradient("y", "mine")) == 3.0


def test_paths_are_found_without_walking_through_all_objects(tmp_path, monkeypatch):
    """`gc.get_referrers` looks into objects of which some are half made, and may end the process."""

    def walk(*objects: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr("gc.get_referrers", walk)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")], name="whole")
    with rt.Tape() as tape:
        y = model(tf.ones((1, 2)))
    assert trip(tape, {"y": y}, tmp_path).loaded.names == ("whole/dense/bias", "whole/dense/kernel", "y")


def test_what_was_made_in_the_block_by_no_op_can_be_named(tmp_path):
    x = tf.constant([1.0, 2.0])
    with rt.Tape() as tape:
        y = tf.constant((x * 2.0).numpy())
    made = trip(tape, {"x": x, "y": y}, tmp_path)
    np.testing.assert_array_equal(made.loaded["y"], y)
    assert made.loaded.gradient("y", "x") is tape.gradient(y, x) is None


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        ({"a": 3.0}, TypeError, r"names=\{'a': \.\.\.\} takes a tensor or a variable, got float"),
        ({"a": None}, TypeError, "got NoneType"),
        ({3: "y"}, TypeError, "takes a mapping from names to tensors, got the key 3"),
        ({"": "y"}, TypeError, "got the key ''"),
        ({"a/b": "y", "a": {"b": "x"}}, ValueError, "gives the name 'a/b' twice"),
        ({"a": "elsewhere"}, NotRecordedError, r"The named 'a', tensor float32\[\], .* it was not used in what was"),
        (
            {"a": "variable"},
            NotRecordedError,
            r"The named 'a', 'Variable:0' \(float32\[\]\), .* no op read or assigned",
        ),
        ({"a\ud800": "y"}, ValueError, r"names that can be written as text, got 'a\\ud800'"),
    ],
)
def test_names_that_mean_nothing(names, error, text, squares, tmp_path):
    tape, x, _, _, y = squares
    things = {"x": x, "y": y, "elsewhere": tf.constant(1.0), "variable": tf.Variable(1.0)}

    def put(item: Any) -> Any:
        return {key: put(value) for key, value in item.items()} if isinstance(item, dict) else things.get(item, item)

    with pytest.raises(error, match=text):
        tape.save(tmp_path / "a.tape", put(names))
    assert not (tmp_path / "a.tape").exists()


def test_answers_can_be_named(tmp_path):
    """A gradient is recorded when it is queried, and saving it is a query."""
    x = tf.constant([0.3, -1.2, 2.0])
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.sin(x) * x)
    grad = tape.gradient(y, x)
    loaded = trip(tape, {"x": x, "more": {"grad": grad}}, tmp_path).loaded
    np.testing.assert_array_equal(loaded["more/grad"], grad)
    assert_same(loaded.gradient("more/grad", "x"), tape.gradient(grad, x))
    again = loaded.replay({"x": [1.0, 2.0, 3.0]})
    np.testing.assert_allclose(again["grad"], np.sin([1, 2, 3]) + np.cos([1, 2, 3]) * [1, 2, 3], rtol=1e-6)


def test_one_tensor_may_have_two_names(tmp_path):
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        y = x**3
    loaded = trip(tape, {"x": x, "also": x, "y": y}, tmp_path).loaded
    assert float(loaded.gradient("y", "also")) == float(loaded.gradient("y", "x")) == 12.0
    assert float(loaded.gradient("also", "x")) == 1.0


def test_a_variable_as_target(tmp_path):
    w, x = tf.Variable([2.0, 3.0], name="w"), tf.constant([5.0, 7.0])
    with rt.Tape() as tape:
        w.assign(w * x)
    loaded = trip(tape, {"x": x}, tmp_path).loaded
    wanted = tape.gradient(w, [x, w], through_updates=True)
    for got, grad in zip(loaded.gradient("w", ["x", "w"], through_updates=True), wanted, strict=True):
        assert_same(got, grad)
