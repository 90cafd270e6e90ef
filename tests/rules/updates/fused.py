"""Steps of optimizers that TensorFlow does in one op, dense and sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import retrotape as rt
from rules.updates.tools import START, WHOLE, Arrays, differences, or_zeros, read_out


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


def check_apply(step: Apply, wrap: Callable[[Callable], Callable] = lambda call: call) -> None:
    """Compare values that are computed again with those of the step, and derivatives with central differences."""
    values = step.values()
    variables, tensors = step.split(values)
    call = wrap(lambda tensors: step.call(variables, tensors))
    with rt.Tape(keep="leaves") as tape:
        y = call(tensors)
    for name, variable in variables.items():
        recomputed = tape.versions(variable)[-1].numpy()
        np.testing.assert_allclose(recomputed, variable.numpy(), rtol=1e-12, err_msg=name)
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
