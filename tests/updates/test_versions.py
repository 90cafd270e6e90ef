"""Every value that a variable had, and derivatives through every kind of update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors
from retrotape.record._traits import traits
from retrotape.rules import FORWARD

START = np.array([[1.0, 2.0], [3.0, 4.0], [-1.5, 0.5]])
WEIGHTS = np.array([[0.7, -1.1], [0.4, 1.3], [-0.9, 0.6]])
Arrays = dict[str, np.ndarray]


def dense(value: Any) -> np.ndarray:
    return tf.convert_to_tensor(value).numpy()


def or_zeros(grad: Any, like: np.ndarray) -> np.ndarray:
    found = np.zeros_like(like) if grad is None else dense(grad)
    assert found.shape == like.shape
    return found


def differences(f: Callable[[Arrays], float], at: Arrays, step: float = 1e-6) -> Arrays:
    """Return the central differences of `f` by every element of every array."""
    found = {}
    for name, array in at.items():
        grad = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * step
                ends.append(f({**at, name: moved}))
            grad[index] = (ends[0] - ends[1]) / (2 * step)
        found[name] = grad
    return found


def read_out(variable: tf.Variable) -> tf.Tensor:
    """Return a number that depends on every element, in its own way and not linearly."""
    return tf.reduce_sum(tf.sin(variable.read_value()) * WEIGHTS)


# ------------------------------------------------------------------ every kind of update of one variable


class Update(NamedTuple):
    apply: Callable[[tf.Variable, tf.Tensor], Any]
    operand: Any  # the value of `x`

    def run(self, start: np.ndarray, x: np.ndarray) -> float:
        variable = tf.Variable(start)
        self.apply(variable, tf.constant(x))
        return float(read_out(variable))

    def expected(self) -> Arrays:
        at = {"start": START, "x": np.asarray(self.operand)}
        return differences(lambda values: self.run(**values), at)


def slices(x: tf.Tensor, rows: list[int]) -> tf.IndexedSlices:
    return tf.IndexedSlices(x, tf.constant(rows))


WHOLE = np.array([[0.3, -0.8], [1.2, 0.5], [0.9, -0.4]])
PAIR = np.array([[0.3, -0.8], [1.2, 2.5]])
TRIPLE = np.array([[0.3, -0.8], [1.2, 2.5], [0.6, 1.7]])

UPDATES = {
    "assign": Update(lambda v, x: v.assign(x * x), WHOLE),
    "assign_of_itself": Update(lambda v, x: v.assign(v * v * x), WHOLE),
    "assign_add": Update(lambda v, x: v.assign_add(x * v), WHOLE),
    "assign_sub": Update(lambda v, x: v.assign_sub(tf.exp(x)), WHOLE),
    "scatter_add": Update(lambda v, x: v.scatter_add(slices(x, [2, 0])), PAIR),
    "scatter_add_repeated": Update(lambda v, x: v.scatter_add(slices(x * x, [2, 0, 2])), TRIPLE),
    "scatter_sub": Update(lambda v, x: v.scatter_sub(slices(x, [1, 0])), PAIR),
    "scatter_sub_repeated": Update(lambda v, x: v.scatter_sub(slices(x * v[0], [1, 1])), PAIR),
    "scatter_update": Update(lambda v, x: v.scatter_update(slices(x, [2, 0])), PAIR),
    "scatter_update_scalar": Update(
        lambda v, x: tf.raw_ops.ResourceScatterUpdate(resource=v.handle, indices=[2, 0], updates=x), 0.4
    ),
    "scatter_add_scalar": Update(
        lambda v, x: tf.raw_ops.ResourceScatterAdd(resource=v.handle, indices=[2, 0], updates=x), 0.4
    ),
    "scatter_mul_scalar": Update(
        lambda v, x: tf.raw_ops.ResourceScatterMul(resource=v.handle, indices=[2, 0], updates=x), 0.4
    ),
    "scatter_update_one_row": Update(
        lambda v, x: tf.raw_ops.ResourceScatterUpdate(resource=v.handle, indices=1, updates=x), [0.4, 0.7]
    ),
    "scatter_mul": Update(lambda v, x: v.scatter_mul(slices(x, [2, 0])), PAIR),
    "scatter_mul_repeated": Update(lambda v, x: v.scatter_mul(slices(x, [2, 0, 2])), TRIPLE),
    "scatter_div": Update(lambda v, x: v.scatter_div(slices(x, [1, 0])), PAIR),
    "scatter_div_repeated": Update(lambda v, x: v.scatter_div(slices(x, [1, 0, 1])), TRIPLE),
    "scatter_min": Update(lambda v, x: v.scatter_min(slices(x, [2, 0])), PAIR),
    "scatter_min_repeated": Update(lambda v, x: v.scatter_min(slices(x, [0, 1, 0])), TRIPLE),
    "scatter_max": Update(lambda v, x: v.scatter_max(slices(x, [2, 0])), PAIR),
    "scatter_max_repeated": Update(lambda v, x: v.scatter_max(slices(x, [2, 0, 2])), TRIPLE),
    "scatter_nd_add": Update(lambda v, x: v.scatter_nd_add([[0, 1], [2, 0], [0, 1]], x), [0.3, 1.2, -0.6]),
    "scatter_nd_sub": Update(lambda v, x: v.scatter_nd_sub([[0, 1], [2, 0], [2, 0]], x), [0.3, 1.2, -0.6]),
    "scatter_nd_update": Update(lambda v, x: v.scatter_nd_update([[0, 1], [2, 0]], x), [0.3, 1.2]),
    "scatter_nd_min": Update(lambda v, x: v.scatter_nd_min([[0, 1], [2, 0]], x), [0.3, 1.2]),
    "scatter_nd_max": Update(lambda v, x: v.scatter_nd_max([[0, 1], [2, 0]], x), [2.3, -2.2]),
    "scatter_nd_of_rows": Update(lambda v, x: v.scatter_nd_update([[2], [0]], x), PAIR),
    "batch_scatter_update": Update(
        lambda v, x: v.batch_scatter_update(tf.IndexedSlices(x, tf.constant([[1], [0], [1]]))),
        [[0.2], [-0.7], [1.4]],
    ),
    "slice": Update(lambda v, x: v[1:].assign(x), PAIR),
    "slice_of_itself": Update(lambda v, x: v[:2].assign(x * v[1:]), PAIR),
    "slice_with_step": Update(lambda v, x: v[::2, 1].assign(x), [0.4, -0.6]),
    "slice_backwards": Update(lambda v, x: v[::-1].assign(x), WHOLE),
    "slice_with_ellipsis": Update(lambda v, x: v[..., 0].assign(x), [0.4, -0.6, 1.1]),
    "slice_of_one_element": Update(lambda v, x: v[1, 0].assign(x), 0.4),
    "two_after_another": Update(lambda v, x: (v.assign_add(x), v.assign(v * v)), WHOLE),
}


def check_update(update: Update, apply: Callable[[tf.Variable, tf.Tensor], Any], keep: str) -> rt.Tape:
    """Run an update inside a block and compare values and derivatives with what TensorFlow computes."""
    variable, x = tf.Variable(START), tf.constant(update.operand, tf.float64)
    with rt.Tape(keep=keep) as tape:
        apply(variable, x)
        y = read_out(variable)
    np.testing.assert_array_equal(tape.versions(variable)[0].numpy(), START)
    np.testing.assert_allclose(tape.versions(variable)[-1].numpy(), variable.numpy(), rtol=1e-14)
    found = tape.gradient(y, {"start": variable, "x": x}, through_updates=True)
    entry = tape.gradient(y, tape.at(variable, 0))
    for name, wanted in update.expected().items():
        np.testing.assert_allclose(or_zeros(found[name], wanted), wanted, rtol=1e-7, atol=1e-8, err_msg=name)
    np.testing.assert_array_equal(or_zeros(entry, START), or_zeros(found["start"], START))
    return tape


@pytest.mark.parametrize("keep", ["needed", "leaves"])
@pytest.mark.parametrize("name", UPDATES)
def test_value_and_derivative_of_an_update(name: str, keep: str):
    check_update(UPDATES[name], UPDATES[name].apply, keep)


@pytest.mark.parametrize("keep", ["needed", "leaves"])
def test_repeated_rows_of_a_scatter_update(keep: str):
    # The last row written is the one that stays, so the first has no part in the new value.
    update = Update(lambda v, x: v.scatter_update(slices(x, [2, 0, 2])), TRIPLE)
    check_update(update, update.apply, keep)


@pytest.mark.parametrize("name", ["assign_add", "scatter_mul_repeated", "slice_of_itself"])
def test_second_derivative_through_an_update(name: str):
    update = UPDATES[name]
    variable, x = tf.Variable(START), tf.constant(update.operand, tf.float64)
    with rt.Tape() as tape:
        update.apply(variable, x)
        y = read_out(variable)
    hessian = tape.hessian(y, x, through_updates=True).numpy()

    def first(values: Arrays) -> np.ndarray:
        inner, moved = tf.Variable(START), tf.constant(values["x"])
        with rt.Tape() as again:
            update.apply(inner, moved)
            out = read_out(inner)
        return again.gradient(out, moved, through_updates=True).numpy()

    step = 1e-6
    for index in np.ndindex(tuple(x.shape)):
        ends = [np.array(update.operand) for _ in range(2)]
        ends[0][index] += step
        ends[1][index] -= step
        wanted = (first({"x": ends[0]}) - first({"x": ends[1]})) / (2 * step)
        np.testing.assert_allclose(hessian[index], wanted, rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------ inside tf.function


def _nested(f: Callable) -> Callable:
    inner = tf.function(f)
    return tf.function(lambda v, x: inner(v, x))


def _in_loop(f: Callable) -> Callable:
    def step(v: Any, x: Any, i: Any) -> Any:
        f(v, x)
        return (i + 1,)

    return tf.function(lambda v, x: tf.while_loop(lambda i: i < 2, lambda i: step(v, x, i), [0]), autograph=False)


def _in_branch(f: Callable) -> Callable:
    def branch(v: Any, x: Any, factor: float) -> tf.Tensor:
        f(v, factor * x)
        return tf.constant(0)

    return tf.function(
        lambda v, x: tf.cond(tf.reduce_sum(x) > -50.0, lambda: branch(v, x, 1.0), lambda: branch(v, x, 2.0)),
        autograph=False,
    )


def _with_autograph(v: tf.Variable, x: tf.Tensor) -> None:
    total = tf.reduce_sum(x)
    for _ in tf.range(3):
        if total > 0.0:
            v.assign_add(x * v)
        else:
            v.assign(v * x)
        total = total - 2.0


def _without_result(f: Callable) -> Callable:
    def call(v: Any, x: Any) -> None:
        f(v, x)

    return call


WRAPPERS: dict[str, Callable[[Callable], Callable]] = {
    "plain": lambda f: tf.function(_without_result(f)),
    "nested": lambda f: _nested(_without_result(f)),
    "compiled": lambda f: tf.function(_without_result(f), jit_compile=True),
    "loop": _in_loop,
    "branch": _in_branch,
}
# The bodies of these are what real code assigns in functions; the rest stands for all scatter kernels.
IN_FUNCTIONS = ["assign_of_itself", "assign_add", "scatter_add", "slice_of_itself", "two_after_another"]


@pytest.mark.parametrize("name", IN_FUNCTIONS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_update_inside_a_function(wrapper: str, name: str):
    wrapped = WRAPPERS[wrapper](UPDATES[name].apply)
    update = Update(wrapped, UPDATES[name].operand)
    check_update(update, wrapped, "needed")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in UPDATES if name not in IN_FUNCTIONS])
@pytest.mark.parametrize("wrapper", ["plain", "nested", "loop", "branch"])
def test_every_update_inside_a_function(wrapper: str, name: str):
    wrapped = WRAPPERS[wrapper](UPDATES[name].apply)
    update = Update(wrapped, UPDATES[name].operand)
    check_update(update, wrapped, "leaves")


def test_update_inside_a_function_with_keep_leaves():
    wrapped = tf.function(_without_result(UPDATES["assign_of_itself"].apply))
    check_update(Update(wrapped, WHOLE), wrapped, "leaves")


def test_python_flow_inside_a_function():
    wrapped = tf.function(_with_autograph)
    check_update(Update(wrapped, WHOLE), wrapped, "needed")


@pytest.mark.parametrize("nested", [False, True])
def test_custom_gradient_inside_a_function_that_assigns(nested: bool):
    @tf.custom_gradient
    def steep(x: tf.Tensor) -> Any:
        return tf.sin(x), lambda upstream: upstream * 5.0

    inner = tf.function(steep) if nested else steep
    variable, x = tf.Variable([1.0, 2.0]), tf.constant([0.3, 0.4])
    assign = tf.function(lambda x: variable.assign_add(inner(x) * variable))
    with rt.Tape() as tape:
        assign(x)
        y = tf.reduce_sum(variable * variable)
    new = np.array([1.0, 2.0]) * (1 + np.sin([0.3, 0.4]))
    by_x, by_start = tape.gradient(y, [x, tape.at(variable, 0)], through_updates=True)
    np.testing.assert_allclose(by_x, 2 * new * np.array([1.0, 2.0]) * 5.0, rtol=1e-6)
    np.testing.assert_allclose(by_start, 2 * new * (1 + np.sin([0.3, 0.4])), rtol=1e-6)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_silu_inside_a_function_that_assigns(wrapper: str):
    # Keras and TensorFlow write this activation with a custom gradient that looks at tensors of the function.
    wrapped = WRAPPERS[wrapper](lambda v, x: v.assign(tf.nn.silu(v * x)))
    check_update(Update(wrapped, WHOLE), wrapped, "needed")


def test_what_a_function_returns_and_what_it_assigns():
    variable, x = tf.Variable(3.0), tf.constant(2.0)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        before = variable * x
        variable.assign(variable * before)  # v² x
        return before + variable  # v x + v² x

    with rt.Tape() as tape:
        y = step(x) * variable
    # y = (v x + v² x) v² x = v³ x² + v⁴ x²
    assert float(tape.gradient(y, tape.at(variable, 0))) == 3 * 9 * 4 + 4 * 27 * 4
    assert float(tape.gradient(y, x, through_updates=True)) == 2 * (27 + 81) * 2


def test_what_a_function_returns_alone():
    # The variable is not looked at after the call, so the only path leads through what the function read back.
    variable, x = tf.Variable(3.0), tf.constant(2.0)
    step = tf.function(lambda x: variable.assign(variable * x) * variable)
    with rt.Tape() as tape:
        y = step(x)
    # y = v² x²
    found = tape.gradient(y, [tape.at(variable, 0), x, variable], through_updates=True)
    assert [float(grad) for grad in found] == [24.0, 36.0, 24.0]


def test_function_called_twice():
    variable = tf.Variable(3.0)
    double = tf.function(lambda x: variable.assign(variable * x))
    first, second = tf.constant(2.0), tf.constant(5.0)
    with rt.Tape() as tape:
        double(first)
        double(second)
        y = variable * 1.0
    assert [float(version.value) for version in tape.versions(variable)] == [3.0, 6.0, 30.0]
    sources = [first, second, tape.at(variable, 0), tape.at(variable, 1)]
    assert [float(g) for g in tape.gradient(y, sources, through_updates=True)] == [15.0, 6.0, 10.0, 5.0]


def test_function_with_random_draws_is_refused_only_if_needed():
    variable, x = tf.Variable(3.0), tf.constant(2.0)
    jitter = tf.function(lambda x: variable.assign(variable * x + tf.random.uniform([])))
    with rt.Tape() as tape:
        jitter(x)
        y = variable * x
    assert float(tape.gradient(y, x)) == float(variable)
    with pytest.raises(errors.OpaqueUpdateError, match="random draws"):
        tape.gradient(y, x, through_updates=True)


# ------------------------------------------------------------------ fused optimizer steps


class Apply(NamedTuple):
    """A raw op: its variables, hyper-parameters, gradient argument and attributes."""

    op: str
    variables: tuple[str, ...]
    scalars: dict[str, float]
    grad: str = "grad"
    attrs: dict[str, bool] = {}  # noqa: RUF012 - never changed
    rows: tuple[int, ...] | None = None

    def values(self) -> Arrays:
        grad = WHOLE if self.rows is None else np.resize(WHOLE, [len(self.rows), 2])
        given = {name: SLOTS[name] for name in self.variables}
        return {**given, **{n: np.array(v) for n, v in self.scalars.items()}, self.grad: grad}

    def call(self, variables: dict[str, tf.Variable], tensors: dict[str, tf.Tensor]) -> tf.Tensor:
        handles = {name: variable.handle for name, variable in variables.items()}
        rows = {} if self.rows is None else {"indices": tf.constant(self.rows)}
        getattr(tf.raw_ops, self.op)(**handles, **tensors, **rows, **self.attrs)
        return tf.add_n([read_out(variable) * (n + 1.0) for n, variable in enumerate(variables.values())])

    def split(self, values: Arrays) -> tuple[dict[str, tf.Variable], dict[str, tf.Tensor]]:
        variables = {name: tf.Variable(values[name]) for name in self.variables}
        return variables, {n: tf.constant(v) for n, v in values.items() if n not in self.variables}

    def run(self, values: Arrays) -> float:
        return float(self.call(*self.split(values)))


_POSITIVE = np.array([[0.5, 0.9], [1.4, 0.7], [1.1, 0.6]])
SLOTS = {
    "var": START,
    "accum": _POSITIVE,
    "accum_update": _POSITIVE[::-1] * 0.3,
    "m": WHOLE * 0.4,
    "v": _POSITIVE,
    "vhat": _POSITIVE[::-1] * 1.2,
    "mg": WHOLE * 0.3,
    "ms": _POSITIVE * 3.0,
    "mom": WHOLE * 0.2,
    "linear": WHOLE * 0.2,
}
_ADAM = {"beta2_power": 0.8, "beta1_power": 0.6, "lr": 0.1, "beta1": 0.8, "beta2": 0.9, "epsilon": 0.01}
_NO_BETA2_POWER = {name: value for name, value in _ADAM.items() if name != "beta2_power"}
_RMS = {"lr": 0.1, "rho": 0.8, "momentum": 0.4, "epsilon": 0.01}
_MOMENTUM = {"lr": 0.1, "momentum": 0.7}
_DELTA = {"lr": 0.1, "rho": 0.8, "epsilon": 0.01}
_V2 = {"lr": 0.1, "epsilon": 0.01}
_NESTEROV = {"use_nesterov": True}
_TWO, _THREE = ("var", "accum"), ("var", "accum", "accum_update")

DENSE = {
    "descent": Apply("ResourceApplyGradientDescent", ("var",), {"alpha": 0.1}, "delta"),
    "proximal": Apply("ResourceApplyProximalGradientDescent", ("var",), {"alpha": 0.1, "l1": 0.3, "l2": 0.2}, "delta"),
    "proximal_without_l1": Apply(
        "ResourceApplyProximalGradientDescent", ("var",), {"alpha": 0.1, "l1": 1e-5, "l2": 0.2}, "delta"
    ),
    "momentum": Apply("ResourceApplyMomentum", _TWO, _MOMENTUM),
    "momentum_nesterov": Apply("ResourceApplyMomentum", _TWO, _MOMENTUM, attrs=_NESTEROV),
    "keras_momentum": Apply("ResourceApplyKerasMomentum", _TWO, _MOMENTUM),
    "keras_momentum_nesterov": Apply("ResourceApplyKerasMomentum", _TWO, _MOMENTUM, attrs=_NESTEROV),
    "adam": Apply("ResourceApplyAdam", ("var", "m", "v"), _ADAM),
    "adam_nesterov": Apply("ResourceApplyAdam", ("var", "m", "v"), _ADAM, attrs=_NESTEROV),
    "amsgrad": Apply("ResourceApplyAdamWithAmsgrad", ("var", "m", "v", "vhat"), _ADAM),
    "adamax": Apply("ResourceApplyAdaMax", ("var", "m", "v"), _NO_BETA2_POWER),
    "adagrad": Apply("ResourceApplyAdagrad", _TWO, {"lr": 0.1}),
    "adagrad_fixed_slots": Apply("ResourceApplyAdagrad", _TWO, {"lr": 0.1}, attrs={"update_slots": False}),
    "adagrad_v2": Apply("ResourceApplyAdagradV2", _TWO, _V2),
    "adagrad_v2_fixed_slots": Apply("ResourceApplyAdagradV2", _TWO, _V2, attrs={"update_slots": False}),
    "adadelta": Apply("ResourceApplyAdadelta", _THREE, _DELTA),
    "rmsprop": Apply("ResourceApplyRMSProp", ("var", "ms", "mom"), _RMS),
    "centered_rmsprop": Apply("ResourceApplyCenteredRMSProp", ("var", "mg", "ms", "mom"), _RMS),
}
UNIQUE, REPEATED = (2, 0), (2, 0, 2)
SPARSE = {
    "momentum": Apply("ResourceSparseApplyMomentum", _TWO, _MOMENTUM),
    "momentum_nesterov": Apply("ResourceSparseApplyMomentum", _TWO, _MOMENTUM, attrs=_NESTEROV),
    "keras_momentum": Apply("ResourceSparseApplyKerasMomentum", _TWO, _MOMENTUM),
    "keras_momentum_nesterov": Apply("ResourceSparseApplyKerasMomentum", _TWO, _MOMENTUM, attrs=_NESTEROV),
    "adagrad": Apply("ResourceSparseApplyAdagrad", _TWO, {"lr": 0.1}),
    "adagrad_fixed_slots": Apply("ResourceSparseApplyAdagrad", _TWO, {"lr": 0.1}, attrs={"update_slots": False}),
    "adagrad_v2": Apply("ResourceSparseApplyAdagradV2", _TWO, _V2),
    "adadelta": Apply("ResourceSparseApplyAdadelta", _THREE, _DELTA),
    "rmsprop": Apply("ResourceSparseApplyRMSProp", ("var", "ms", "mom"), _RMS),
    "centered_rmsprop": Apply("ResourceSparseApplyCenteredRMSProp", ("var", "mg", "ms", "mom"), _RMS),
}


def check_apply(step: Apply) -> None:
    values = step.values()
    variables, tensors = step.split(values)
    with rt.Tape(keep="leaves") as tape:
        y = step.call(variables, tensors)
    for name, variable in variables.items():
        recomputed = tape.versions(variable)[-1].numpy()
        np.testing.assert_allclose(recomputed, variable.numpy(), rtol=1e-12, err_msg=name)
    found = tape.gradient(y, {**variables, **tensors}, through_updates=True)
    for name, wanted in differences(step.run, values).items():
        np.testing.assert_allclose(or_zeros(found[name], wanted), wanted, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("name", DENSE)
def test_fused_step(name: str):
    check_apply(DENSE[name])


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_fused_step(name: str):
    check_apply(SPARSE[name]._replace(rows=UNIQUE))


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_fused_step_on_a_row_twice(name: str):
    # The kernels go row by row, so the second visit of a row starts from what the first one left.
    check_apply(SPARSE[name]._replace(rows=REPEATED))


@pytest.mark.parametrize("name", ["momentum_nesterov", "adam"])
def test_fused_step_inside_a_function(name: str):
    step = DENSE[name]
    values = step.values()
    variables, tensors = step.split(values)
    call = tf.function(lambda tensors: step.call(variables, tensors))
    with rt.Tape() as tape:
        y = call(tensors)
    found = tape.gradient(y, {**variables, **tensors}, through_updates=True)
    for name, wanted in differences(step.run, values).items():
        np.testing.assert_allclose(or_zeros(found[name], wanted), wanted, rtol=1e-6, atol=1e-7, err_msg=name)


_FTRL = {"lr": 0.1, "l1": 0.01, "l2": 0.02, "lr_power": -0.5}
_SIGN = {"lr": 0.1, "alpha": 0.3, "sign_decay": 0.5, "beta": 0.9}
_POWER = {"lr": 0.1, "logbase": 0.3, "sign_decay": 0.5, "beta": 0.9}
BENT = {
    "ftrl": Apply("ResourceApplyFtrl", ("var", "accum", "linear"), _FTRL),
    "ftrl_v2": Apply("ResourceApplyFtrlV2", ("var", "accum", "linear"), {**_FTRL, "l2_shrinkage": 0.1}),
    "add_sign": Apply("ResourceApplyAddSign", ("var", "m"), _SIGN),
    "power_sign": Apply("ResourceApplyPowerSign", ("var", "m"), _POWER),
    "proximal_adagrad": Apply("ResourceApplyProximalAdagrad", _TWO, {"lr": 0.1, "l1": 0.3, "l2": 0.2}),
}


@pytest.mark.parametrize("name", BENT)
def test_fused_step_with_signs_thresholds_and_powers(name: str):
    check_apply(BENT[name])


# ------------------------------------------------------------------ updates without a rule


@pytest.fixture
def opaque(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return an update of a variable which is certain to have no rule."""
    step = BENT["ftrl"]
    monkeypatch.delitem(FORWARD, step.op, raising=False)
    traits.cache_clear()

    def update(variable: tf.Variable, grad: tf.Tensor) -> None:
        variables, tensors = step.split(step.values())
        step.call(variables | {"var": variable}, tensors | {"grad": grad})

    yield update
    traits.cache_clear()


