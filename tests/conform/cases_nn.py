"""Convolutions, pooling, normalisation, activations, losses, images, and keras.ops."""

from __future__ import annotations

import keras
import tensorflow as tf

from conform.table import Case, Random, apart, case, normal, positive, simple

CASES: list[Case] = []
nn = tf.nn

CASES += [
    simple("conv1d", lambda x, k: nn.conv1d(x, k, 2, "SAME"), normal(2, 6, 2), normal(3, 2, 3)),
    simple("conv2d", lambda x, k: nn.conv2d(x, k, 1, "VALID"), normal(2, 5, 5, 2), normal(3, 3, 2, 3)),
    simple("conv2d_strided", lambda x, k: nn.conv2d(x, k, 2, "SAME"), normal(1, 5, 5, 2), normal(3, 3, 2, 2)),
    simple(
        "depthwise_dilated",
        lambda x, k: nn.depthwise_conv2d(x, k, [1] * 4, "SAME", dilations=[2, 2]),
        normal(1, 6, 6, 1),
        normal(3, 3, 1, 2),
    ),
    simple(
        "conv2d_explicit",
        lambda x, k: nn.conv2d(x, k, 1, [[0, 0], [1, 0], [0, 2], [0, 0]]),
        normal(1, 4, 4, 1),
        normal(2, 2, 1, 1),
    ),
    simple("conv3d", lambda x, k: nn.conv3d(x, k, [1] * 5, "SAME"), normal(1, 3, 4, 3, 2), normal(2, 2, 2, 2, 2)),
    simple(
        "conv2d_transpose",
        lambda x, k: nn.conv2d_transpose(x, k, [1, 6, 6, 2], 2),
        normal(1, 3, 3, 3),
        normal(3, 3, 2, 3),
    ),
    simple(
        "depthwise_conv2d",
        lambda x, k: nn.depthwise_conv2d(x, k, [1] * 4, "SAME"),
        normal(1, 4, 4, 2),
        normal(2, 2, 2, 3),
    ),
    simple(
        "separable_conv2d",
        lambda x, d, p: nn.separable_conv2d(x, d, p, [1] * 4, "VALID"),
        normal(1, 4, 4, 2),
        normal(2, 2, 2, 1),
        normal(1, 1, 2, 3),
    ),
    simple(
        "dilation2d",
        lambda x, k: nn.dilation2d(x, k, [1] * 4, "SAME", "NHWC", [1] * 4),
        apart(1, 4, 4, 1),
        normal(2, 2, 1),
    ),
    simple("max_pool", lambda x: nn.max_pool2d(x, 2, 2, "VALID") ** 2, apart(1, 4, 4, 2)),
    simple("avg_pool", lambda x: nn.avg_pool2d(x, 3, 2, "SAME") ** 2, normal(1, 5, 5, 2)),
    simple(
        "pool3d",
        lambda x: nn.max_pool3d(x, 2, 2, "SAME") + nn.avg_pool3d(x, 2, 2, "SAME"),
        apart(1, 4, 4, 4, 1),
    ),
    simple("max_pool_with_argmax", lambda x: nn.max_pool_with_argmax(x, 2, 2, "VALID")[0] ** 2, apart(1, 4, 4, 1)),
    simple("fractional_max_pool", lambda x: nn.fractional_max_pool(x, 1.5, seed=3)[0] ** 2, apart(1, 6, 6, 1)),
    simple("bias_add", nn.bias_add, normal(2, 3), normal(3)),
    simple(
        "relu_family",
        lambda x: nn.relu(x) + nn.relu6(3.0 * x) + nn.leaky_relu(x) + nn.crelu(x)[..., :3],
        normal(4, 3),
    ),
    simple("elu_selu", lambda x: nn.elu(x) * nn.selu(x), normal(5)),
    simple("gelu_both", lambda x: nn.gelu(x) + nn.gelu(x, approximate=True), normal(5)),
    simple("silu", lambda x: nn.silu(x) * nn.silu(x, beta=2.0), normal(5)),
    simple("softsign", lambda x: nn.softsign(x) ** 2, normal(5)),
    simple("softmax", lambda x: nn.softmax(x, -1), normal(2, 4)),
    simple("softmax_axis", lambda x: nn.softmax(x, 1) * nn.log_softmax(x, 0), normal(2, 4, 2)),
    simple(
        "softmax_cross_entropy",
        lambda z, y: nn.softmax_cross_entropy_with_logits(nn.softmax(y), z),
        normal(3, 4),
        normal(3, 4),
    ),
    simple(
        "sparse_softmax_cross_entropy",
        lambda z: nn.sparse_softmax_cross_entropy_with_logits([1, 0, 3], z),
        normal(3, 4),
    ),
    simple(
        "sigmoid_cross_entropy",
        lambda z, y: nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(y), z),
        normal(5),
        normal(5),
    ),
    simple(
        "weighted_cross_entropy",
        lambda z: nn.weighted_cross_entropy_with_logits([0.0, 1.0], z, 3.0),
        normal(2),
    ),
    simple("log_poisson_loss", lambda z: nn.log_poisson_loss([1.0, 2.0, 3.0], z), normal(3)),
    simple("l2_loss", nn.l2_loss, normal(3, 2)),
    simple("moments", lambda x: nn.moments(x, [0])[0] * nn.moments(x, [0])[1], normal(4, 3)),
    simple(
        "batch_normalization_op",
        lambda x, s, o: nn.batch_normalization(x, *nn.moments(x, [0]), o, s, 1e-3),
        normal(5, 3),
        positive(3),
        normal(3),
    ),
    simple("local_response_normalization", nn.local_response_normalization, normal(1, 2, 2, 8)),
    simple("dropout_op", lambda x: nn.dropout(x, 0.4) ** 2, normal(6, 4)),
    simple(
        "stateless_dropout_op",
        lambda x: nn.experimental.stateless_dropout(x, 0.4, seed=[1, 2]) ** 2,
        normal(6, 4),
    ),
]


