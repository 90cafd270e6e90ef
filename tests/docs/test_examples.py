"""Every example runs, and its numbers are those that it claims."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


class Ran(NamedTuple):
    """An example after its `main` returned."""

    module: ModuleType
    numbers: dict[str, Any]
    printed: str


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache  # several tests look at one run
def run(name: str) -> Ran:
    module, printed = load(name), io.StringIO()
    with contextlib.redirect_stdout(printed):
        numbers = module.main()
    return Ran(module, numbers, printed.getvalue())


# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", NAMES)
def test_runs_and_has_something_to_show(name):
    ran = run(name)
    assert ran.numbers
    assert 1 <= len(ran.printed.splitlines()) <= 12
    assert not re.search(r"\bnan\b", ran.printed)


@pytest.mark.parametrize("name", NAMES)
def test_says_in_one_to_three_sentences_what_is_learned(name):
    sentences = re.findall(r"[.?](?:\s|$)", run(name).module.__doc__)
    assert 1 <= len(sentences) <= 3


def test_readme_lists_each_once():
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == NAMES


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


# ------------------------------------------------------------------ higher orders, and through updates


def test_second_order():
    numbers = run("second_order").numbers
    assert [numbers[name] for name in ("first", "second", "third", "hvp")] == [12.0, 12.0, 6.0, 12.0]
    np.testing.assert_allclose(numbers["hessian"], [[802.0, -400.0], [-400.0, 200.0]], rtol=1e-12)
    np.testing.assert_allclose(numbers["along"], [2.0, 0.0], atol=1e-9)


def test_through_a_step():
    numbers = run("through_a_step").numbers
    assert numbers["one step"] == pytest.approx(-16.0, abs=1e-5)
    for name in ("SGD", "momentum", "Adam", "RMSprop"):
        exact, by_difference = numbers[name]
        assert exact == pytest.approx(by_difference, rel=2e-3), name
    assert numbers["by the first x"] == 4.0
    assert numbers["step by step"] == [0.0, 2.0, 4.0]
    assert numbers["after reset"] == 5.0


def test_pinn_solves_its_equation():
    numbers = run("pinn").numbers
    assert numbers["last"] < 0.01 * numbers["first"]
    assert numbers["error"] < 0.02


# ------------------------------------------------------------------ learning to learn


def test_maml_learns():
    numbers = run("maml").numbers
    assert numbers["last"] < 0.5 * numbers["first"]


def test_maml_is_short():
    assert len((FOLDER / "maml.py").read_text().splitlines()) < 60


def net(params: list[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """The model of `maml.py` as a pure function of its weights."""
    *hidden, kernel, bias = params
    for inner_kernel, inner_bias in zip(hidden[::2], hidden[1::2], strict=True):
        x = tf.tanh(x @ inner_kernel + inner_bias)
    return x @ kernel + bias


def adapted(params: list[tf.Tensor], x: tf.Tensor, y: tf.Tensor, steps: int, rate: float) -> list[tf.Tensor]:
    for _ in range(steps):
        with tf.GradientTape() as tape:
            tape.watch(params)
            loss = tf.reduce_mean((net(params, x) - y) ** 2)
        grads = tape.gradient(loss, params)
        params = [param - rate * grad for param, grad in zip(params, grads, strict=True)]
    return params


def by_hand(params: list[tf.Tensor], x: tf.Tensor, y: tf.Tensor, steps: int, rate: float) -> tuple[Any, list]:
    """Return the meta-gradient as it has to be written without a tape that sees updates."""
    with tf.GradientTape() as outer:
        outer.watch(params)
        after = adapted(params, x[0], y[0], steps, rate)
        query_loss = tf.reduce_mean((net(after, x[1]) - y[1]) ** 2)
    return query_loss, outer.gradient(query_loss, params)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
def test_maml_has_the_meta_gradient_of_a_functional_version(compiled):
    maml = run("maml").module
    model, rate = maml.make_model(seed=7), 0.05
    inner = maml.keras.optimizers.SGD(rate)
    inner.build(model.trainable_variables)
    start = [tf.constant(value) for value in model.get_weights()]
    x, y = maml.sine_wave(np.random.default_rng(7))
    ask = tf.function(maml.meta_gradient) if compiled else maml.meta_gradient
    loss, grads = ask(model, inner, x, y)
    expected_loss, expected = by_hand(start, x, y, maml.INNER_STEPS, rate)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
    for got, want in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for now, before in zip(model.get_weights(), start, strict=True):
        np.testing.assert_array_equal(now, before)


def test_maml_meta_gradient_is_not_the_first_order_one():
    """The test above must be able to fail: without second derivatives the answer is another one."""
    maml = run("maml").module
    start = [tf.constant(value) for value in maml.make_model(seed=7).get_weights()]
    x, y = maml.sine_wave(np.random.default_rng(7))
    _, second_order = by_hand(start, x, y, maml.INNER_STEPS, 0.05)
    after = adapted(start, x[0], y[0], maml.INNER_STEPS, 0.05)
    _, first_order = by_hand(after, x, y, 0, 0.05)
    gaps = [float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(first_order, second_order, strict=True)]
    assert max(gaps) > 1e-2


def test_learned_rate_finds_a_better_one():
    numbers = run("learned_rate").numbers
    assert numbers["losses"][-1] < 0.5 * numbers["losses"][0]
    assert numbers["rates"][-1] > numbers["rates"][0]


def test_learned_rate_has_the_derivative_of_a_finite_difference():
    example, rate, gap = run("learned_rate").module, 0.004, 4e-5
    _, by_rate = example.run(rate)
    difference = (example.run(rate + gap)[0] - example.run(rate - gap)[0]) / (2.0 * gap)
    assert by_rate == pytest.approx(difference, rel=1e-2)  # single precision


# ------------------------------------------------------------------ which data do harm


def test_data_weights_tell_wrong_labels_from_right_ones():
    example, numbers, _ = run("data_weights")
    assert set(numbers["order"][: len(example.WRONG)]) == set(example.WRONG)
    assert (numbers["harm"][example.WRONG] > 0.0).all()


@pytest.mark.parametrize("example", [8, 27, 0])
def test_data_weights_have_the_derivative_of_a_finite_difference(example):
    module, numbers, _ = run("data_weights")
    gap = 1e-3 * tf.one_hot(example, module.EXAMPLES, dtype=tf.float64)
    ones = tf.ones_like(gap)
    more, less = (float(module.train(ones + sign * gap)[1]) for sign in (1.0, -1.0))
    assert numbers["harm"][example] == pytest.approx((more - less) / 2e-3, rel=1e-4)


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


def test_find_the_nan():
    numbers, printed = run("find_the_nan").numbers, run("find_the_nan").printed
    broken = numbers["broken"]
    assert (broken.op, broken.backward, broken.cause.name) == ("Sqrt", True, "NORM_AT_ZERO")
    assert "tf.norm(net(left) - net(right), axis=-1)" in broken.code
    assert "+ 1e-12" in printed
    assert numbers["fixed"] is None
    assert 0.0 < numbers["norm"] < 10.0


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
