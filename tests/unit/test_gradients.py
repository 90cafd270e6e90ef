"""Gradients: a mapping from variables, arithmetic on it, and a step of an optimizer."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors


class Case:
    """A vector with a dense, a sparse and a missing gradient."""

    def __init__(self) -> None:
        self.w = tf.Variable([[1.0, 2.0], [3.0, -4.0]], name="w")
        self.table = tf.Variable(tf.ones([4, 2]), name="table")
        self.b = tf.Variable(1.0, name="b")
        self.rows = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 1, 2]), tf.constant([4, 2]))
        self.dense = {"w": np.array([[3.0, 0.0], [0.0, -4.0]]), "table": np.array([[0, 0], [2, 2], [1, 1], [0, 0.0]])}
        pairs = [(self.w, tf.constant(self.dense["w"], tf.float32)), (self.table, self.rows), (self.b, None)]
        self.grads = rt.Gradients(pairs)


@pytest.fixture
def case() -> Case:
    return Case()


def array(grad: Any) -> np.ndarray:
    return tf.convert_to_tensor(grad).numpy()


def one(value: Any, dtype: Any = tf.float32, name: str = "v") -> tuple[tf.Variable, rt.Gradients]:
    value = tf.constant(value, dtype)
    variable = tf.Variable(tf.ones_like(value), name=name)
    return variable, rt.Gradients([(variable, value)])


def dense_model(units: int = 2, seed: int = 0) -> keras.Model:
    init = keras.initializers.RandomNormal(seed=seed)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, kernel_initializer=init)])


X = tf.constant(np.random.default_rng(3).normal(size=(5, 3)), tf.float32)


# ------------------------------------------------------------------ a mapping


def test_it_is_a_mapping_in_order(case: Case) -> None:
    assert len(case.grads) == 3
    assert [key.name for key in case.grads] == ["w:0", "table:0", "b:0"]
    assert [key.name for key, _ in case.grads.items()] == ["w:0", "table:0", "b:0"]
    assert case.w in case.grads
    assert tf.Variable(1.0) not in case.grads
    assert case.grads.get(tf.Variable(1.0)) is None
    np.testing.assert_array_equal(case.grads[case.w], case.dense["w"])
    assert case.grads[case.table] is case.rows


def test_a_missing_gradient_is_zero_and_told(case: Case) -> None:
    assert case.grads.missing == (case.b,)
    assert float(case.grads[case.b]) == 0.0
    assert case.grads.pairs()[2] == (None, case.b)


def test_a_keras_variable_and_its_tf_variable_are_one_key() -> None:
    variable = keras.Variable([1.0, 2.0])
    grads = rt.Gradients([(variable, tf.constant([1.0, 2.0])), (variable.value, tf.constant([10.0, 20.0]))])
    assert len(grads) == 1
    assert variable in grads
    assert variable.value in grads
    np.testing.assert_array_equal(grads[variable], [11.0, 22.0])
    np.testing.assert_array_equal(grads[variable.value], [11.0, 22.0])
    assert len(grads.without(variable.value)) == 0


def test_a_missing_keras_variable_is_zero() -> None:
    variable = keras.Variable([1.0, 2.0], dtype="float16")
    grad = rt.Gradients([(variable, None)])[variable]
    assert grad.dtype == tf.float16
    assert grad.shape == [2]


def test_only_and_without_take_keys_and_nests_of_keys(case: Case) -> None:
    assert list(case.grads.only(case.b, case.w)) == [case.w, case.b]
    assert list(case.grads.only([case.w, {"t": case.table}])) == [case.w, case.table]
    assert list(case.grads.without(case.w)) == [case.table, case.b]
    assert list(case.grads.without([case.w, case.b], tf.Variable(0.0))) == [case.table]
    assert case.grads.only(case.b).missing == (case.b,)


@pytest.mark.parametrize("ask", [lambda grads, key: grads[key], lambda grads, key: grads.only(key)])
def test_an_unknown_key_is_named_with_the_known_ones(case: Case, ask: Any) -> None:
    text = r"^There is no gradient by other here\. There are those by: w, table, b\. Name it when you ask: `tape\.back"
    with pytest.raises(errors.UnknownSourceError, match=text) as caught:
        ask(case.grads, tf.Variable(1.0, name="other"))
    assert caught.value.name == "other"
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize("key", ["w", 0])
def test_a_key_of_another_kind_is_unknown_too(case: Case, key: Any) -> None:
    assert key not in case.grads
    with pytest.raises(errors.UnknownSourceError, match="There is no gradient by"):
        case.grads[key]


def test_nothing_is_known_to_an_empty_one() -> None:
    with pytest.raises(errors.UnknownSourceError, match=r"no gradient by tensor float32\[2\] here.*those by: none"):
        rt.Gradients([])[tf.ones(2)]


def test_map_leaves_out_what_is_missing(case: Case) -> None:
    squared = case.grads.map(lambda grad: tf.convert_to_tensor(grad) ** 2)
    np.testing.assert_array_equal(squared[case.table], case.dense["table"] ** 2)
    assert squared.missing == (case.b,)


# ------------------------------------------------------------------ arithmetic


def test_mean_with_and_without_weights(case: Case) -> None:
    other = rt.Gradients([(case.w, tf.ones([2, 2])), (case.b, tf.constant(6.0))])
    plain = rt.Gradients.mean([case.grads, other])
    np.testing.assert_allclose(plain[case.w], (case.dense["w"] + 1.0) / 2.0)
    np.testing.assert_allclose(array(plain[case.table]), case.dense["table"] / 2.0)
    weighted = rt.Gradients.mean([case.grads, other], weights=[1, 3])
    np.testing.assert_allclose(weighted[case.w], (case.dense["w"] + 3.0) / 4.0)
    assert float(weighted[case.b]) == pytest.approx(4.5)


def test_mean_wants_one_weight_for_each(case: Case) -> None:
    with pytest.raises(errors.ShapeMismatchError, match="Got 1 weights for 2 gradients; give one for each"):
        rt.Gradients.mean([case.grads, case.grads], weights=[1.0])
    with pytest.raises(errors.ShapeMismatchError, match="Got no gradients to take the mean of"):
        rt.Gradients.mean([])


def test_sum_of_elements_and_builtin_sum(case: Case) -> None:
    assert float(case.grads.sum()) == -1.0 + 6.0
    assert float(rt.Gradients([]).sum()) == 0.0
    assert sum([case.grads, case.grads]) == 2.0 * case.grads


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_is_finite(case: Case, bad: float) -> None:
    assert case.grads.is_finite()
    assert not one([1.0, bad])[1].is_finite()
    rows = tf.IndexedSlices(tf.constant([[1.0, bad]]), tf.constant([0]), tf.constant([4, 2]))
    assert not rt.Gradients([(case.table, rows)]).is_finite()


def test_equality(case: Case) -> None:
    assert case.grads == rt.Gradients(zip(case.grads, [grad for grad, _ in case.grads.pairs()], strict=True))
    assert case.grads == case.grads.map(tf.convert_to_tensor)  # sparse or dense
    assert case.grads == case.grads.without(case.b)  # missing is zero
    assert case.grads != 2.0 * case.grads
    assert case.grads != "gradients"
    assert (1.0 + 1e-7) * case.grads != 1.1 * case.grads
    assert case.grads.is_close((1.0 + 1e-6) * case.grads)
    assert not case.grads.is_close(1.1 * case.grads)
    with pytest.raises(TypeError, match="unhashable"):
        hash(case.grads)


def test_equality_sees_differences_whose_squares_vanish() -> None:
    _, grads = one([1e-30, 0.0])
    assert grads != 2.0 * grads


def test_norms_by_name(case: Case) -> None:
    assert dict(case.grads.norms()) == pytest.approx({"w": 5.0, "table": 10**0.5, "b": 0.0})


def test_norms_of_variables_of_one_name_are_all_there() -> None:
    pairs = [(tf.Variable(0.0, name="v"), tf.constant(3.0)), (tf.Variable(0.0, name="v"), tf.constant(4.0))]
    assert [norm for _, norm in rt.Gradients(pairs).norms()] == [3.0, 4.0]


def test_the_table(case: Case) -> None:
    lines = [line.split() for line in repr(case.grads).splitlines()]
    assert lines == [
        ["variable", "shape", "norm", "share"],
        ["w", "2x2", "5", "71", "%"],
        ["table", "4x2", "3.162", "sparse", "29", "%"],
        ["b", "scalar", "missing"],
    ]


def test_the_table_names_keras_variables_by_path_and_tensors_by_type() -> None:
    model, x = dense_model(), tf.ones([2])
    text = repr(rt.Gradients([(model.trainable_variables[0], None), (x, x)]))
    assert model.trainable_variables[0].path in text
    assert "tensor float32[2]" in text


def test_inside_a_function_the_table_tells_that_it_is_symbolic(case: Case) -> None:
    shown = []

    @tf.function
    def show(values: tf.Tensor) -> tf.Tensor:
        rows = tf.IndexedSlices(values, tf.constant([0, 0]), tf.constant([4, 2]))
        shown.extend([repr(rt.Gradients([(case.w, values)])), repr(rt.Gradients([(case.table, rows)]))])
        return values

    show(tf.ones([2, 2]))
    assert shown == ["<Gradients of 1 variables, symbolic>"] * 2


# ------------------------------------------------------------------ wrong use


def test_two_gradients_have_no_product(case: Case) -> None:
    with pytest.raises(TypeError, match="Two Gradients have an inner product, `a @ b`, but no product; scale by a num"):
        case.grads * case.grads


@pytest.mark.parametrize(
    "use", [lambda g: g + 1.0, lambda g: 1.0 + g, lambda g: g - 1.0, lambda g: 1.0 / g, lambda g: g @ 1.0]
)
def test_numbers_are_not_vectors(case: Case, use: Any) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        use(case.grads)


@pytest.mark.parametrize("factor", [np.float32(2.0), np.float64(2.0), np.int64(2), tf.constant(2.0), tf.constant(2)])
def test_any_kind_of_number_scales(case: Case, factor: Any) -> None:
    doubled = case.grads + case.grads
    assert case.grads * factor == doubled
    assert isinstance(factor * case.grads, rt.Gradients)
    assert factor * case.grads == doubled
    assert doubled / factor == case.grads


def test_unflatten_wants_the_size_that_flatten_makes(case: Case) -> None:
    text = "Got a vector of 3 elements for 13; give one of the size that `flatten` makes"
    for vector in (tf.ones(3), np.ones(3)):
        with pytest.raises(errors.ShapeMismatchError, match=text):
            case.grads.unflatten(vector)


def test_flatten_and_back(case: Case) -> None:
    flat = case.grads.flatten()
    np.testing.assert_array_equal(flat, [*case.dense["w"].ravel(), *case.dense["table"].ravel(), 0.0])
    assert case.grads.unflatten(flat.numpy()) == case.grads
    assert rt.Gradients([]).flatten().shape == [0]


# ------------------------------------------------------------------ bounds


def test_clip_takes_one_bound(case: Case) -> None:
    every = "clip takes one of norm=, global_norm=, value=, adaptive=, got "
    with pytest.raises(TypeError, match=every + r"\['norm', 'value'\]\."):
        case.grads.clip(norm=1.0, value=1.0)
    with pytest.raises(TypeError, match=every + r"none\."):
        case.grads.clip()


@pytest.mark.parametrize("bound", [0.5, 4.0, 100.0])
def test_clip_each_norm(case: Case, bound: float) -> None:
    clipped = case.grads.clip(norm=bound)
    for name, grad in case.dense.items():
        expected = tf.clip_by_norm(tf.constant(grad), bound)
        np.testing.assert_allclose(array(clipped[getattr(case, name)]), expected, rtol=1e-6)
    assert clipped.missing == (case.b,)


@pytest.mark.parametrize("bound", [0.5, 5.5, 100.0])
def test_clip_the_norm_of_all(case: Case, bound: float) -> None:
    clipped = case.grads.clip(global_norm=bound)
    expected, _ = tf.clip_by_global_norm([tf.constant(grad) for grad in case.dense.values()], bound)
    for name, grad in zip(case.dense, expected, strict=True):
        np.testing.assert_allclose(array(clipped[getattr(case, name)]), grad, rtol=1e-6)


@pytest.mark.parametrize("bound", [0.5, 1.5, 100.0])
def test_clip_each_element(case: Case, bound: float) -> None:
    clipped = case.grads.clip(value=bound)
    for name, grad in case.dense.items():
        np.testing.assert_allclose(array(clipped[getattr(case, name)]), np.clip(grad, -bound, bound))


def agc(grad: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """Adaptive clipping as published, for kernels: a unit is an entry of the last axis."""
    axes = tuple(range(grad.ndim - 1))
    bound = share * np.maximum(np.sqrt((weights**2).sum(axes, keepdims=True)), 1e-3)
    size = np.sqrt((grad**2).sum(axes, keepdims=True))
    return np.where(size > bound, grad * bound / np.maximum(size, 1e-6), grad)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (3, 3, 2, 4)])
def test_clip_by_the_size_of_the_weights(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    weights, grad = random.normal(size=shape), random.normal(size=shape) * np.array([0.01, 1.0, 5.0, 0.0])
    weights[..., 1] = 0.0  # units without weights are held by epsilon
    variable = tf.Variable(weights, dtype=tf.float32)
    clipped = rt.Gradients([(variable, tf.constant(grad, tf.float32))]).clip(adaptive=0.1)
    np.testing.assert_allclose(clipped[variable], agc(grad, weights, 0.1), rtol=1e-5, atol=1e-8)


def test_clip_by_the_size_of_the_weights_takes_sparse_and_missing_ones(case: Case) -> None:
    clipped = case.grads.only(case.table, case.b).clip(adaptive=0.1)
    np.testing.assert_allclose(array(clipped[case.table]), agc(case.dense["table"], np.ones([4, 2]), 0.1), rtol=1e-5)
    assert clipped.missing == (case.b,)


@pytest.mark.parametrize("kind", ["norm", "global_norm"])
def test_a_bound_of_zero_leaves_zeros(kind: str) -> None:
    for value in ([0.0, 0.0], [3.0, 4.0]):
        variable, grads = one(value)
        np.testing.assert_array_equal(grads.clip(**{kind: 0.0})[variable], [0.0, 0.0])


def test_normalized(case: Case) -> None:
    assert float(case.grads.normalized().norm()) == pytest.approx(1.0)
    assert (case.grads.normalized() * case.grads.norm()).is_close(case.grads)
    zero = 0.0 * case.grads
    assert zero.normalized() == zero


def test_noise_is_the_same_for_the_same_seed(case: Case) -> None:
    first, again, other = (case.grads.with_noise(0.1, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first.missing == ()
    assert 0.0 < float((first - case.grads).norm()) < 2.0
    assert case.grads.with_noise(0.1) != case.grads.with_noise(0.1)


def test_noise_differs_by_key_and_has_the_deviation() -> None:
    a, b = (tf.Variable(tf.zeros([2000])) for _ in range(2))
    noise = rt.Gradients([(a, None), (b, None)]).with_noise(0.5, seed=3)
    assert not np.allclose(noise[a], noise[b])
    assert np.std(noise[a]) == pytest.approx(0.5, rel=0.1)
    assert abs(np.mean(noise[a])) < 0.05


# ------------------------------------------------------------------ half precision


def test_half_precision_is_summed_and_measured_in_single() -> None:
    _, grads = one([60000.0, 60000.0], tf.float16)
    assert float(grads.sum()) == pytest.approx(120000.0, rel=1e-3)
    assert float(grads @ grads) == pytest.approx(7.2e9, rel=1e-2)
    assert float(grads.norm()) == pytest.approx(84853.0, rel=1e-3)


@pytest.mark.parametrize("kind", ["norm", "global_norm"])
def test_half_precision_is_clipped_not_wiped_out(kind: str) -> None:
    variable, grads = one([300.0, 400.0], tf.float16)
    np.testing.assert_allclose(grads.clip(**{kind: 1.0})[variable], [0.6, 0.8], rtol=1e-2)


def test_half_precision_is_scaled_by_numbers_that_it_cannot_hold() -> None:
    variable, grads = one([2.0**-10, 2.0**-12], tf.float16)
    np.testing.assert_array_equal((grads * 2.0**17)[variable], [128.0, 32.0])
    np.testing.assert_array_equal((grads / 2.0**-17)[variable], [128.0, 32.0])


def test_half_precision_has_a_mean_where_weighted_sums_overflow() -> None:
    variable, grads = one([300.0, 1.0], tf.float16)
    np.testing.assert_allclose(rt.Gradients.mean([grads, grads], weights=[256, 256])[variable], [300.0, 1.0])


# ------------------------------------------------------------------ a step


def test_apply_builds_an_optimizer() -> None:
    variable, grads = one([1.0, -2.0])
    optimizer = keras.optimizers.SGD(0.5)
    grads.apply(optimizer)
    assert optimizer.built
    np.testing.assert_allclose(variable, [0.5, 2.0])
    grads.apply(optimizer)
    assert int(optimizer.iterations) == 2


def test_one_adam_for_two_models_steps_as_with_a_stock_tape() -> None:
    def train(tape_of: Any, step: Any) -> list[np.ndarray]:
        encoder, decoder = dense_model(3, seed=1), dense_model(2, seed=2)
        variables, optimizer = encoder.trainable_variables + decoder.trainable_variables, keras.optimizers.Adam(0.1)
        for _ in range(3):
            with tape_of() as tape:
                loss = tf.reduce_mean(decoder(tf.tanh(encoder(X))) ** 2)
            step(tape, loss, variables, optimizer)
        return [variable.numpy() for variable in variables]

    def stock(tape: Any, loss: Any, variables: Any, optimizer: Any) -> None:
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)

    expected = train(tf.GradientTape, stock)
    for wrt in (True, False):
        ours = train(
            rt.Tape, lambda t, loss, variables, o, wrt=wrt: t.backward(loss, variables if wrt else None).apply(o)
        )
        for got, want in zip(ours, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_apply_to_an_optimizer_that_keras_has_built_for_its_variables() -> None:
    model, optimizer = dense_model(), keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(X) ** 2)
    before = model.get_weights()
    tape.backward(loss).apply(optimizer)  # by the tf.Variables that were read
    assert all(np.abs(new - old).max() > 0.05 for new, old in zip(model.get_weights(), before, strict=True))


def test_a_variable_without_gradient_is_left_alone(case: Case) -> None:
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    case.grads.apply(optimizer)
    assert float(case.b) == 1.0
    assert case.w.numpy()[0, 0] != 1.0
    rt.Gradients([(case.b, tf.constant(1.0))]).apply(optimizer)  # the optimizer knows it nonetheless
    assert float(case.b) != 1.0


def test_nothing_to_apply(case: Case) -> None:
    text = (
        r"^None of the variables has a gradient: b\. Compute the loss inside the `with` block, from these variables, w"
    )
    optimizer = keras.optimizers.SGD()
    with pytest.raises(errors.NothingToApplyError, match=text) as caught:
        case.grads.only(case.b).apply(optimizer)
    assert (caught.value.names, caught.value.reasons) == (("b",), ("",))
    assert not optimizer.built
    with pytest.raises(errors.NothingToApplyError, match="there are none"):
        rt.Gradients([]).apply(optimizer)


def test_nothing_to_apply_says_why() -> None:
    unread, other, used = (tf.Variable(1.0, name=name) for name in ("unread", "other", "used"))
    with rt.Tape() as tape:
        loss = tf.stop_gradient(used) * 2.0
    text = (
        r"^None of the variables has a gradient: unread, other \(it was not read on this tape\), "
        r"used \(`tf.stop_gradient` cuts the path: StopGradient \(.*\)\)\. "
        r"Compute the loss inside the `with` block, from these"
    )
    with pytest.raises(errors.NothingToApplyError, match=text) as caught:
        tape.backward(loss, [unread, used, other]).apply(keras.optimizers.SGD())
    assert caught.value.names == ("unread", "used", "other")
    assert caught.value.reasons[0] == "it was not read on this tape"


def test_an_optimizer_that_was_built_for_other_variables(case: Case) -> None:
    optimizer = keras.optimizers.Adam()
    case.grads.only(case.w).apply(optimizer)
    before = case.w.numpy()
    text = r"^The optimizer was built for w, and not for table\. Build it for all of them before the first step: `opt"
    with pytest.raises(errors.UnknownVariableError, match=text) as caught:
        case.grads.apply(optimizer)
    assert (caught.value.name, caught.value.known) == ("table", ("w",))
    np.testing.assert_array_equal(case.w, before)


def test_tensors_are_not_applied(case: Case) -> None:
    x = tf.ones([2])
    grads = case.grads + rt.Gradients([(x, x)])
    text = r"An optimizer changes variables, and tensor float32\[2\] is a tensor; use `only\(\*variables\)`\."
    with pytest.raises(TypeError, match=text):
        grads.apply(keras.optimizers.SGD())


@pytest.mark.parametrize("bound", ["global_clipnorm", "clipnorm", "clipvalue"])
def test_sparse_steps_are_dense_steps_where_keras_clips(bound: str) -> None:
    after = []
    for form in (lambda grad: grad, tf.convert_to_tensor):
        case = Case()
        case.grads.map(form).apply(keras.optimizers.SGD(1.0, **{bound: 1.0}))
        after.append((case.w.numpy(), case.table.numpy()))
    np.testing.assert_allclose(after[0][0], after[1][0], rtol=1e-6)
    np.testing.assert_allclose(after[0][1], after[1][1], rtol=1e-6)
    if bound == "global_clipnorm":
        np.testing.assert_allclose(1.0 - after[0][1], case.dense["table"] / 35**0.5, rtol=1e-5)


def test_apply_inside_a_function() -> None:
    model, twin = dense_model(seed=4), dense_model(seed=4)
    optimizer, stock = keras.optimizers.Adam(0.1), keras.optimizers.Adam(0.1)

    @tf.function
    def step() -> tf.Tensor:
        with rt.Tape() as tape:
            loss = tf.reduce_sum(model(X) ** 2)
        tape.backward(loss, model.trainable_variables).clip(global_norm=1.0).apply(optimizer)
        return loss

    for _ in range(2):
        step()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(twin(X) ** 2)
        grads, _ = tf.clip_by_global_norm(tape.gradient(loss, [v.value for v in twin.trainable_variables]), 1.0)
        stock.apply(grads, twin.trainable_variables)
    for got, want in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_loss_scale_optimizer(case: Case) -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
    (8.0 * case.grads).apply(optimizer)
    np.testing.assert_allclose(case.w, np.array([[1.0, 2.0], [3.0, -4.0]]) - case.dense["w"])
    np.testing.assert_allclose(case.table, 1.0 - case.dense["table"])
    before = case.w.numpy()
    (np.inf * case.grads.only(case.w).map(tf.ones_like)).apply(optimizer)  # skipped, and scaled less from now on
    np.testing.assert_array_equal(case.w, before)
    assert float(optimizer.dynamic_scale) == 4.0


# ------------------------------------------------------------------ from a tape


def test_backward_is_gradient_by_the_trainable_variables_that_were_read() -> None:
    model, unread = dense_model(), tf.Variable(1.0)
    frozen = tf.Variable(2.0, trainable=False)
    with rt.Tape() as tape:
        loss = frozen * tf.reduce_sum(model(X) ** 2)
    grads = tape.backward(loss)
    assert len(grads) == 2
    assert frozen not in grads
    assert unread not in grads
    for variable, want in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True):
        np.testing.assert_allclose(grads[variable], want)


def test_backward_inside_a_function_finds_the_variables_that_were_read() -> None:
    w, table = tf.Variable([3.0, 4.0], name="w"), tf.Variable(tf.ones([4, 2]), name="table")
    found = []

    @tf.function
    def norm() -> tf.Tensor:
        with rt.Tape() as tape:
            loss = tf.reduce_sum(w**2) / 2.0 + tf.reduce_sum(tf.gather(table, [1, 1]) * 6.0)
        grads = tape.backward(loss)
        found.append(len(grads))
        return grads.norm()

    assert float(norm()) == pytest.approx((25.0 + 2 * 144.0) ** 0.5)
    assert set(found) == {2}


def test_backward_by_what_is_named() -> None:
    w, other, x = tf.Variable([3.0, 4.0]), tf.Variable(1.0), tf.constant(2.0)
    with rt.Tape() as tape:
        loss = x * tf.reduce_sum(w**2)
        unused = other * 1.0
    assert list(tape.backward(loss, w)) == [w]
    grads = tape.backward(loss, {"w": w, "rest": [other, x]})
    np.testing.assert_array_equal(grads[w], [12.0, 16.0])
    assert float(grads[x]) == 25.0
    assert grads.missing == (other,)
    assert tape.backward(loss).missing == (other,)
    zeros = tape.backward(loss, [other], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert zeros.missing == ()
    assert float(tape.backward(unused)[other]) == 1.0


def test_backward_of_a_lookup_is_sparse() -> None:
    table = tf.Variable(tf.ones([4, 2]))
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 3]))
    grads = tape.backward(loss)
    assert isinstance(grads[table], tf.IndexedSlices)
    assert float(grads.norm()) == pytest.approx(10**0.5)


def test_backward_each_adds_up_to_backward_of_the_sum() -> None:
    w, b = tf.Variable([3.0, 4.0]), tf.Variable(2.0)
    with rt.Tape() as tape:
        losses = [tf.reduce_sum(w**2), b * w[0], 5.0 * b]
        total = tf.add_n(losses)
    each = tape.backward_each(losses)
    assert [len(grads.missing) for grads in each] == [1, 0, 1]
    assert sum(each) == tape.backward(total)
    assert [float(grads[b]) for grads in tape.backward_each(losses, wrt=[b])] == [0.0, 3.0, 5.0]


def test_gradients_of_two_tapes_add_up_where_one_has_none() -> None:
    shared, first, second = tf.Variable(2.0), tf.Variable(3.0), tf.Variable(5.0)
    with rt.Tape() as one_tape:
        left = shared * first
    with rt.Tape() as other_tape:
        right = shared * second
    every = [shared, first, second]
    grads = one_tape.backward(left, every) + other_tape.backward(right, every)
    assert [float(grads[v]) for v in every] == [8.0, 2.0, 2.0]
    assert grads.missing == ()
    assert one_tape.backward(left) + other_tape.backward(right) == grads


def test_numbers_of_python_are_taken_in_double_precision():
    v = tf.Variable(1.0, dtype=tf.float64)
    grads = rt.Gradients([(v, tf.constant(1.0, tf.float64))])
    scaled = [0.1 * grads, grads / 10.0, grads.clip(norm=0.1), grads.clip(value=0.1), grads.clip(global_norm=0.1)]
    assert [float(found[v]) for found in scaled] == [0.1] * 5
    assert float(rt.Gradients.mean([grads] * 3)[v]) == 1.0
