"""Tapes in segments: the walk part by part, by functions that recompute, and what is released meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import set_segment
from retrotape.lower import _parts, _queries

SIZE = 64  # elements of what a layer makes
SEGMENT = 4 * 4 * SIZE  # bytes: four layers
LAYERS = 40


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    set_segment(monkeypatch, SEGMENT)


def plain(h: tf.Tensor, w: tf.Variable, _: int) -> tf.Tensor:
    return tf.tanh(tf.matmul(h, w))


def residual(h: tf.Tensor, w: tf.Variable, _: int) -> tf.Tensor:
    return h + tf.sin(tf.matmul(h, w))


def powers(h: tf.Tensor, w: tf.Variable, _: int) -> tf.Tensor:
    return tf.tanh(tf.matmul(h, w)) ** 2.0 + 0.1 * h


def dropout(h: tf.Tensor, w: tf.Variable, _: int) -> tf.Tensor:
    return tf.nn.dropout(tf.tanh(tf.matmul(h, w)), 0.3)


def silu(h: tf.Tensor, w: tf.Variable, _: int) -> tf.Tensor:
    return tf.nn.silu(tf.matmul(h, w))


@tf.custom_gradient
def doubled(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    y = tf.sin(x)
    return y, lambda upstream: 2.0 * upstream * tf.cos(x) * y


def custom(h: tf.Tensor, w: tf.Variable, _: int) -> tf.Tensor:
    return doubled(tf.matmul(h, w)) + 0.5 * h


@tf.function
def called(h: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
    return tf.tanh(tf.matmul(h, w))


def calls(h: tf.Tensor, w: tf.Variable, number: int) -> tf.Tensor:
    return called(h, w.value()) if number % 10 == 0 else tf.tanh(tf.matmul(h, w))


def reads(h: tf.Tensor, w: tf.Variable, _: int) -> tf.Tensor:
    h = tf.tanh(tf.matmul(h, w))
    return h if float(h[0, 0]) < 2.0 else -h


def gathers(h: tf.Tensor, w: tf.Variable, number: int) -> tf.Tensor:
    return tf.tanh(tf.matmul(h, w) + tf.gather(w, [number % 8])[0])


def silu_and_more(h: tf.Tensor, w: tf.Variable, _: int) -> tf.Tensor:
    h = tf.matmul(h, w)
    return tf.nn.silu(h) + 0.1 * tf.sin(h)  # a backward function and a rule read the same value


KINDS = [silu_and_more, plain, residual, powers, dropout, silu, custom, calls, reads, gathers]


def weights() -> list[tf.Variable]:
    rng = np.random.default_rng(1)
    return [tf.Variable(rng.standard_normal((8, 8)).astype("float32") / 2.0) for _ in range(LAYERS)]


def run(tape: Any, layer: Callable, variables: list[tf.Variable], step: int) -> tuple[Any, tf.Tensor]:
    tf.random.set_seed(5)  # part of what is recorded
    with tape:
        h = tf.constant(np.random.default_rng(step).standard_normal((SIZE // 8, 8)), tf.float32)
        for number, w in enumerate(variables):
            h = layer(h, w, number)
        loss = tf.reduce_mean(tf.square(h))
    return tape, loss


def bits(grads: Any) -> list[bytes | None]:
    return [None if grad is None else tf.convert_to_tensor(grad).numpy().tobytes() for grad in grads]


@pytest.mark.parametrize("layer", KINDS)
def test_the_gradients_are_those_of_the_stock_tape(layer: Callable):
    variables = weights()
    for step in range(4):
        stock, loss = run(tf.GradientTape(), layer, variables, step)
        wanted = bits(stock.gradient(loss, variables))
        tape, loss = run(rt.Tape(keep="segments"), layer, variables, step)
        assert bits(tape.gradient(loss, variables)) == wanted
        assert bits(tape.gradient(loss, variables)) == wanted  # after values were released
        with rt.config(compile=False):
            assert bits(tape.gradient(loss, variables)) == wanted


@pytest.mark.parametrize("layer", [plain, residual, dropout, silu, custom, reads])
def test_a_warm_loop_is_compiled(layer: Callable):
    variables = weights()
    for step in range(3):
        tape, loss = run(rt.Tape(keep="segments"), layer, variables, step)
        tape.gradient(loss, variables)
    assert tape.why_not_compiled() is None


def test_functions_take_only_what_is_kept(monkeypatch: pytest.MonkeyPatch):
    variables, missing = weights(), []
    compile_part = _queries._compile

    def checked(query: Any, trace: Any, *args: Any, **options: Any) -> Any:
        kept = set(trace.values)
        found = compile_part(query, trace, *args, **options)
        missing.extend(var for var in query.variants[-1].feeds if var not in kept)
        return found

    monkeypatch.setattr(_queries, "_compile", checked)
    for step in range(3):
        tape, loss = run(rt.Tape(keep="segments"), plain, variables, step)
        tape.gradient(loss, variables)
    assert tape.why_not_compiled() is None
    assert missing == []


def test_assigned_variables():
    variables = weights()
    for step in range(4):
        grads = []
        for make in (lambda: rt.Tape(keep="segments"), rt.Tape, tf.GradientTape):
            with rt.config(compile=make is not rt.Tape), make() as tape:
                h = tf.ones((SIZE // 8, 8)) * 0.1 * (step + 1.0)
                for number, w in enumerate(variables):
                    h = tf.tanh(tf.matmul(h, variables[0] if number % 7 == 3 else w))
                    if number == 20:
                        variables[0].assign(variables[0] * 0.9)
                loss = tf.reduce_sum(h)
            variables[0].assign(weights()[0])
            grads.append(tape.gradient(loss, variables))
        assert bits(grads[0]) == bits(grads[1])
        for one, other in zip(grads[0], grads[2], strict=True):
            assert (one is None) is (other is None)
            if one is not None:
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


def test_second_derivatives_after_the_first():
    variables = weights()[:20]
    products = []
    for keep in ("needed", "segments"):
        for step in range(3):
            tape, loss = run(rt.Tape(keep=keep), residual, variables, step)
            first = tape.gradient(loss, variables)
            products.append(bits([*tape.hvp(loss, variables, first), *first]))
    assert products[:3] == products[3:]


def test_a_target_in_the_middle_and_seeds():
    variables = weights()
    for _ in range(3):
        results = []
        for make in (lambda: tf.GradientTape(persistent=True), lambda: rt.Tape(keep="segments")):
            with make() as tape:
                hs = [tf.ones((SIZE // 8, 8)) * 0.2]
                tape.watch(hs[0])
                for number, w in enumerate(variables):
                    hs.append(plain(hs[-1], w, number))
            seed = tf.cast(tf.reshape(tf.range(SIZE), (SIZE // 8, 8)), tf.float32)
            middle = tape.gradient(hs[25], [hs[10], *variables], output_gradients=seed)
            results.append(bits([*middle, *tape.gradient([hs[-1], hs[30]], [hs[0], hs[20], variables[5]])]))
        assert results[0] == results[1]


# ------------------------------------------------------------------ what is released


def test_a_gradient_releases_what_can_be_recomputed():
    variables = weights()
    tape, loss = run(rt.Tape(keep="segments"), plain, variables, 0)
    held = tape.memory().bytes
    first = bits(tape.gradient(loss, variables))
    assert tape.memory().bytes < 0.3 * held
    assert bits(tape.gradient(loss, variables)) == first
    assert tape.memory().bytes > 0.3 * held  # asked again: kept from now on


def test_where_tapes_are_queried_again_nothing_is_released():
    variables = weights()
    for step in range(3):
        with rt.Tape(keep="segments") as tape:
            h = tf.ones((SIZE // 8, 8)) * 0.1
            for number, w in enumerate(variables):
                h = plain(h, w, number)
            losses = [tf.reduce_sum(h), tf.reduce_mean(h)]
        held = tape.memory().bytes
        tape.gradient(losses[0], variables)
        assert (tape.memory().bytes < held) is (step == 0)
        tape.gradient(losses[1], variables)


@pytest.mark.parametrize("keep", ["needed", "all", "leaves", "disk"])
def test_other_tapes_release_nothing(keep: Any):
    variables = weights()
    tape, loss = run(rt.Tape(keep=keep), plain, variables, 0)
    held = tape.memory().bytes
    tape.gradient(loss, variables)
    assert tape.memory().bytes == held


def test_an_open_tape_goes_on_after_values_were_released():
    variables = weights()
    with rt.Tape(keep="segments") as tape:
        h = middle = tf.ones((SIZE // 8, 8)) * 0.1
        for number, w in enumerate(variables):
            h = plain(h, w, number)
            middle = h if number == 17 else middle
        with tape.stop_recording():
            first = tape.gradient(h, variables)
        for number, w in enumerate(variables):
            h = plain(h + middle, w, number)
    with tf.GradientTape(persistent=True) as stock:
        g = middle = tf.ones((SIZE // 8, 8)) * 0.1
        for number, w in enumerate(variables):
            g = plain(g, w, number)
            middle = g if number == 17 else middle
        half = g
        for number, w in enumerate(variables):
            g = plain(g + middle, w, number)
    assert bits(first) == bits(stock.gradient(half, variables))
    assert bits(tape.gradient(h, variables)) == bits(stock.gradient(g, variables))


def test_what_is_side_by_side_is_not_divided(monkeypatch: pytest.MonkeyPatch):
    found = []
    divide = _parts.parts_of
    monkeypatch.setattr(_parts, "parts_of", lambda *args: (found.append(divide(*args)), found[-1])[1])
    x, grads = tf.fill([SIZE], 0.5), []
    for make in (tf.GradientTape, lambda: rt.Tape(keep="segments")):
        with make() as tape:
            tape.watch(x)
            ends = []
            for _ in range(6):
                end = x
                for _ in range(LAYERS):
                    end = tf.sin(end)
                ends.append(end)
            loss = tf.add_n(ends)
        grads.append(bits([tape.gradient(loss, x)]))
    assert grads[0] == grads[1]
    assert found == [None]