def test_opaque_update_is_refused_where_a_question_depends_on_it(opaque: Callable):
    variable, x = tf.Variable(START, name="kernel"), tf.constant(WHOLE)
    with rt.Tape() as tape:
        opaque(variable, x * x)
        y = read_out(variable)
    for source in (x, tape.at(variable, 0)):
        with pytest.raises(errors.OpaqueUpdateError, match=r"runs through ResourceApplyFtrl .*changes 'kernel:0'"):
            tape.gradient(y, source, through_updates=True)


def test_opaque_update_does_not_matter_elsewhere(opaque: Callable):
    variable, x, z = tf.Variable(START), tf.constant(WHOLE), tf.constant(WHOLE)
    with rt.Tape() as tape:
        before = tf.reduce_sum(variable * x)
        opaque(variable, x * x)
        y = tf.reduce_sum(variable * z)
        mixed = before + y
    np.testing.assert_array_equal(tape.gradient(before, x, through_updates=True), START)
    np.testing.assert_array_equal(tape.gradient(y, z, through_updates=True), variable.numpy())
    np.testing.assert_array_equal(tape.gradient(y, tape.at(variable, -1)), WHOLE)
    np.testing.assert_array_equal(tape.gradient(mixed, variable), 2 * WHOLE)  # TensorFlow's meaning
    np.testing.assert_array_equal(tape.gradient(mixed, x), START)
    np.testing.assert_array_equal(tape.gradient(mixed, z, through_updates=True), variable.numpy())
    np.testing.assert_array_equal(tape.gradient(y, variable, through_updates=True, since=1), WHOLE)


