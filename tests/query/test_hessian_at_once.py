"""A Hessian of several sources in one go: the same blocks as one by one, in chunks, beside what is not finite."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.execute import _progress
from retrotape.query import _derivatives


class Net:
    """Two layers, 27 weights."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        shapes = [(3, 4), (4,), (4, 2), (2,)]
        self.weights = [tf.Variable(generator.normal(size=shape), dtype=tf.float64) for shape in shapes]
        self.x = tf.constant(generator.normal(size=(5, 3)))

    def loss(self) -> tf.Tensor:
        a, b, c, d = self.weights
        return tf.reduce_mean((tf.tanh(self.x @ a + b) @ c + d) ** 2)


def stock_hessian(net: Net) -> np.ndarray:
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = net.loss()
        slope = tf.concat([tf.reshape(grad, [-1]) for grad in inner.gradient(loss, net.weights)], 0)
    blocks = outer.jacobian(slope, net.weights)
    return tf.concat([tf.reshape(block, [len(slope), -1]) for block in blocks], 1).numpy()


@pytest.fixture(scope="module")
def net() -> Net:
    return Net()


@pytest.fixture(scope="module")
def expected(net) -> np.ndarray:
    return stock_hessian(net)


@pytest.fixture
def recorded(net):
    with rt.Tape() as tape:
        loss = net.loss()
    return tape, loss


def test_it_is_that_of_the_stock_tape(net, recorded, expected):
    tape, loss = recorded
    np.testing.assert_allclose(tape.hessian(loss, net.weights, whole=True), expected, atol=1e-12)
    blocks = tape.hessian(loss, net.weights)
    assert [block.shape for block in blocks[2]] == [[4, 2, 3, 4], [4, 2, 4], [4, 2, 4, 2], [4, 2, 2]]
    for row, block in enumerate(blocks):
        alone = tape.hessian(loss, [net.weights[row]])[0][0]
        np.testing.assert_allclose(block[row], alone, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 5, 9, 27, 100])
def test_chunks(net, recorded, expected, chunk):
    tape, loss = recorded
    np.testing.assert_allclose(tape.hessian(loss, net.weights, whole=True, chunk=chunk), expected, atol=1e-12)


def test_many_rows_are_cut_into_chunks_without_being_told(net, recorded, expected, monkeypatch):
    monkeypatch.setattr(_derivatives, "CHUNK", 10)
    tape, loss = recorded
    np.testing.assert_allclose(tape.hessian(loss, net.weights, whole=True), expected, atol=1e-12)


def test_sources_without_path_and_sources_twice(net, recorded, expected):
    tape, loss = recorded
    unused = tf.Variable([1.0, 2.0], dtype=tf.float64)
    a, b = net.weights[:2]
    blocks = tape.hessian(loss, [unused, a, b, a])
    assert not np.any(blocks[0][1])
    assert blocks[1][0].shape == [3, 4, 2]
    np.testing.assert_array_equal(blocks[1][1], blocks[3][3])
    np.testing.assert_allclose(tf.reshape(blocks[1][2], [12, 4]), expected[:12, 12:16], atol=1e-12)


def test_sources_of_several_dtypes():
    a, b = tf.Variable(tf.ones([9]) * 2.0), tf.Variable(tf.ones([9], tf.float64) * 3.0)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.cast(a, tf.float64) ** 2 * b)
    blocks = tape.hessian(loss, [a, b])
    assert [block.dtype for row in blocks for block in row] == [tf.float32, tf.float64, tf.float32, tf.float64]
    np.testing.assert_allclose(blocks[0][0], 6.0 * np.eye(9))
    np.testing.assert_allclose(blocks[0][1], 4.0 * np.eye(9))


def test_what_is_not_finite_stays_in_its_block():
    """The second derivative of a square root at zero is infinite; other blocks must not get zero times that."""
    a, b = tf.Variable(tf.zeros([10])), tf.Variable(tf.ones([10]))
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.sqrt(a)) + tf.reduce_sum(b**3)
    blocks = tape.hessian(loss, [a, b])
    assert not np.all(np.isfinite(blocks[0][0]))
    np.testing.assert_array_equal(blocks[1][1], 6.0 * np.eye(10))
    np.testing.assert_array_equal(blocks[1][0], np.zeros([10, 10]))


def test_custom_gradients_are_taken_row_by_row(net, expected):
    @tf.custom_gradient
    def squash(value):
        result = tf.tanh(value)
        return result, lambda upstream: upstream * (1.0 - result**2)

    a, b, c, d = net.weights
    with rt.Tape() as tape:
        loss = tf.reduce_mean((squash(net.x @ a + b) @ c + d) ** 2)
    np.testing.assert_allclose(tape.hessian(loss, net.weights, whole=True), expected, atol=1e-12)


def test_an_outer_tape_hears_it_and_so_does_the_same_tape():
    a, b = tf.Variable(tf.ones([9]) * 2.0), tf.Variable(tf.ones([9]) * 3.0)
    for outer in (rt.Tape(), tf.GradientTape()):
        with outer:
            with rt.Tape() as tape:
                loss = tf.reduce_sum(a**3 * b)
            total = tf.reduce_sum(tape.hessian(loss, [a, b], whole=True))
        expected = 6.0 * b + 6.0 * a * 2.0  # of 6ab + 2 * 3a² by a
        np.testing.assert_allclose(outer.gradient(total, a), expected, rtol=1e-5)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(a**3 * b)
    again = tape.hessian(loss, [a, b], whole=True)
    np.testing.assert_allclose(tape.gradient(again, a), expected, rtol=1e-5)


def test_inside_a_function(net, expected):
    @tf.function
    def run():
        with rt.Tape() as tape:
            loss = net.loss()
        return tape.hessian(loss, net.weights, whole=True)

    np.testing.assert_allclose(run(), expected, atol=1e-12)


def test_tensorflow_gives_no_advice_about_tracing(net, caplog):
    with rt.Tape() as tape:
        hidden = net.x @ net.weights[0]
        loss = tf.reduce_sum(tf.tanh(hidden))
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        for _ in range(7):
            tape.hessian(loss, [net.weights[0], net.x])
            tape.jacobian(hidden, net.x)
    assert "retracing" not in caplog.text


# ------------------------------------------------------------------ the progress bar


class Terminal:
    """Notes what is written to it."""

    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal, self.text = is_terminal, ""

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("after", "is_terminal", "shown"), [(-1.0, True, True), (-1.0, False, False), (60.0, True, False)]
)
def test_a_bar_is_shown_if_it_takes_long_and_somebody_looks(
    net, recorded, expected, monkeypatch, after, is_terminal, shown
):
    tape, loss = recorded
    stderr = Terminal(is_terminal)
    monkeypatch.setattr(_progress, "AFTER", after)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    found = tape.hessian(loss, net.weights, whole=True, chunk=5)
    assert ("rows" in stderr.text) is shown
    assert bool(stderr.text) is shown
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_jacobian_in_chunks_has_a_bar_too(monkeypatch):
    x = tf.range(30.0)
    with rt.Tape() as tape:
        y = x**2
    stderr = Terminal(True)
    monkeypatch.setattr(_progress, "AFTER", -1.0)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    found = tape.jacobian(y, x, chunk=7)
    assert "rows" in stderr.text
    np.testing.assert_allclose(found, np.diag(2.0 * x))
    assert list(_progress.tracked([], "nothing")) == []
