"""`rt.farm.backward` in one process: the numbers, by other routes, and what None means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from distribute.conftest import CHUNK
from distribute.dying import loaded
from distribute.making import assert_same_bits, dense, plain_sum, record
from retrotape.errors import FarmError, ShapeMismatchError, UnknownSourceError


def save(path: Path, make, **names) -> str:
    """Record a function of no arguments that returns what to name, and save it."""
    with rt.Tape() as tape:
        found = make()
    tape.save(path, {**found, **names})
    return str(path)


def test_the_sum_is_that_of_a_plain_loop_to_the_bit(tapes, expected):
    total = rt.farm.backward(tapes, "loss", chunk=CHUNK)
    assert total.keys() == ["w", "b", "table"]
    assert (total.count, total.failed) == (18, {})
    assert_same_bits(total, expected)


def test_the_chunk_changes_the_order_of_additions_only(tapes, expected):
    for chunk in (1, 5, 100):
        total = rt.farm.backward(tapes, "loss", chunk=chunk)
        assert_same_bits(total, plain_sum(tapes, chunk))
        np.testing.assert_allclose(dense(total["w"]), expected["w"], rtol=1e-12)


def test_the_sum_is_the_gradient_of_the_sum_on_a_stock_tape(tapes):
    w = tf.Variable(tf.cast([[0.5, -0.25], [0.125, 1.5], [0.75, 0.1]], tf.float64))
    with tf.GradientTape() as stock:
        losses = []
        for step in range(len(tapes)):
            _, names = record(step)
            table = tf.reshape(tf.range(10.0), [5, 2]) / 7.0
            bias = tf.constant([0.3, -0.7])
            hidden = tf.tanh(tf.cast(names["x"], tf.float64) @ w + tf.cast(bias, tf.float64))
            hidden += tf.cast(tf.gather(table, [step % 5, 1, 1, 3]), tf.float64)
            losses.append(tf.reduce_sum(hidden**2) / 3.0)
        loss = tf.add_n(losses)
    np.testing.assert_allclose(rt.farm.backward(tapes, "loss")["w"], stock.gradient(loss, w), rtol=1e-5)


def test_an_analytic_sum(tmp_path):
    w = tf.Variable(2.0, name="w")
    for step in range(10):
        save(tmp_path / f"{step}.tape", lambda step=step: {"loss": w**3 * float(step)})
    total = rt.farm.backward(str(tmp_path / "*.tape"), "loss", "w")
    assert float(total["w"]) == 3 * 2.0**2 * 45
    assert total["w"].dtype == tf.float64


def test_the_mean_counts_every_tape(tapes, expected):
    mean = rt.farm.backward(tapes, "loss", reduce="mean", chunk=CHUNK)
    for name in ("w", "b", "table"):
        np.testing.assert_array_equal(dense(mean[name]), expected[name] / 18)


def test_each_is_what_the_tapes_say(tapes):
    each = rt.farm.backward(tapes, "loss", ["x", "w", "table"], reduce="each", chunk=CHUNK)
    assert len(each) == 18
    assert each.names == tapes
    for grads, path in zip(each, tapes, strict=True):
        tape = rt.load(path)
        assert grads.keys() == ["x", "w", "table"]
        for name in ("x", "w", "table"):
            wanted = tape.gradient("loss", name)
            np.testing.assert_array_equal(dense(grads[name]), dense(wanted))
            assert grads[name].dtype == wanted.dtype
    assert isinstance(each[3]["table"], tf.IndexedSlices)
    assert [float(grads.norm()) for grads in each[2:4]] == [float(each[2].norm()), float(each[3].norm())]
    np.testing.assert_array_equal(each[-1]["w"], each[17]["w"])
    with pytest.raises(IndexError):
        each[18]


def test_a_tape_counts_as_often_as_it_is_given(tapes):
    once = rt.farm.backward([tapes[0]], "loss", "w")
    thrice = rt.farm.backward([tapes[0]] * 3, "loss", "w", chunk=1, duplicates="allow")
    assert thrice.count == 3
    np.testing.assert_array_equal(thrice["w"], 3 * once["w"])


def test_equal_chunks_are_computed_once_and_counted_twice(tapes, monkeypatch):
    paths = loaded(monkeypatch)
    total = rt.farm.backward([*tapes[:4], *tapes[:4]], "loss", "w", chunk=4, duplicates="allow")
    assert len(paths) == 4
    assert total.count == 8
    np.testing.assert_array_equal(total["w"], 2 * rt.farm.backward(tapes[:4], "loss", "w", chunk=4)["w"])


# ------------------------------------------------------------------ names, None and zero


def test_no_path_is_zero_where_another_tape_has_one_and_none_where_no_tape_has(tmp_path):
    a, b, c = (tf.Variable(value, name=name) for value, name in ((2.0, "a"), (3.0, "b"), (4.0, "c")))
    first = save(tmp_path / "1.tape", lambda: {"loss": a * 5.0, "other": b * 2.0 + c})
    second = save(tmp_path / "2.tape", lambda: {"loss": b * 7.0 + 0.0 * a, "other": c * 1.0})
    total = rt.farm.backward([first, second], "loss", ["a", "b", "c"])
    assert (float(total["a"]), float(total["b"])) == (5.0, 7.0)
    assert total.get("c") is None
    assert total.missing == ("c",)
    assert total.why("c")
    assert "missing" in repr(total)
    mean = rt.farm.backward([first, second], "loss", ["a", "b", "c"], reduce="mean")
    assert (float(mean["a"]), float(mean["b"]), mean.get("c")) == (2.5, 3.5, None)
    each = rt.farm.backward([first, second], "loss", ["a", "b"], reduce="each")
    assert each[0].get("b") is None
    assert each[0].why("b") == rt.load(first).backward("loss", "b").why("b")
    assert float(each[1].get("a")) == 0.0


def test_without_sources_every_trainable_variable_of_each_tape(tmp_path):
    a, b = tf.Variable(2.0, name="a"), tf.Variable(3.0, name="b")
    frozen = tf.Variable(1.0, name="frozen", trainable=False)
    save(tmp_path / "1.tape", lambda: {"loss": a * 5.0 * frozen})
    save(tmp_path / "2.tape", lambda: {"loss": a * b})
    total = rt.farm.backward(str(tmp_path / "*.tape"), "loss")
    assert {str(name): float(value) for name, value in total.items()} == {"a": 8.0, "b": 2.0}


def test_variables_of_the_same_name_are_kept_apart(tmp_path):
    a, b = tf.Variable(2.0, name="w"), tf.Variable(3.0, name="w")
    path = save(tmp_path / "1.tape", lambda: {"loss": a * a * b})
    [grads] = rt.farm.backward(path, "loss", reduce="each")
    assert sorted(map(float, grads.values())) == [4.0, 12.0]
    assert float(grads["w"]) == float(rt.load(path).gradient("loss", "w"))


def test_two_names_of_one_variable(tmp_path):
    v = tf.Variable(3.0, name="v")
    path = save(tmp_path / "1.tape", lambda: {"loss": v * v}, weight=v)
    total = rt.farm.backward(path, "loss", {"first": "v", "second": ["weight"]})
    assert {str(name): float(value) for name, value in total.items()} == {"v": 6.0, "weight": 6.0}


def test_the_end_of_a_name_means_what_it_means_on_each_tape(tmp_path):
    for number in range(2):
        kernel = tf.Variable(float(number + 2), name=f"dense_{number}/kernel")
        save(tmp_path / f"{number}.tape", lambda kernel=kernel: {"loss": kernel**2})
    total = rt.farm.backward(str(tmp_path / "*.tape"), "loss", "kernel")
    assert float(total["kernel"]) == 10.0
    apart = rt.farm.backward(str(tmp_path / "*.tape"), "loss")
    assert float(apart["dense_0/kernel"]) == 4.0
    with pytest.raises(UnknownSourceError):
        apart["nothing"]


def test_through_updates(tmp_path):
    v = tf.Variable(0.5, name="v")
    with rt.Tape() as tape:
        rate = tf.constant(0.25)
        v.assign_sub(rate * v)
        loss = v**2
    tape.save(tmp_path / "1.tape", loss=loss, rate=rate)
    path = tmp_path / "1.tape"
    assert rt.farm.backward(path, "loss", "rate").get("rate") is None
    through = rt.farm.backward(path, "loss", "rate", through_updates=True)
    assert float(through["rate"]) == pytest.approx(2 * 0.5 * 0.75 * -0.5)


# ------------------------------------------------------------------ kinds of gradients


def test_complex_gradients_are_summed_in_double_precision(tmp_path):
    z = tf.Variable(tf.constant([1.0 + 2.0j, 3.0 - 1.0j], tf.complex64), name="z")
    paths = [
        save(tmp_path / f"{n}.tape", lambda n=n: {"loss": tf.reduce_sum(tf.abs(z) ** 2) * float(n)}) for n in (1, 2)
    ]
    total = rt.farm.backward(paths, "loss", "z")
    assert total["z"].dtype == tf.complex128
    wanted = sum(rt.load(path).gradient("loss", "z").numpy().astype(complex) for path in paths)
    np.testing.assert_array_equal(total["z"], wanted)
    np.testing.assert_allclose(total["z"], 6.0 * z.numpy(), rtol=1e-6)


def test_half_precision_does_not_lose_digits(tmp_path):
    w = tf.Variable(tf.constant(1.0, tf.bfloat16), name="w")
    paths = [save(tmp_path / f"{n}.tape", lambda n=n: {"loss": w * tf.cast(n, tf.bfloat16)}) for n in (256.0, 1.0)]
    assert float(rt.farm.backward(paths, "loss", "w")["w"]) == 257.0  # bfloat16 has no such number
    assert rt.farm.backward(paths, "loss", "w", reduce="each")[0]["w"].dtype == tf.bfloat16


def test_sparse_and_dense_gradients_of_one_name(tmp_path):
    table = tf.Variable(tf.ones([5, 2]), name="table")
    sparse = [
        save(tmp_path / f"s{n}.tape", lambda n=n: {"loss": tf.reduce_sum(tf.gather(table, [n, n, 3]))}) for n in (0, 4)
    ]
    total = rt.farm.backward(sparse, "loss", "table", chunk=1)
    assert isinstance(total["table"], tf.IndexedSlices)
    assert total["table"].indices.numpy().tolist() == [0, 3, 4]
    np.testing.assert_array_equal(dense(total["table"])[:, 0], [2, 0, 0, 2, 2])
    full = save(tmp_path / "full.tape", lambda: {"loss": tf.reduce_sum(table * 10.0)})
    for paths in ([*sparse, full], [full, *sparse]):
        both = rt.farm.backward(paths, "loss", "table", chunk=1)
        np.testing.assert_array_equal(both["table"].numpy()[:, 0], [12, 10, 10, 12, 12])


def test_nan_and_infinity_pass_through(tmp_path):
    x = tf.Variable([0.0, 4.0], name="x")
    path = save(tmp_path / "1.tape", lambda: {"loss": tf.reduce_sum(tf.sqrt(x))})
    nan = save(tmp_path / "2.tape", lambda: {"loss": tf.reduce_sum(x * float("nan"))})
    np.testing.assert_array_equal(rt.farm.backward([path], "loss", "x")["x"], [np.inf, 0.25])
    assert np.isnan(rt.farm.backward([path, nan], "loss", "x")["x"]).all()


@pytest.mark.parametrize("chunk", [1, 2])
def test_different_shapes_under_one_name_name_both_tapes(tmp_path, chunk):
    paths = []
    for size in (2, 3):
        w = tf.Variable(tf.ones(size), name="w")
        paths.append(save(tmp_path / f"{size}.tape", lambda w=w: {"loss": tf.reduce_sum(w)}))
    with pytest.raises(ShapeMismatchError) as raised:
        rt.farm.backward(paths, "loss", "w", chunk=chunk)
    assert str(raised.value) == (
        f"'w' has shape (2,) on {paths[0]!r} and (3,) on {paths[1]!r}, and cannot be summed. "
        'Leave one of them out, or keep them apart: `reduce="each"`.'
    )
    found = rt.farm.backward(paths, "loss", "w", chunk=chunk, on_error="continue")
    assert found.failed == {paths[1]: f"ShapeMismatchError: {raised.value}"}
    assert [grads["w"].shape for grads in rt.farm.backward(paths, "loss", "w", reduce="each")] == [[2], [3]]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 16])
def test_tapes_of_other_shapes_are_left_out_whatever_the_chunks(tmp_path, chunk):
    """The first tape of a name decides, as in a plain loop over the tapes."""
    rng = np.random.default_rng(2)
    paths, expected, known, left_out = [], {}, {}, []
    for number in range(11):
        names = ["a", "b"] if rng.random() < 0.7 else ["b"]
        shapes = {name: (2, 3)[int(number > 0 and rng.random() < 0.3)] for name in names}
        own = [tf.Variable(tf.ones(shapes[name]), name=name) for name in names]
        path = save(
            tmp_path / f"{number:02}.tape", lambda own=own, k=number: {"loss": sum(map(tf.reduce_sum, own)) * k}
        )
        paths.append(path)
        if any(known.get(name, shapes[name]) != shapes[name] for name in names):
            left_out.append(path)
            continue
        known.update(shapes)
        for name in names:
            expected[name] = expected.get(name, 0.0) + np.full(shapes[name], float(number))
    found = rt.farm.backward(paths, "loss", chunk=chunk, on_error="continue")
    assert left_out
    assert list(found.failed) == left_out
    assert found.count == len(paths) - len(left_out)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


# ------------------------------------------------------------------ what the result can do


def test_a_total_is_a_vector(tapes, expected):
    total = rt.farm.backward(tapes, "loss", chunk=CHUNK)
    half = total / 2.0
    assert type(half) is rt.farm.NamedGradients
    np.testing.assert_array_equal(dense(half["w"]), expected["w"] / 2)
    assert (total + total) == 2.0 * total
    assert float((total - total).norm()) == 0.0
    assert repr(total).splitlines()[0].split() == ["variable", "shape", "norm", "share"]


def test_a_total_is_applied_to_the_variables_of_a_model(tapes, expected):
    total = rt.farm.backward(tapes, "loss", ["w", "b"], chunk=CHUNK)
    w, b = tf.Variable(tf.zeros([3, 2]), name="w"), tf.Variable(tf.zeros([2]), name="b")
    total.for_variables([w, b]).apply(tf.keras.optimizers.SGD(1.0))
    np.testing.assert_allclose(w.numpy(), -expected["w"], rtol=1e-6)
    assert total.for_variables([b])[b].dtype == tf.float32
    each = rt.farm.backward(tapes, "loss", ["w", "b"], reduce="each")
    both = (each[0] + each[1]).clip(global_norm=1.0).for_variables([w, b])
    assert float(both.norm()) == pytest.approx(1.0)
    with pytest.raises(
        TypeError, match=r"'w' is a name on a tape; .* `grads.for_variables\(model.trainable_variables\)"
    ):
        total.apply(tf.keras.optimizers.SGD(1.0))
    with pytest.raises(UnknownSourceError):
        total.for_variables([tf.Variable(1.0, name="unknown")])


def test_isolated_tapes_give_the_same(tapes):
    here = rt.farm.backward(tapes[:2], "loss")
    assert rt.farm.backward(tapes[:2], "loss", load={"isolate": True}) == here


def test_options_of_load_are_handed_on(tapes):
    with pytest.raises(FarmError, match=r"UnsafeTapeError: Refused to read the tape .* limit"):
        rt.farm.backward(tapes[:1], "loss", load={"limits": rt.store.Limits(total_bytes=10)})


def save_two(path: Path, swapped: bool, **named: str) -> str:
    """Record two variables with the same name, in one order or the other."""
    a, b = tf.Variable([1.0, 1.0]), tf.Variable([2.0, 2.0])
    with rt.Tape() as tape:
        parts = [lambda: tf.reduce_sum(a * 5.0), lambda: tf.reduce_sum(b * 3.0)]
        loss = tf.add_n([part() for part in (reversed(parts) if swapped else parts)])
    tape.save(path, {"loss": loss, **({"a": a, "b": b} if named else {})})
    return str(path)


@pytest.mark.parametrize("wrt", [None, "Variable", "Variable'", ["loss", "Variable'"]])
def test_variables_that_share_a_name_are_not_summed(tmp_path, wrt):
    paths = [save_two(tmp_path / f"{swapped}.tape", swapped) for swapped in (False, True)]
    with pytest.raises(FarmError) as raised:
        rt.farm.backward(paths, "loss", wrt)
    assert (
        "SharedNameError: Several variables on this tape are called 'Variable', and a sum over tapes could not tell "
        'them apart. Give variables names before you record, `tf.Variable(..., name="scale")`, or name them in the '
        'file, `tape.save(path, names={"scale": variable})`, and list those names: `wrt=["scale"]`.'
    ) in str(raised.value)
    for grads, path in zip(rt.farm.backward(paths, "loss", reduce="each"), paths, strict=True):
        for name in ("Variable", "Variable'"):
            np.testing.assert_array_equal(grads[name], rt.load(path).gradient("loss", name))


def test_variables_that_share_a_name_are_summed_by_names_of_their_own(tmp_path):
    paths = [save_two(tmp_path / f"{swapped}.tape", swapped, named="yes") for swapped in (False, True)]
    total = rt.farm.backward(paths, "loss", ["a", "b"])
    assert (dense(total["a"]).tolist(), dense(total["b"]).tolist()) == ([10.0, 10.0], [6.0, 6.0])


def test_names_in_a_set_have_no_order(tapes):
    with pytest.raises(TypeError) as raised:
        rt.farm.backward(tapes, "loss", {"w"})
    assert str(raised.value) == 'wrt= takes names on each tape, ["dense/kernel"]; got set.'