# ------------------------------------------------------------------ versions and at


def powers(count: int, factor: float = 2.0, start: float = 3.0) -> tuple[rt.Tape, tf.Variable, tf.Tensor, tf.Tensor]:
    """Record v ← a v, `count` times, and y = v²."""
    variable, a = tf.Variable(start, dtype=tf.float64), tf.constant(factor, tf.float64)
    with rt.Tape() as tape:
        for _ in range(count):
            variable.assign(a * variable)
        y = variable * variable
    return tape, variable, a, y


def test_versions_are_all_values_in_order():
    tape, variable, _, _ = powers(4)
    versions = tape.versions(variable)
    assert [float(version.value) for version in versions] == [3.0, 6.0, 12.0, 24.0, 48.0]
    assert [version.number for version in versions] == [0, 1, 2, 3, 4]
    assert all(version.variable is variable and version.count == 5 for version in versions)
    assert versions[0].dtype == tf.float64
    assert versions[0].shape == []
    assert repr(versions[2]) == f"<{variable.name}, value 2 of 0 to 4>"


@pytest.mark.parametrize("k", range(-5, 5))
def test_at_counts_from_either_end(k: int):
    tape, variable, _, y = powers(4)
    version = tape.at(variable, k)
    number = k % 5
    assert version.number == number
    assert float(version.value) == 3.0 * 2.0**number
    # y = (a^(4 - k) v_k)²
    assert float(tape.gradient(y, version)) == 2 * 2.0 ** (2 * (4 - number)) * 3.0 * 2.0**number


