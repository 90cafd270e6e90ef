"""TensorFlow's fused optimizer steps as functions of values: each returns the new values of its variables.

Keras 3 does not use them, but `tf.raw_ops`, `tf.compat.v1.train` and older code do. The sparse forms change the
rows `at`, and are implemented as the dense form on those rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retrotape._types import Tensor
from retrotape.tf.core import tf

Values = tuple[Tensor, ...]
Attrs = Mapping[str, Any]


def _descent(attrs: Attrs, var: Tensor, rate: Tensor, delta: Tensor) -> Values:
    return (var - rate * delta,)


def _proximal_descent(attrs: Attrs, var: Tensor, rate: Tensor, l1: Tensor, l2: Tensor, delta: Tensor) -> Values:
    return (_shrink(var - rate * delta, rate * l1, rate * l2),)


def _shrink(value: Tensor, l1: Tensor, l2: Tensor) -> Tensor:
    return tf.sign(value) * tf.maximum(tf.abs(value) - l1, 0) / (1 + l2)


def _momentum(attrs: Attrs, var: Tensor, acc: Tensor, rate: Tensor, grad: Tensor, momentum: Tensor) -> Values:
    acc = momentum * acc + grad
    step = rate * grad + rate * momentum * acc if attrs.get("use_nesterov") else rate * acc
    return var - step, acc


def _keras_momentum(attrs: Attrs, var: Tensor, acc: Tensor, rate: Tensor, grad: Tensor, momentum: Tensor) -> Values:
    acc = momentum * acc - rate * grad
    return var + (momentum * acc - rate * grad if attrs.get("use_nesterov") else acc), acc


def _adam(attrs: Attrs, var: Tensor, m: Tensor, v: Tensor, power1: Tensor, power2: Tensor, *rest: Tensor) -> Values:
    rate, beta1, beta2, epsilon, grad = rest
    m = m + (grad - m) * (1 - beta1)
    v = v + (tf.square(grad) - v) * (1 - beta2)
    step = m * beta1 + grad * (1 - beta1) if attrs.get("use_nesterov") else m
    return var - rate * tf.sqrt(1 - power2) / (1 - power1) * step / (tf.sqrt(v) + epsilon), m, v


def _amsgrad(
    attrs: Attrs,
    var: Tensor,
    m: Tensor,
    v: Tensor,
    top: Tensor,
    power1: Tensor,
    power2: Tensor,
    *rest: Tensor,
) -> Values:
    rate, beta1, beta2, epsilon, grad = rest
    m = m + (grad - m) * (1 - beta1)
    v = v + (tf.square(grad) - v) * (1 - beta2)
    top = tf.maximum(top, v)
    return var - rate * tf.sqrt(1 - power2) / (1 - power1) * m / (tf.sqrt(top) + epsilon), m, v, top


def _adamax(attrs: Attrs, var: Tensor, m: Tensor, v: Tensor, power1: Tensor, *rest: Tensor) -> Values:
    rate, beta1, beta2, epsilon, grad = rest
    m = m + (grad - m) * (1 - beta1)
    v = tf.maximum(beta2 * v, tf.abs(grad))
    return var - rate / (1 - power1) * m / (v + epsilon), m, v


def _adagrad(attrs: Attrs, var: Tensor, acc: Tensor, rate: Tensor, grad: Tensor) -> Values:
    acc = acc + tf.square(grad) if attrs.get("update_slots", True) else acc
    return var - rate * grad * tf.math.rsqrt(acc), acc


def _adagrad_v2(attrs: Attrs, var: Tensor, acc: Tensor, rate: Tensor, epsilon: Tensor, grad: Tensor) -> Values:
    acc = acc + tf.square(grad) if attrs.get("update_slots", True) else acc
    return var - rate * grad / (tf.sqrt(acc) + epsilon), acc


def _adadelta(attrs: Attrs, var: Tensor, acc: Tensor, moved: Tensor, *rest: Tensor) -> Values:
    rate, rho, epsilon, grad = rest
    acc = rho * acc + (1 - rho) * tf.square(grad)
    step = tf.sqrt(moved + epsilon) * tf.math.rsqrt(acc + epsilon) * grad
    return var - rate * step, acc, rho * moved + (1 - rho) * tf.square(step)


def _rmsprop(attrs: Attrs, var: Tensor, ms: Tensor, mom: Tensor, *rest: Tensor) -> Values:
    rate, rho, momentum, epsilon, grad = rest
    ms = ms + (tf.square(grad) - ms) * (1 - rho)
    mom = momentum * mom + rate * grad * tf.math.rsqrt(ms + epsilon)
    return var - mom, ms, mom


def _centered_rmsprop(attrs: Attrs, var: Tensor, mg: Tensor, ms: Tensor, mom: Tensor, *rest: Tensor) -> Values:
    rate, rho, momentum, epsilon, grad = rest
    ms = ms + (tf.square(grad) - ms) * (1 - rho)
    mg = mg + (grad - mg) * (1 - rho)
    mom = momentum * mom + rate * grad * tf.math.rsqrt(ms - tf.square(mg) + epsilon)
    return var - mom, mg, ms, mom


def _signed(weight: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Values]:
    """Return a step that weighs the gradient by whether it agrees in sign with its running mean."""

    def step(attrs: Attrs, var: Tensor, m: Tensor, rate: Tensor, base: Tensor, decay: Tensor, *rest: Tensor) -> Values:
        beta, grad = rest
        m = beta * m + (1 - beta) * grad
        return var - rate * weight(base, decay * tf.sign(grad) * tf.sign(m)) * grad, m

    return step


def _proximal_adagrad(attrs: Attrs, var: Tensor, acc: Tensor, *rest: Tensor) -> Values:
    rate, l1, l2, grad = rest
    acc = acc + tf.square(grad)
    rate = rate * tf.math.rsqrt(acc)
    return _shrink(var - rate * grad, rate * l1, rate * l2), acc


def _ftrl(attrs: Attrs, var: Tensor, acc: Tensor, linear: Tensor, *rest: Tensor) -> Values:
    grad, rate, l1, l2, power = rest
    return _ftrl_v2(attrs, var, acc, linear, grad, rate, l1, l2, tf.zeros_like(l2), power)


def _ftrl_v2(attrs: Attrs, var: Tensor, acc: Tensor, linear: Tensor, *rest: Tensor) -> Values:
    grad, rate, l1, l2, shrinkage, power = rest
    if attrs.get("multiply_linear_by_lr"):
        raise NotImplementedError("FTRL with multiply_linear_by_lr=True has no derivative rule; leave it at False.")
    total = acc + tf.square(grad)
    linear = linear + grad + 2 * shrinkage * var - (total**-power - acc**-power) / rate * var
    bent = (tf.sign(linear) * l1 - linear) / (total**-power / rate + 2 * l2)
    return tf.where(tf.abs(linear) > l1, bent, tf.zeros_like(bent)), total, linear


def _sparse(step: Callable[..., Values], slots: int) -> Callable[..., Values]:
    """Return the form that changes the rows `at`: variables first, then hyper-parameters, gradient, rows.

    TensorFlow updates row by row, so a row that is listed twice is changed twice.
    """

    def forward(attrs: Attrs, *operands: Tensor) -> Values:
        variables, (*rest, at) = operands[:slots], operands[slots:]
        position = next(index for index, operand in enumerate(rest) if operand.shape.rank)
        if tf.executing_eagerly() and len(tf.unique(at).y) == len(at):
            pieces = [(rest, at)]
        else:
            pieces = [
                ([*rest[:position], rest[position][row : row + 1], *rest[position + 1 :]], at[row : row + 1])
                for row in range(at.shape[0])
            ]
        for arguments, rows in pieces:
            changed = step(attrs, *(tf.gather(variable, rows) for variable in variables), *arguments)
            where = rows[..., tf.newaxis]
            variables = tuple(
                tf.tensor_scatter_nd_update(old, where, new) for old, new in zip(variables, changed, strict=True)
            )
        return variables

    return forward


def _sparse_momentum(step: Callable[..., Values]) -> Callable[..., Values]:
    """Like `_sparse`, for the two ops that take the rows before the momentum."""

    def forward(attrs: Attrs, var: Tensor, acc: Tensor, rate: Tensor, grad: Tensor, at: Tensor, mom: Tensor) -> Values:
        return _sparse(step, 2)(attrs, var, acc, rate, grad, mom, at)

    return forward


APPLY: dict[str, Callable[..., Values]] = {
    "ResourceApplyGradientDescent": _descent,
    "ResourceApplyProximalGradientDescent": _proximal_descent,
    "ResourceApplyMomentum": _momentum,
    "ResourceApplyKerasMomentum": _keras_momentum,
    "ResourceApplyAdam": _adam,
    "ResourceApplyAdamWithAmsgrad": _amsgrad,
    "ResourceApplyAdaMax": _adamax,
    "ResourceApplyAdagrad": _adagrad,
    "ResourceApplyAdagradV2": _adagrad_v2,
    "ResourceApplyAdadelta": _adadelta,
    "ResourceApplyRMSProp": _rmsprop,
    "ResourceApplyCenteredRMSProp": _centered_rmsprop,
    "ResourceApplyAddSign": _signed(lambda base, agreement: base + agreement),
    "ResourceApplyPowerSign": _signed(lambda base, agreement: tf.exp(base * agreement)),
    "ResourceApplyProximalAdagrad": _proximal_adagrad,
    "ResourceApplyFtrl": _ftrl,
    "ResourceApplyFtrlV2": _ftrl_v2,
    "ResourceSparseApplyMomentum": _sparse_momentum(_momentum),
    "ResourceSparseApplyKerasMomentum": _sparse_momentum(_keras_momentum),
    "ResourceSparseApplyAdagrad": _sparse(_adagrad, 2),
    "ResourceSparseApplyAdagradV2": _sparse(_adagrad_v2, 2),
    "ResourceSparseApplyAdadelta": _sparse(_adadelta, 3),
    "ResourceSparseApplyRMSProp": _sparse(_rmsprop, 3),
    "ResourceSparseApplyCenteredRMSProp": _sparse(_centered_rmsprop, 4),
}
