"""The models of all workloads in plain TensorFlow, as functions of dictionaries of parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from workloads import data

Params = dict[str, Any]


class Model(NamedTuple):
    """Parameters, and a function of them that computes one loss, or several."""

    params: dict[str, tf.Variable]
    loss: Callable[[], Any]


def dense(p: Params, name: str, x: Any) -> Any:
    return tf.matmul(x, p[f"{name}/kernel"]) + p[f"{name}/bias"]


def squared_error(predicted: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.math.squared_difference(predicted, y))


def cross_entropy(logits: Any, labels: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


# ------------------------------------------------------------------ MLPs


def trunk(p: Params, x: Any) -> Any:
    for layer in range(data.DEPTH):
        x = tf.tanh(dense(p, f"layer{layer}", x))
    return x


def mlp(p: Params, x: Any, y: Any) -> Any:
    return squared_error(trunk(p, x), y)


def mlp_losses(p: Params, x: Any, y: Any) -> list[Any]:
    hidden = trunk(p, x)
    return [squared_error(dense(p, f"head{head}", hidden), y[head]) for head in range(data.HEADS)]


def hessian(p: Params, x: Any, y: Any) -> Any:
    w = p["w"]
    hidden = tf.tanh(tf.matmul(x, tf.reshape(w[:361], (19, 19))) + w[361:380])
    return squared_error(tf.matmul(hidden, tf.reshape(w[380:399], (19, 1))) + w[399:], y)


def small_loss(p: Params, x: Any, y: Any) -> Any:
    hidden = tf.tanh(dense(p, "layer1", tf.tanh(dense(p, "layer0", x))))
    return squared_error(dense(p, "layer2", hidden), y)


def sub_model(p: Params, number: int, x: Any, y: Any) -> Any:
    hidden = tf.tanh(dense(p, f"model{number}/inner", tf.tanh(tf.matmul(x, p["shared"]))))
    return squared_error(tf.matmul(hidden, p[f"model{number}/outer"]), y)


# ------------------------------------------------------------------ CNN


def conv(p: Params, name: str, x: Any, stride: int = 1) -> Any:
    pad = p[name].shape[0] // 2
    return tf.nn.conv2d(x, p[name], stride, [[0, 0], [pad, pad], [pad, pad], [0, 0]])


def batch_norm(p: Params, name: str, x: Any) -> Any:
    scale, shift = p[f"{name}/scale"], p[f"{name}/shift"]
    return tf.compat.v1.nn.fused_batch_norm(x, scale, shift, epsilon=data.EPSILON, is_training=True)[0]


def cnn(p: Params, x: Any, y: Any) -> Any:
    h = tf.nn.elu(batch_norm(p, "stem/norm", conv(p, "stem/conv", x)))
    for stage in range(len(data.STAGES)):
        for number in range(data.BLOCKS):
            name = f"stage{stage}/block{number}"
            shrinks = f"{name}/shortcut" in p
            stride = 2 if shrinks else 1
            inner = tf.nn.elu(batch_norm(p, f"{name}/norm0", conv(p, f"{name}/conv0", h, stride)))
            inner = batch_norm(p, f"{name}/norm1", conv(p, f"{name}/conv1", inner))
            h = tf.nn.elu(inner + (conv(p, f"{name}/shortcut", h, 2) if shrinks else h))
    return cross_entropy(dense(p, "top", tf.reduce_mean(h, (1, 2))), y)


# ------------------------------------------------------------------ Transformer


def layer_norm(p: Params, name: str, x: Any) -> Any:
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + data.EPSILON) * p[f"{name}/scale"] + p[f"{name}/shift"]


def attention(p: Params, name: str, x: Any, mask: Any, batch: int) -> Any:
    size = data.MODEL // data.ATTENTION_HEADS
    split = tf.reshape(dense(p, f"{name}/qkv", x), (batch, data.LENGTH, 3, data.ATTENTION_HEADS, size))
    query, key, value = tf.unstack(tf.transpose(split, (2, 0, 3, 1, 4)))
    weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) * size**-0.5 + mask)
    heads = tf.transpose(tf.matmul(weights, value), (0, 2, 1, 3))
    return dense(p, f"{name}/attended", tf.reshape(heads, (-1, data.MODEL)))


def encode(p: Params, x: Any, mask: Any) -> Any:
    batch = x.shape[0]
    h = tf.reshape(tf.gather(p["tokens"], x) + p["places"], (-1, data.MODEL))
    for layer in range(data.LAYERS):
        name = f"layer{layer}"
        h = h + attention(p, name, layer_norm(p, f"{name}/norm0", h), mask, batch)
        wide = tf.nn.gelu(dense(p, f"{name}/wide", layer_norm(p, f"{name}/norm1", h)), approximate=True)
        h = h + dense(p, f"{name}/narrow", wide)
    return layer_norm(p, "norm", h)


def transformer(p: Params, x: Any, y: Any, mask: Any) -> Any:
    return cross_entropy(dense(p, "top", encode(p, x, mask)), tf.reshape(y, (-1,)))


def transformer_losses(p: Params, x: Any, y: Any, mask: Any) -> list[Any]:
    hidden = encode(p, x, mask)
    return [cross_entropy(dense(p, f"head{k}", hidden), tf.reshape(y[k], (-1,))) for k in range(data.HEADS)]


LOSSES = {
    "mlp": mlp,
    "mlp_losses": mlp_losses,
    "hessian": hessian,
    "cnn": cnn,
    "transformer": transformer,
    "transformer_losses": transformer_losses,
}


def make(name: str, *args: int) -> Model:
    """Return a model with its parameters and its inputs."""
    params, inputs = getattr(data, name)(*args)
    variables = {key: tf.Variable(value, name=key) for key, value in params.items()}
    return Model(variables, partial(LOSSES[name], variables, **{key: tf.constant(v) for key, v in inputs.items()}))