@pytest.mark.parametrize("k", [5, -6, 100])
def test_at_out_of_range(k: int):
    tape, variable, _, _ = powers(4)
    with pytest.raises(IndexError, match=rf"had 5 values on this tape, numbered 0 to 4; got {k}\."):
        tape.at(variable, k)


def test_versions_of_a_variable_that_took_no_part():
    tape, _, _, _ = powers(1)
    with pytest.raises(errors.NotRecordedError, match=r"'other:0'.*no op read or assigned it while recording"):
        tape.versions(tf.Variable(1.0, name="other"))
    with pytest.raises(errors.NotRecordedError):
        tape.at(tf.constant(1.0), 0)


@pytest.mark.parametrize("keep", ["needed", "all", "leaves"])
def test_value_that_nobody_read_before_it_was_changed(keep: str):
    variable, x = tf.Variable(3.0), tf.constant(5.0)
    with rt.Tape(keep=keep) as tape:
        variable.assign(x * x)
        variable.assign_add(x)
        y = variable * variable
    assert [float(version.value) for version in tape.versions(variable)] == [3.0, 25.0, 30.0]
    assert float(tape.gradient(y, x, through_updates=True)) == 2 * 30 * 11


# ------------------------------------------------------------------ since


@pytest.mark.parametrize("since", range(5))
def test_since_cuts_what_came_before(since: int):
    tape, variable, a, y = powers(4)
    by_v, by_a = tape.gradient(y, [variable, a], through_updates=True, since=since)
    left, start = 4 - since, 3.0 * 2.0**since
    # From value number `since` on: y = a^(2 left) start²
    assert float(by_v) == 2 * 2.0 ** (2 * left) * start
    if left:
        assert float(by_a) == 2 * left * 2.0 ** (2 * left - 1) * start**2
    else:
        assert by_a is None  # nothing is left of the path