def _fused(training: bool):
    def run(x, scale, offset, mean, variance):
        normed = tf.compat.v1.nn.fused_batch_norm(
            x, scale, offset, *(() if training else (mean, variance)), is_training=training
        )
        return normed[0] ** 2

    return run


_FUSED = (normal(2, 3, 3, 2), positive(2), normal(2), normal(2), positive(2))
CASES += [
    simple("fused_batch_norm_training", _fused(True), *_FUSED),
    simple("fused_batch_norm_inference", _fused(False), *_FUSED),
]


@case(CASES)
def _ctc_loss(rng: Random):
    def run(logits):
        return nn.ctc_loss([[1, 2], [2, 1]], logits, [2, 1], [5, 4], logits_time_major=False, blank_index=0)

    return run, [normal(2, 5, 4)(rng)]


@case(CASES)
def _ctc_loss_sparse_labels(rng: Random):
    def run(logits):
        labels = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], tf.constant([1, 2, 2], tf.int32), [2, 2])
        return nn.ctc_loss(labels, logits, None, [5, 4], blank_index=-1)

    return run, [normal(5, 2, 4)(rng)]


def _resize(method: str):
    return lambda x: tf.image.resize(x, [5, 3], method=method) ** 2


CASES += [simple(f"resize_{m}", _resize(m), normal(1, 3, 4, 2)) for m in ("bilinear", "nearest", "bicubic")]
CASES += [
    simple("resize_antialias", lambda x: tf.image.resize(x, [2, 2], antialias=True) ** 2, normal(1, 5, 5, 1)),
    simple(
        "crop_and_resize",
        lambda x, b: tf.image.crop_and_resize(x, b * 0.5, [0, 0], [3, 3]),
        normal(1, 4, 4, 1),
        positive(2, 4),
    ),
    simple(
        "adjust_image",
        lambda x: tf.image.adjust_brightness(tf.image.flip_left_right(x), 1.5) ** 2,
        normal(1, 3, 3, 3),
    ),
    simple("rgb_hsv", lambda x: tf.image.rgb_to_grayscale(tf.image.central_crop(x, 0.5)) ** 2, positive(4, 4, 3)),
    simple(
        "ssim",
        lambda x, y: tf.image.ssim(x, y, 1.0, filter_size=3),
        positive(1, 6, 6, 1),
        positive(1, 6, 6, 1),
    ),
    simple("total_variation", tf.image.total_variation, apart(1, 4, 4, 1)),
]

