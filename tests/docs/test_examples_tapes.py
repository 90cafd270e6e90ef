"""The examples with one tape or several: their numbers, by other routes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from docs.running import FOLDER, load, run

# ------------------------------------------------------------------ first order


def test_two_tapes():
    numbers = run("two_tapes").numbers
    assert numbers["curved"] == pytest.approx((6.583853, 1.3416147), abs=1e-6)
    assert numbers["straight"] == pytest.approx((3.0, 0.7), abs=1e-6)


def test_ask_in_the_middle():
    numbers = run("ask_in_the_middle").numbers
    assert numbers["dz/dy"] == pytest.approx(0.5403023, abs=1e-6)
    assert numbers["dy/dx"] == 2.0
    assert numbers["dz2/dx"] == pytest.approx(14.7781122, rel=1e-6)
    assert numbers["dz2/dy"] == pytest.approx(7.3890561, rel=1e-6)
    asked, known = numbers["hidden"]
    assert len(asked) == 4
    assert asked == pytest.approx(known, abs=1e-6)


def test_nested():
    numbers = run("nested").numbers
    assert numbers["nested"] == pytest.approx({"dy/dx": 2.0, "dz/dx": 1.0806046, "d²y/dx²": 2.0}, abs=1e-6)
    assert numbers["flat"] == pytest.approx(numbers["nested"], abs=1e-6)


@pytest.mark.parametrize("training", ["one_loss_per_part", "joint_then_a_part"])
def test_two_losses(training):
    numbers = run("two_losses").numbers[training]
    assert numbers["apart"] < 1e-6
    assert numbers["loss"] < numbers["before"]


# ------------------------------------------------------------------ several tapes, and parts of a batch

SHORT = ["two_submodels", "chain_of_tapes", "gan", "accumulation"]


@pytest.mark.parametrize("name", SHORT)
def test_is_short(name):
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) < 50


def test_two_submodels_have_the_weights_of_one_stock_tape():
    numbers = run("two_submodels").numbers
    assert numbers["apart"] < 1e-6
    assert numbers["last"] < 0.5 * numbers["first"]


def test_two_submodels_are_clipped_as_a_whole(monkeypatch):
    """The bound must bite, or the test above says nothing about it."""
    example = load("two_submodels")
    bounded, _ = example.train(stock=True)
    monkeypatch.setattr(example, "BOUND", 100.0)
    free, _ = example.train(stock=True)
    assert max(float(np.abs(a - b).max()) for a, b in zip(bounded, free, strict=True)) > 1e-3


def test_chain_of_tapes_is_the_chain_rule():
    numbers = run("chain_of_tapes").numbers
    assert numbers["apart"] < 1e-12
    assert numbers["by hand"] < 1e-12
    assert numbers["wrong by"] > 1e-2
    assert numbers["possible"] is False


def test_gan_comes_to_make_what_the_data_are():
    example, numbers, _ = run("gan")
    assert numbers["mean"] == pytest.approx(example.MEAN, abs=0.3)
    assert numbers["std"] == pytest.approx(example.STD, abs=0.3)


def test_accumulation_has_the_weights_of_the_whole_batch():
    numbers = run("accumulation").numbers
    assert numbers["apart"] < 1e-5
    assert numbers["last"] < 0.5 * numbers["first"]


def test_compiled_step_has_the_weights_of_eager_code():
    example, numbers, _ = run("compiled_step")
    assert numbers["equal"] is True
    again = example.STEPS - sum(numbers["plays"]) - len(numbers["plays"])
    assert 0 < again <= 2 * len(numbers["plays"])  # recorded anew, to be compared: the 8th call and the 64th
    assert len(numbers["plays"]) == 2  # one for each side of the branch
    assert numbers["last"] < 0.7 * numbers["first"]


def test_compiled_step_is_one_of_a_stock_tape():
    """The same loop by hand: a stock tape, no accumulation in variables, the whole of four micro-batches at once."""
    example = run("compiled_step").module
    (step, model), (_, other) = example.make_step(), example.make_step()
    adam = example.keras.optimizers.Adam(0.03)
    for begin in range(0, 3 * example.EVERY, example.EVERY):
        with tf.GradientTape() as tape:
            parts = [(x, y) for x, y in zip(example.X[begin:][: example.EVERY], example.Y[begin:], strict=False)]
            losses = [tf.reduce_mean((other(x, training=True) - y) ** 2) for x, y in parts]
            loss = tf.add_n(losses) / example.EVERY
        adam.apply(tape.gradient(loss, other.trainable_variables), other.trainable_variables)
        played = [step(x, y) for x, y in parts]
        np.testing.assert_allclose(played, losses, rtol=1e-5)
    for got, want in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_find_the_nan():
    numbers, printed = run("find_the_nan").numbers, run("find_the_nan").printed
    broken = numbers["broken"]
    assert (broken.op, broken.backward, broken.cause.name) == ("Sqrt", True, "NORM_AT_ZERO")
    assert "tf.norm(net(left) - net(right), axis=-1)" in broken.code
    assert "+ 1e-12" in printed
    assert numbers["fixed"] is None
    assert 0.0 < numbers["norm"] < 10.0


def test_flight_recorder():
    ran = run("flight_recorder")
    assert ran.numbers["step"] == 87
    assert (ran.numbers["rows"], ran.numbers["cause"]) == ([3], "ZERO_OVER_ZERO")
    bad = ran.module.data(87)[0][87 * ran.module.SIZE : 88 * ran.module.SIZE]
    np.testing.assert_array_equal(rt.load(ran.numbers["tape"])["x"], bad)
    assert "RealDiv at " in ran.printed
    assert "return (images - mean) / tf.sqrt(variance)" in ran.printed


def test_find_the_nan_is_short():
    assert len((FOLDER / "find_the_nan.py").read_text().splitlines()) < 30


# ------------------------------------------------------------------ the tape explains itself


def test_why_none_names_the_op_and_the_line():
    example, found, printed = run("why_none")
    lines = (FOLDER / "why_none.py").read_text().splitlines()
    assert len(lines) < 30
    cut = found["accuracy"].cut
    assert (found["accuracy"].verdict.name, cut.op) == ("INTEGER", "ArgMax")
    assert "tf.argmax" in lines[cut.frame.line - 1]
    assert cut.frame.file == example.__file__
    assert f"why_none.py:{cut.frame.line}" in printed
    assert (found["loss"].verdict.name, found["loss"].cut.op) == ("ZERO", "Relu")


# ------------------------------------------------------------------ several processes


def test_two_workers():
    """Against one process with the whole batch, and finite differences."""
    ran = run("two_workers")
    assert "manifest.json shard-00000-of-00002-" in ran.printed
    assert ran.numbers["apart"] < 1e-6
    assert ran.numbers["slope"] == pytest.approx(ran.numbers["difference"], rel=1e-3)
    assert abs(ran.numbers["slope"]) > 1.0