@pytest.mark.parametrize("since", [-1, -2, -4])
def test_since_from_the_end_counts_updates(since: int):
    tape, variable, a, y = powers(4)
    found = tape.gradient(y, [variable, a], through_updates=True, since=since)
    wanted = tape.gradient(y, [variable, a], through_updates=True, since=4 + since)
    assert [float(g) for g in found] == [float(w) for w in wanted]


def test_since_beyond_either_end_is_the_end():
    tape, variable, a, y = powers(4)
    all_of_it = tape.gradient(y, [variable, a], through_updates=True)
    assert [float(g) for g in tape.gradient(y, [variable, a], through_updates=True, since=-50)] == [
        float(g) for g in all_of_it
    ]
    assert float(tape.gradient(y, variable, through_updates=True, since=50)) == 2 * 48.0


def test_since_without_through_updates():
    tape, variable, _, y = powers(2)
    with pytest.raises(ValueError, match=r"give through_updates=True with it"):
        tape.gradient(y, variable, since=1)


def test_since_holds_for_each_variable():
    v, w = tf.Variable(2.0), tf.Variable(3.0)
    with rt.Tape() as tape:
        for _ in range(3):
            v.assign(v * w)
            w.assign(w * w)
        y = v * w
    # From the second values on: v₁ = 6, w₁ = 9; y = (v₁ w₁ w₁²) (w₁⁴) = v₁ w₁⁷
    by_v, by_w = tape.gradient(y, [v, w], through_updates=True, since=1)
    np.testing.assert_allclose([float(by_v), float(by_w)], [9.0**7, 6.0 * 7 * 9.0**6], rtol=1e-6)


