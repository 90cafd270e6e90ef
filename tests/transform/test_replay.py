"""The same program on other values is what the model would have done with them, or an error."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.trips import assert_same, trip
from retrotape.errors import ReplayError, ShapeMismatchError, TapeUseError, UnknownNameError

OLD, NEW = [0.3, -1.2, 2.0], [1.0, 0.5, -2.5]
HERE = Path(__file__).name


def both(tape: rt.Tape, x: Any, y: Any, folder: Path) -> list[tuple[Any, Any, Any]]:
    """Return the live tape and the loaded one, each with what stands for x and y there."""
    return [(tape, x, y), (trip(tape, {"x": x, "y": y}, folder).loaded, "x", "y")]


# ------------------------------------------------------------------ new values


def _network() -> Callable[[Any], Any]:
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Dense(4, "silu"), keras.layers.LayerNormalization(), keras.layers.Dense(2, "gelu")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    return lambda x: tf.reduce_sum(model(x[None]) ** 2)


@tf.custom_gradient
def _cubed(x):
    return 2.0 * x, lambda upstream: upstream * x**3


MODELS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "network": _network,
    "custom": lambda: lambda x: tf.reduce_sum(_cubed(tf.sin(x)) ** 2),
    "function": lambda: lambda x: tf.reduce_sum(tf.function(lambda x: tf.nn.silu(x) * _cubed(x))(x) ** 2),
    "gather": lambda: lambda x: tf.reduce_sum(tf.gather(x, tf.argsort(x)) * tf.constant([1.0, 2.0, 3.0])) ** 2,
}


@pytest.mark.parametrize("name", MODELS)
def test_another_input_is_the_model_on_that_input(name, tmp_path):
    model, x, new = MODELS[name](), tf.constant(OLD), tf.constant(NEW)
    with rt.Tape() as tape:
        y = model(x)
    with rt.Tape() as live:
        wanted = model(new)
    vector = tf.constant([1.0, -1.0, 0.5])
    for recorded, source, target in both(tape, x, y, tmp_path):
        again = recorded.replay([(source, NEW)])
        np.testing.assert_allclose(again.value(target), wanted, rtol=1e-6)
        np.testing.assert_array_equal(again.value(source), NEW)
        assert_same(again.gradient(target, source), live.gradient(wanted, new))
        assert_same(again.hvp(target, source, vector), live.hvp(wanted, new, vector), 1e-5)
        np.testing.assert_array_equal(recorded.value(target), y)  # the old one is as it was


def test_replays_of_replays_and_of_files(tmp_path):
    w, x = tf.Variable([1.0, 2.0, 3.0], name="w"), tf.constant(OLD)

    def model(x, w):
        return tf.reduce_sum(tf.nn.silu(x * w) ** 2)

    with rt.Tape() as tape:
        y = model(x, w)
    loaded = trip(tape, {"x": x, "y": y}, tmp_path).loaded
    first = loaded.replay({"x": NEW})
    second = first.replay({"w": [3.0, 2.0, 1.0]})
    back = second.replay({"x": OLD, "w": [1.0, 2.0, 3.0]})
    np.testing.assert_allclose(second["y"], model(tf.constant(NEW), tf.constant([3.0, 2.0, 1.0])), rtol=1e-6)
    np.testing.assert_allclose(second.value("w"), [3.0, 2.0, 1.0])
    np.testing.assert_array_equal(back["y"], y)
    assert_same(back.gradient("y", "w"), tape.gradient(y, w))
    second.save(tmp_path / "b.tape")
    saved = rt.load(tmp_path / "b.tape")
    np.testing.assert_array_equal(saved["y"], second["y"])
    assert_same(saved.gradient("y", "w"), second.gradient("y", "w"))
    assert_same(saved.replay({"x": OLD}).gradient("y", "x"), second.replay({"x": OLD}).gradient("y", "x"))
    # Tensors and variables of the first tape stand for their counterparts on all that came of it.
    assert_same(second.gradient(loaded["y"], loaded["w"]), second.gradient("y", "w"))


@pytest.mark.usefixtures("double_precision")
def test_a_training_on_other_rates_and_weights(tmp_path):
    def train(rate: float, start: list[float]) -> tuple[Any, Any, Any, Any]:
        w, adam = tf.Variable(start, dtype=tf.float64, name="w"), keras.optimizers.Adam(rate)
        adam.build([w])
        with rt.Tape() as tape:
            for _ in range(3):
                with tf.GradientTape() as inner:
                    loss = tf.reduce_sum(tf.sin(w) ** 2)
                adam.apply([inner.gradient(loss, w)], [w])
            y = tf.reduce_sum(w**2)
        return tape, y, w, adam.learning_rate

    tape, y, w, rate = train(0.1, [1.0, 2.0])
    live, wanted, other, other_rate = train(0.2, [0.5, -1.0])
    loaded = trip(tape, {"y": y, "rate": rate}, tmp_path).loaded
    for recorded, target, weight, by in ((tape, y, w, rate), (loaded, "y", "w", "rate")):
        again = recorded.replay([(by, 0.2), (weight, [0.5, -1.0])])
        np.testing.assert_allclose(again.value(target), wanted, rtol=1e-12)
        np.testing.assert_allclose(
            [version.value for version in again.versions(weight)], [version.value for version in live.versions(other)]
        )
        for source, theirs in ((weight, other), (by, other_rate)):
            found = again.gradient(target, source, through_updates=True)
            np.testing.assert_allclose(found, live.gradient(wanted, theirs, through_updates=True), rtol=1e-10)
        one = tf.constant(1.0, tf.float64)
        found = again.hvp(target, by, one, through_updates=True)
        np.testing.assert_allclose(found, live.hvp(wanted, other_rate, one, through_updates=True), rtol=1e-9)
        gap = 1e-6
        difference = (float(train(0.2 + gap, [0.5, -1.0])[1]) - float(train(0.2 - gap, [0.5, -1.0])[1])) / (2 * gap)
        by_rate = float(again.gradient(target, by, through_updates=True))
        assert by_rate == pytest.approx(difference, rel=1e-7)


@pytest.fixture
def double_precision():
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx(before)


def test_results_may_have_other_sizes_if_that_does_not_matter(tmp_path):
    x = tf.constant(OLD)
    with rt.Tape() as tape:
        positive = tf.boolean_mask(x, x > 0.0)
        y = tf.reduce_sum(positive**2) + tf.reduce_sum(tf.unique(tf.cast(x, tf.int32))[0]).dtype.size * x[0]
    for recorded, source, target in both(tape, x, y, tmp_path):
        again = recorded.replay([(source, [1.0, 2.0, 3.0])], trust=True)
        assert float(again.value(target)) == pytest.approx(14.0 + 4.0)
        np.testing.assert_allclose(again.gradient(target, source), [2.0 + 4.0, 4.0, 6.0])
        np.testing.assert_allclose(again.hvp(target, source, tf.ones(3)), [2.0, 2.0, 2.0])


def test_checked_values_are_not_taken_for_random_ones(tmp_path):
    x = tf.constant(OLD)
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.debugging.check_numerics(x * x, "squares"))
    for recorded, source, target in both(tape, x, y, tmp_path):
        assert float(recorded.replay([(source, NEW)]).value(target)) == pytest.approx(1.0 + 0.25 + 6.25)


# ------------------------------------------------------------------ where Python looked


def _if(x):
    total = tf.reduce_sum(x)
    if total > 0.0:  # _if
        return x * x
    return x


def _while(x):
    while tf.reduce_sum(x) > 0.5:  # _while
        x = x * 0.5
    return x * x


def _float(x):
    return x * float(tf.reduce_sum(x))  # _float


def _int(x):
    return x * int(tf.reduce_sum(10.0 * x))  # _int


def _numpy(x):
    return x * tf.reduce_sum(x).numpy()  # _numpy


def _list(x):
    return x * tf.reduce_sum(x).numpy().tolist()  # _list


def _index(x):
    return x * [1.0, 2.0, 3.0][tf.argmax(x)]  # _index


def _iterate(x):
    return x * sum(1.0 for item in x if item > 0.0)  # _iterate


def _custom(x):
    @tf.custom_gradient
    def scaled(x):
        def back(upstream):
            return upstream * x.numpy()  # _custom

        return 2.0 * x, back

    return scaled(x)


LOOKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "_if": (_if, "bool"),
    "_while": (_while, "bool"),
    "_float": (_float, "float"),
    "_int": (_int, "int"),
    "_numpy": (_numpy, "numpy"),
    "_list": (_list, "numpy"),
    "_index": (_index, "index"),
    "_iterate": (_iterate, "bool"),
    "_custom": (_custom, "numpy"),
}


def line_of(marked: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {marked}")]
    return number


@pytest.mark.parametrize("name", LOOKS)
def test_where_python_looked_at_what_is_another_value_now(name, tmp_path):
    run, how = LOOKS[name]
    x = tf.constant(OLD)
    with rt.Tape() as tape:
        y = tf.reduce_sum(run(x))
    for recorded, source, target in both(tape, x, y, tmp_path):
        assert_same(recorded.replay([(source, OLD)]).value(target), y)
        with pytest.raises(ReplayError) as caught:
            recorded.replay([(source, [-9.0, 4.0, 0.0])])
        assert re.search(rf"{HERE}:{line_of(name)}$", caught.value.where)
        assert caught.value.how == how
        again = recorded.replay([(source, [-9.0, 0.0, 0.0])], trust=True)
        assert again.value(target).shape == []
    trip(recorded, {}, tmp_path)  # looks survive another trip
    with pytest.raises(ReplayError, match=rf"{HERE}:{line_of(name)} "):
        rt.load(tmp_path / "a.tape").replay({"x": [-9.0, 4.0, 0.0]})


def test_a_branch_that_is_the_same_is_no_obstacle(tmp_path):
    x = tf.constant(OLD)
    with rt.Tape() as tape:
        y = tf.reduce_sum(_if(x))
    for recorded, source, target in both(tape, x, y, tmp_path):
        assert float(recorded.replay([(source, [1.0, 2.0, 3.0])]).value(target)) == pytest.approx(14.0)


def test_a_look_at_what_a_function_gave(tmp_path):
    """What ran inside a function is not later than what came after the call."""
    x, function = tf.constant(OLD), tf.function(lambda x: tf.reduce_sum(tf.sin(x) * x))
    with rt.Tape() as tape:
        y = function(x)
        z = y * 2.0 if y > 1.0 else y  # after a function
        function(x)
    for recorded, source, target in both(tape, x, z, tmp_path):
        np.testing.assert_allclose(
            recorded.replay([(source, [2.0, 2.0, 1.0])]).value(target), 2.0 * function([2.0, 2.0, 1.0])
        )
        with pytest.raises(ReplayError, match=rf"{HERE}:{line_of('after a function')} "):
            recorded.replay([(source, [0.0, 0.0, 0.1])])


def test_what_is_only_shown_decides_nothing(tmp_path, capsys):
    x = tf.constant(OLD)
    with rt.Tape() as tape:
        total = tf.reduce_sum(x)
        print(total, f"{total:.3f}", f"{total}", str(x), repr(x))
        logging.getLogger("test").info("total %s", total)
        tf.print(total)
        tf.debugging.assert_less(x, 100.0)
        y = total**2
    assert "1.1" in capsys.readouterr().out
    for recorded, source, target in both(tape, x, y, tmp_path):
        assert float(recorded.replay([(source, NEW)]).value(target)) == pytest.approx(1.0)


def test_a_table_cannot_look_up_something_else(tmp_path):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3.0, 4.0]), 0.0)
    x, keys = tf.constant(OLD), tf.constant([1, 2, 1])
    with rt.Tape() as tape:
        y = tf.reduce_sum(x * table.lookup(keys))
    assert float(tape.replay([(x, NEW)]).value(y)) == pytest.approx(3.0 + 2.0 - 7.5)
    changing = tf.lookup.experimental.MutableHashTable(tf.int32, tf.float32, 0.0)
    with rt.Tape() as other:
        changing.insert(keys, x)
        z = tf.reduce_sum(changing.lookup(keys))
    with pytest.raises(TapeUseError, match=r"LookupTableInsertV2 at .* cannot run again"):
        other.replay([(x, NEW)])
    assert other.value(z) is not None
    with pytest.raises(
        TapeUseError, match=rf"LookupTableFindV2 at .*{HERE}:\d+ depends on the new values and cannot run"
    ):
        tape.replay([(keys, [2, 2, 2])])


# ------------------------------------------------------------------ random numbers


def test_random_numbers_are_those_that_were_drawn(tmp_path):
    x = tf.constant(OLD)
    with rt.Tape() as tape:
        noise = tf.random.normal([3])
        y = tf.reduce_sum(x**2 * noise) + tf.reduce_sum(tf.nn.dropout(x, 0.5))
    for recorded, source, target in both(tape, x, y, tmp_path):
        np.testing.assert_array_equal(recorded.replay([(source, OLD)]).value(target), y)
        again = recorded.replay([(source, NEW)])
        np.testing.assert_array_equal(recorded.replay([(source, NEW)]).value(target), again.value(target))
        drawn = [float(recorded.replay([], resample=True).value(target)) for _ in range(4)]
        assert len({*drawn, float(y)}) == 5
        fresh = recorded.replay([(source, NEW)], resample=True)
        np.testing.assert_array_equal(fresh.value(target), fresh.value(target))  # drawn once
        np.testing.assert_array_equal(fresh.replay([(source, NEW)]).value(target), fresh.value(target))
        assert_same(fresh.gradient(target, source), fresh.gradient(target, source))


def test_draws_with_other_parameters_stay_as_they_were():
    """What depends on the draw is computed; the draw itself is not, unless it is asked for."""
    rate = tf.constant([3.0, 5.0, 7.0])
    with rt.Tape() as tape:
        drawn = tf.random.poisson([], rate)
        y = tf.reduce_sum(drawn * rate)
    again = tape.replay([(rate, [1.0, 1.0, 1.0])])
    assert float(again.value(y)) == float(tf.reduce_sum(drawn))


# ------------------------------------------------------------------ what cannot be given


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1.0, 2.0], r"Got a new value of shape \(2,\) for tensor float32\[3\]"),
        (1.0, r"of shape \(\)"),
        (tf.zeros([3, 1]), r"of shape \(3, 1\)"),
        (
            tf.zeros([3], tf.int32),
            r"requested dtype float32 for Tensor with dtype int32.* `tf.cast\(value, tf.float32\)`",
        ),
        (np.array(["a", "b", "c"]), "Got ndarray as a new value"),
        (None, "Got NoneType as a new value"),
    ],
)
def test_values_that_do_not_fit(value, text, tmp_path):
    x = tf.constant(OLD)
    with rt.Tape() as tape:
        y = tf.reduce_sum(x * x)
    for recorded, source, _ in both(tape, x, y, tmp_path):
        with pytest.raises(ShapeMismatchError, match=text):
            recorded.replay([(source, value)])


def test_only_what_the_tape_started_from(tmp_path):
    x = tf.constant(OLD)
    with rt.Tape() as tape:
        y = tf.reduce_sum(x * x)
    for recorded, _, target in both(tape, x, y, tmp_path):
        with pytest.raises(TapeUseError, match="was computed on this tape, so it cannot get a new value"):
            recorded.replay([(target, 1.0)])
    with pytest.raises(UnknownNameError, match="nothing named 'z'"):
        recorded.replay({"z": 1.0})
    with pytest.raises(rt.errors.NotRecordedError, match="it was not used in what was recorded"):
        tape.replay([(tf.zeros(3), OLD)])
    with pytest.raises(rt.errors.NotRecordedError, match="it was not used in what was recorded"):
        tape.value(tf.Variable(1.0))
