"""The tour: both programs of a step are really run, and what is called true is."""

from __future__ import annotations

import functools
import io
import math
import sys

import pytest
from rich.console import Console

from helpers.processes import PYTHON
from retrotape.cli._demo import STEPS, _ours, _seeded, _stock, run
from retrotape.cli._demo._show import Ran, format_value, hung, lines, ran, table

CRASHES = {
    "several_tapes": "Unknown variable",
    "chain_rule": "None",
    "through_a_step": "target",
    "several_losses": "None",
    "saved": "cannot pickle",
}


@pytest.fixture(scope="module")
def shown() -> str:
    console = Console(width=80, file=io.StringIO())
    run(console)
    return console.file.getvalue()


@functools.cache
def ran_once(ours) -> Ran:
    """Run our program of a step; another process that it starts finds TensorFlow imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", PYTHON)
        return _seeded(ours)


def drawn(*rows: object) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(table(*rows))
    return console.file.getvalue()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.ours.__name__)
def test_stock_does_what_is_told_of_it(step):
    stock = _seeded(step.stock)
    told_of_it = CRASHES.get(step.ours.__name__)
    if told_of_it is None:
        assert stock.crash is None
    else:
        assert told_of_it in str(stock.crash)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.ours.__name__)
def test_ours_gives_what_is_true(step):
    found = ran_once(step.ours)
    assert found.crash is None
    assert {name: format_value(found.rows[name]) for name in step.true} == step.true


def test_what_is_called_true_is():
    true = {name: value for step in STEPS for name, value in step.true.items()}
    assert float(true["dz/dy"]) == pytest.approx(math.cos(1.0), abs=1e-4)
    assert float(true["dz/dx"]) == pytest.approx(2 * math.cos(1.0), abs=1e-3)
    # After a step of rate r the loss is 5 (1 - 2 r)².
    assert float(true["w.r.t. the learning rate"]) == pytest.approx(-20 * (1 - 2 * 0.1))
    assert float(true["second derivative"]) == 40
    # The variance of n values has the Hessian 2 / n (I - 1 / n).
    assert [float(number) for number in true["row 0"].split()] == pytest.approx([4 / 9, -2 / 9, -2 / 9], abs=1e-4)


def test_the_step_of_both_models_is_that_of_one_stock_tape():
    tf, x = _ours.tf, _ours.x
    tf.keras.utils.set_random_seed(1)
    left, right = tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)
    with tf.GradientTape() as tape:
        loss = tf.nn.l2_loss(left(x)) + tf.nn.l2_loss(right(x))
    weights = left.trainable_variables + right.trainable_variables
    grads, _ = tf.clip_by_global_norm(tape.gradient(loss, weights), 1.0)
    tf.keras.optimizers.Adam(0.1).apply(grads, weights)
    rows = _seeded(_ours.several_tapes).rows
    assert float(rows["losses before"]) == pytest.approx(float(loss), rel=1e-6)
    after = tf.nn.l2_loss(left(x)) + tf.nn.l2_loss(right(x))
    assert float(rows["losses after"]) == pytest.approx(float(after), rel=1e-6)


def test_the_other_process_gives_the_sum_of_squares():
    assert float(ran_once(_ours.saved).rows["in another process"]) == float((_ours.x.numpy() ** 2).sum())


def test_prints_every_step_within_the_terminal(shown):
    for step in STEPS:
        assert step.title in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert shown.count("crashes") == len(CRASHES)
    for told_there in (
        "left tensorflow",
        "loss = tf.square(float(y))",
        "0 · inf",
        'stock: print("in another process", pickle.dumps((tape, loss)))\n       TypeError: cannot pickle',
    ):
        assert told_there in shown


def test_lines_fit_the_terminal():
    for step in STEPS:
        assert max(len(line) for line in lines(step.ours).splitlines()) <= 79


def test_crash_is_told_once_and_where_it_happened():
    stock = ran(lambda print: (print("a", 1), 1 / 0, print("b", 2)))
    assert stock.rows == {"a": 1}
    text = drawn(["a", "b", "c"], Ran({"a": 1, "b": 2, "c": 3}, None), stock, {"a": "1"})
    assert text.count("crashes") == 1
    assert [line.split("│")[2].strip() for line in text.splitlines() if "│" in line] == ["1", "crashes", "-"]


def test_long_lines_go_on_below_their_words():
    assert hung("  why   one two three", 15) == "  why   one two\n        three"


def test_stock_programs_have_no_tape_of_ours():
    for step in STEPS:
        assert "rt." not in lines(step.stock)
        assert "Tape(" in lines(step.stock)
    assert not hasattr(_stock, "rt")