# ------------------------------------------------------------------ what a plain variable means


def test_plain_variable_means_what_it_means_in_tensorflow():
    def record(tape: Any) -> tuple:
        variable, x = tf.Variable(2.0), tf.constant(3.0)
        with tape:
            tape.watch(x)
            first = variable * x
            variable.assign(variable * x)
            second = variable * variable * x
            variable.assign_add(x)
            y = first + second + variable
        return tape, y, [variable, x]

    stock, y, sources = record(tf.GradientTape())
    ours, z, own = record(rt.Tape())
    wanted = [float(g) for g in stock.gradient(y, sources)]
    assert [float(g) for g in ours.gradient(z, own)] == wanted
    assert [float(ours.gradient(z, source)) for source in own] == wanted


def test_plain_variable_that_a_function_assigns():
    def record(tape: Any) -> tuple:
        variable, x = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])

        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            before = variable * x
            variable.assign_add(x)
            return before + variable**2

        with tape:
            tape.watch(x)
            y = step(x) + variable * x
        return tape, y, [variable, x]

    stock, y, sources = record(tf.GradientTape())
    ours, z, own = record(rt.Tape())
    for wanted, found in zip(stock.gradient(y, sources), ours.gradient(z, own), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_none_and_zero_through_updates():
    variable, x = tf.Variable(2.0), tf.constant(3.0)
    with rt.Tape() as tape:
        before = variable * 1.0
        variable.assign(5.0)
        y = variable * x
        zero = variable * 0.0
    assert tape.gradient(y, tape.at(variable, 0)) is None
    assert tape.gradient(y, variable, through_updates=True) is None
    assert float(tape.gradient(before, tape.at(variable, 0))) == 1.0
    assert tape.gradient(before, tape.at(variable, 1)) is None
    assert float(tape.gradient(zero, tape.at(variable, 1))) == 0.0
    zeros = tape.gradient(y, tape.at(variable, 0), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert float(zeros) == 0.0


def test_value_from_numpy_ends_the_path():
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 2))
    x = tf.constant([[1.0, 2.0]])
    with rt.Tape() as tape:
        layer.set_weights([np.array([[3.0], [4.0]], np.float32)])
        y = layer(x)
    assert tape.gradient(y, tape.at(layer.kernel, 0)) is None
    np.testing.assert_array_equal(tape.gradient(y, tape.at(layer.kernel, -1)), [[1.0], [2.0]])
    np.testing.assert_array_equal(tape.gradient(y, x, through_updates=True), [[3.0, 4.0]])


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_keras_variable(method: str):
    variable, x = keras.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
    with rt.Tape() as tape:
        getattr(variable, method)(x * variable)
        y = tf.reduce_sum(variable * variable)
    new, slope = {
        "assign": ([3.0, 8.0], [3.0, 4.0]),
        "assign_add": ([4.0, 10.0], [4.0, 5.0]),
        "assign_sub": ([-2.0, -6.0], [-2.0, -3.0]),
    }[method]
    np.testing.assert_array_equal(tape.versions(variable)[-1].numpy(), new)
    wanted = 2 * np.array(new) * np.array(slope)
    np.testing.assert_array_equal(tape.gradient(y, tape.at(variable, 0)), wanted)
    np.testing.assert_array_equal(tape.gradient(y, variable, through_updates=True), wanted)
    np.testing.assert_array_equal(tape.gradient(y, variable), 2 * np.array(new))