ops = keras.ops
CASES += [
    simple("keras_silu_gelu", lambda x: ops.silu(x) + ops.gelu(x) + ops.hard_silu(x) + ops.celu(x), normal(2, 3)),
    simple("keras_softmax", lambda x: ops.softmax(x, axis=0) * ops.log_softmax(x, axis=-1), normal(2, 3)),
    simple("keras_sparsemax", lambda x: ops.sparsemax(x), normal(2, 4)),
    simple("keras_logsumexp", lambda x: ops.logsumexp(x, axis=1), normal(2, 3)),
    simple("keras_einsum", lambda a, b: ops.einsum("ij,kj->ik", a, b), normal(2, 3), normal(4, 3)),
    simple(
        "keras_conv",
        lambda x, k: ops.conv(x, k, strides=1, padding="same"),
        normal(1, 4, 4, 2),
        normal(3, 3, 2, 2),
    ),
    simple("keras_pools", lambda x: ops.max_pool(x, 2) * ops.average_pool(x, 2), apart(1, 4, 4, 1)),
    simple(
        "keras_segment_sum",
        lambda x: ops.segment_sum(x, tf.constant([0, 0, 2]), num_segments=3) ** 2,
        normal(3, 2),
    ),
    simple("keras_take", lambda x: ops.take(x, [0, 2, 2], axis=0) ** 2, normal(3, 2)),
    simple("keras_take_along_axis", lambda x: ops.take_along_axis(x, [[1], [0]], axis=1) ** 2, normal(2, 3)),
    simple("keras_where_clip", lambda x: ops.where(x > 0, ops.clip(x, 0.0, 0.5), ops.square(x)), normal(8)),
    simple("keras_matmul_norm", lambda a, b: ops.norm(ops.matmul(a, b), axis=1), normal(2, 3), normal(3, 2)),
    simple("keras_scatter", lambda u: ops.scatter([[0], [2]], u, (3, 2)) ** 2, normal(2, 2)),
    simple("keras_scatter_update", lambda x, u: ops.scatter_update(x, [[1]], u) ** 2, normal(3, 2), normal(1, 2)),
    simple(
        "keras_logical_nan",
        lambda x: ops.nan_to_num(ops.log(x)) * ops.cast(ops.isfinite(x), "float32"),
        positive(4),
    ),
    simple("keras_binary_crossentropy", lambda x: ops.binary_crossentropy([0.0, 1.0], ops.sigmoid(x)), normal(2)),
    simple("keras_moments", lambda x: ops.moments(x, axes=[0])[1] + ops.var(x), normal(4, 2)),
    simple("keras_cond", lambda x: ops.cond(ops.sum(x) > 0, lambda: x**2, lambda: -x), positive(3)),
    simple("keras_scan", lambda x: ops.scan(lambda c, e: (c * e, c + e), ops.ones((2,)), x)[1], normal(3, 2)),
    simple("keras_fori_loop", lambda x: ops.fori_loop(0, 3, lambda i, c: ops.sin(c) * 2.0, x), normal(3)),
    simple("keras_vectorized_map", lambda x: ops.vectorized_map(lambda row: ops.sum(row**2), x), normal(3, 2)),
    simple("keras_image_resize", lambda x: ops.image.resize(x, (5, 5)) ** 2, normal(1, 3, 3, 1)),
    simple(
        "keras_dot_product_attention",
        lambda q, k: ops.dot_product_attention(q, k, k),
        normal(1, 3, 2, 4),
        normal(1, 3, 2, 4),
    ),
    simple("keras_stop_gradient", lambda x: ops.stop_gradient(x) * x, normal(3)),
]

losses = keras.losses
CASES += [
    simple(
        "loss_mse_mae",
        lambda x, y: losses.mean_squared_error(y, x) + losses.mean_absolute_error(y, x),
        normal(3, 2),
        normal(3, 2),
    ),
    simple(
        "loss_huber_logcosh",
        lambda x, y: losses.Huber()(y, x) + losses.LogCosh()(y, x),
        normal(3, 2),
        normal(3, 2),
    ),
    simple(
        "loss_categorical",
        lambda x: losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)(tf.one_hot([0, 2], 3), x),
        normal(2, 3),
    ),
    simple(
        "loss_sparse_categorical",
        lambda x: losses.SparseCategoricalCrossentropy()(tf.constant([0, 2]), nn.softmax(x)),
        normal(2, 3),
    ),
    simple(
        "loss_cosine_kld",
        lambda x: losses.CosineSimilarity()(tf.ones_like(x), x) + losses.KLDivergence()(nn.softmax(-x), nn.softmax(x)),
        normal(1, 2),
    ),
]