# ------------------------------------------------------------------ laws


def test_sources_together_and_one_by_one():
    v, w, x = tf.Variable(2.0), tf.Variable([1.0, 4.0]), tf.constant([3.0, 0.5])
    with rt.Tape() as tape:
        inside = v * x
        v.assign_add(tf.reduce_sum(inside * w))
        w.scatter_mul(tf.IndexedSlices(v * x[:1], tf.constant([1])))
        y = tf.reduce_sum(w * inside) * v
    sources = [v, tape.at(v, 0), x, tape.at(w, 0), w, inside, tape.at(v, -1), tape.at(w, 1), v, x]
    for options in ({}, {"through_updates": True}, {"through_updates": True, "since": 1}):
        together = tape.gradient(y, sources, **options)
        for source, grad in zip(sources, together, strict=True):
            alone = tape.gradient(y, source, **options)
            assert (alone is None) == (grad is None)
            if grad is not None:
                np.testing.assert_array_equal(dense(alone), dense(grad))
    # The plain and the versioned source of one variable are different questions: the law must tell them apart.
    plain, entry = tape.gradient(y, [v, tape.at(v, 0)])
    assert float(plain) != float(entry)


def test_entry_value_is_the_sum_over_all_paths():
    v, x = tf.Variable(2.0), tf.constant(3.0)
    with rt.Tape() as tape:
        early = v * v
        v.assign(v * x)
        y = early + v * v * v
    # y = v² + v³ x³
    assert float(tape.gradient(y, tape.at(v, 0))) == 2 * 2 + 3 * 4 * 27
    assert float(tape.gradient(y, v)) == 2 * 2 + 3 * 36
    assert float(tape.gradient(y, tape.at(v, 1))) == 3 * 36
    assert float(tape.gradient(y, x, through_updates=True)) == 3 * 8 * 9
    assert tape.gradient(y, x) is None


@pytest.mark.parametrize("keep", ["needed", "all", "leaves"])
def test_values_are_those_recorded(keep: str):
    v, x = tf.Variable([2.0, 5.0]), tf.constant([3.0, 7.0])
    f = tf.function(lambda x: v.assign(tf.nn.silu(v) * x))
    with rt.Tape(keep=keep) as tape:
        v.assign(tf.sin(v) * x)
        f(x)
        y = tf.reduce_sum(v * v * x)

    def answers() -> list:
        sources = [v, tape.at(v, 0), tape.at(v, 1), x]
        return [dense(g) for g in tape.gradient(y, sources)] + [tape.hvp(y, x, x, through_updates=True).numpy()]

    first = answers()
    v.assign([100.0, -100.0])
    for before, after in zip(first, answers(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert [version.number for version in tape.versions(v)] == [0, 1, 2]


def test_values_are_those_recorded_where_nobody_asked_before():
    v, x = tf.Variable(2.0), tf.constant(3.0)
    with rt.Tape(keep="leaves") as tape:
        v.assign_add(v * x)
        y = v * v
    v.assign(1000.0)
    assert float(tape.gradient(y, tape.at(v, 0))) == 2 * 8 * 4
    assert [float(version.value) for version in tape.versions(v)] == [2.0, 8.0]


def test_updates_on_a_tape_entered_again():
    v, x = tf.Variable(2.0), tf.constant(3.0)
    tape = rt.Tape()
    with tape:
        v.assign(v * x)
    with tape:
        y = v * v
    assert float(tape.gradient(y, tape.at(v, 0))) == 2 * 6 * 3


def test_update_outside_the_block_is_not_hidden():
    # Between the blocks the value changed without the tape: what follows does not depend on what was before.
    v = tf.Variable(2.0)
    tape = rt.Tape()
    with tape:
        early = v * 3.0
    v.assign(10.0)
    with tape:
        y = v * v
    assert float(tape.gradient(early, v)) == 3.0
    assert float(tape.gradient(y, v)) == 20.0
    with pytest.raises(errors.UnseenUpdateError, match="assigned while this tape was not recording"):
        tape.gradient(y, v, through_updates=True)


def test_updates_inside_a_function():
    v = tf.Variable(2.0)

    @tf.function
    def f(x: tf.Tensor) -> list:
        with rt.Tape() as tape:
            v.assign(v * x)
            v.assign_add(x)
            y = v * v
        sources = [tape.at(v, 0), x, tape.at(v, 1)]
        return tape.gradient(y, sources, through_updates=True), tape.gradient(y, v)

    (by_entry, by_x, by_middle), plain = f(tf.constant(3.0))
    # y = (v x + x)²
    assert [float(by_entry), float(by_x), float(by_middle), float(plain)] == [2 * 9 * 3, 2 * 9 * 3, 18.0, 18.0]


def test_jacobian_and_jvp_through_updates():
    v, x = tf.Variable([2.0, 5.0]), tf.constant([3.0, 7.0])
    with rt.Tape() as tape:
        v.assign(v * x)
        y = v * v[::-1]
    jacobian = tape.jacobian(y, x, through_updates=True).numpy()
    # y₀ = y₁ = 10 x₀ x₁
    np.testing.assert_allclose(jacobian, [[70.0, 30.0], [70.0, 30.0]])
    tangent = tf.constant([0.5, -2.0])
    np.testing.assert_allclose(tape.jvp(y, x, tangent, through_updates=True), jacobian @ tangent.numpy())
