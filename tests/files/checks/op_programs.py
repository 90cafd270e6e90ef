"""Small honest programs that run ops which are hard to hit at random: convolutions, pools, sparse tensors, lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

RAW = tf.raw_ops
Programs = tuple[list[Callable[[Any], Any]], tuple[Any, ...]]
_rng = np.random.default_rng(7)


def f(*shape: int) -> tf.Tensor:
    return tf.constant(_rng.random(shape) + 0.1, tf.float32)


def sparse() -> tf.SparseTensor:
    return tf.SparseTensor([[0, 1], [1, 0], [2, 2]], f(3), [3, 4])


def _pools() -> Programs:
    image, volume = f(2, 6, 6, 3), f(1, 4, 4, 4, 2)
    return [
        *(
            lambda x, pool=pool, rank=rank, padding=padding: pool(x[rank], 2, 2, padding)
            for rank, pool in (
                (0, tf.nn.avg_pool2d),
                (0, tf.nn.max_pool2d),
                (1, tf.nn.avg_pool3d),
                (1, tf.nn.max_pool3d),
            )
            for padding in ("SAME", "VALID")
        ),
        lambda x: tf.nn.max_pool_with_argmax(x[0], 2, 2, "SAME")[0],
        lambda x: tf.nn.local_response_normalization(x[0]),
        lambda x: tf.image.extract_patches(x[0], [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME"),
        lambda x: tf.extract_volume_patches(x[1], [1, 2, 2, 2, 1], [1, 1, 1, 1, 1], "VALID"),
        lambda x: tf.image.adjust_hue(x[0], 0.1),
        lambda x: tf.image.adjust_saturation(x[0], 1.5),
        lambda x: tf.image.adjust_contrast(x[0], 1.5),
        lambda x: tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(x[0])),
        *(
            lambda x, how=how: tf.image.resize(x[0], [4, 5], how)
            for how in ("bilinear", "nearest", "area", "bicubic", "lanczos3")
        ),
        lambda x: tf.compat.v1.image.resize_bilinear(x[0], [3, 3], align_corners=True),
        lambda x: tf.compat.v1.image.resize_bicubic(x[0], [3, 3], align_corners=True),
        lambda x: tf.compat.v1.image.resize_nearest_neighbor(x[0], [3, 3], align_corners=True),
        lambda x: RAW.ScaleAndTranslate(images=x[0], size=[4, 4], scale=[1.0, 1.0], translation=[0.0, 0.0]),
        lambda x: tf.image.crop_and_resize(x[0], f(2, 4), [0, 1], [3, 3]),
        lambda x: tf.image.draw_bounding_boxes(x[0], f(2, 1, 4), f(1, 3)),
        lambda x: RAW.ImageProjectiveTransformV3(
            images=x[0], transforms=f(2, 8), output_shape=[3, 3], fill_value=0.0, interpolation="BILINEAR"
        ),
        lambda x: tf.compat.v1.nn.fused_batch_norm(x[0], f(3), f(3), is_training=True)[0],
        lambda x: tf.compat.v1.nn.fused_batch_norm(x[0], f(3), f(3), f(3), f(3), is_training=False)[0],
        lambda x: tf.nn.bias_add(x[0], f(3)),
        lambda x: tf.nn.space_to_depth(x[0], 2),
        lambda x: tf.nn.depth_to_space(f(1, 2, 2, 4), 2),
        lambda x: tf.space_to_batch_nd(x[0], [2, 2], [[0, 0], [0, 0]]),
        lambda x: tf.batch_to_space(f(4, 2, 2, 1), [2, 2], [[0, 0], [0, 1]]),
        lambda x: tf.pad(x[0], [[0, 0], [1, 1], [2, 2], [0, 0]], "REFLECT"),
        lambda x: tf.quantization.fake_quant_with_min_max_vars_per_channel(x[0], -f(3), f(3)),
        lambda x: tf.quantization.fake_quant_with_min_max_vars(x[0], -1.0, 1.0),
        lambda x: tf.quantization.fake_quant_with_min_max_args(x[0]),
        *(lambda x, c=c: c(x[0], x[1]) for c in _convolutions()),
    ], (image, volume)


def _convolutions() -> list[Callable[[Any, Any], Any]]:
    return [
        lambda x, v: tf.nn.conv2d(x, f(3, 3, 3, 4), 1, "SAME"),
        lambda x, v: tf.nn.conv2d(x, f(2, 2, 3, 4), 2, "VALID"),
        lambda x, v: tf.nn.conv2d(x, f(2, 2, 3, 4), 1, [[0, 0], [1, 0], [1, 2], [0, 0]]),
        lambda x, v: tf.nn.conv2d_transpose(f(2, 3, 3, 4), f(2, 2, 3, 4), [2, 6, 6, 3], 2),
        lambda x, v: tf.nn.depthwise_conv2d(x, f(2, 2, 3, 2), [1, 1, 1, 1], "SAME"),
        lambda x, v: tf.nn.dilation2d(x, f(2, 2, 3), [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),
        lambda x, v: tf.nn.conv3d(v, f(2, 2, 2, 2, 3), [1, 1, 1, 1, 1], "SAME"),
    ]


def _arrays() -> Programs:
    x, m = f(3, 4), f(2, 3, 3) + 2.0 * tf.eye(3)
    ids, at = tf.constant([0, 0, 1]), tf.constant([[0], [2]])
    segments = [getattr(tf.math, f"segment_{how}") for how in ("sum", "mean", "max", "min", "prod")]
    unsorted = [getattr(tf.math, f"unsorted_segment_{how}") for how in ("sum", "max", "min", "prod")]
    rows = [getattr(tf.sparse, f"segment_{how}") for how in ("sum", "mean", "sqrt_n")]
    scatters = [getattr(tf, f"tensor_scatter_nd_{how}") for how in ("add", "sub", "min", "max", "update")]
    return [
        *(lambda x, s=s: s(x[0], ids) for s in segments),
        *(lambda x, s=s: s(x[0], ids, 3) for s in unsorted),
        *(lambda x, s=s: s(x[0], [0, 2, 1], [0, 0, 1]) for s in rows),
        *(lambda x, s=s: s(x[0], [0, 2, 1], [0, 0, 1], num_segments=3) for s in rows),
        *(lambda x, s=s: s(x[0], at, f(2, 4)) for s in scatters),
        lambda x: tf.scatter_nd(at, f(2, 4), [3, 4]),
        lambda x: RAW.ScatterNdNonAliasingAdd(input=x[0], indices=at, updates=f(2, 4)),
        lambda x: tf.gather(x[0], [0, 2], axis=1),
        lambda x: tf.gather(x[1], [[0, 2], [1, 1]], batch_dims=1, axis=1),
        lambda x: tf.gather_nd(x[0], at),
        lambda x: tf.one_hot([0, 1, 2], 4) * x[0],
        lambda x: tf.tile(x[0], [2, 1]),
        lambda x: tf.concat([x[0], x[0]], 0),
        lambda x: tf.stack([x[0], x[0]]),
        lambda x: tf.stack(tf.split(x[0], [1, 3], 1)[1:]),
        lambda x: x[0][1:, ::2],
        lambda x: tf.slice(x[0], [0, 1], [2, 2]),
        lambda x: RAW.TensorStridedSliceUpdate(input=x[0], begin=[0], end=[2], strides=[1], value=f(2, 4)),
        lambda x: tf.reverse(x[0], [1]),
        lambda x: tf.reverse_sequence(x[0], [1, 2, 3], seq_axis=1),
        lambda x: tf.roll(x[0], 1, 0),
        lambda x: tf.transpose(x[0]),
        lambda x: tf.cumsum(x[0], 1, exclusive=True),
        lambda x: tf.math.cumprod(x[0], 1),
        lambda x: tf.math.cumulative_logsumexp(x[0], 1),
        lambda x: tf.linalg.band_part(x[1], 1, 0),
        lambda x: tf.linalg.diag(x[0]),
        lambda x: tf.linalg.diag_part(x[1], k=(-1, 1)),
        lambda x: tf.linalg.set_diag(x[1], x[1][:, 0]),
        lambda x: tf.linalg.cholesky(tf.matmul(x[1], x[1], transpose_b=True) + tf.eye(3)),
        *(lambda x, how=how: getattr(tf.linalg, how)(x[1]) for how in ("inv", "det")),
        lambda x: tf.linalg.qr(x[1])[0],
        lambda x: tf.linalg.svd(x[1])[0],
        lambda x: tf.linalg.eigh(x[1] + tf.transpose(x[1], [0, 2, 1]))[0],
        lambda x: tf.math.abs(tf.linalg.eig(x[1])[0]),
        lambda x: tf.linalg.lu(x[1])[0],
        lambda x: tf.linalg.slogdet(x[1])[1],
        lambda x: tf.linalg.solve(x[1], x[1]),
        lambda x: tf.linalg.lstsq(x[1], x[1], fast=False),
        lambda x: tf.linalg.triangular_solve(x[1], x[1]),
        lambda x: tf.linalg.sqrtm(x[1]),
        lambda x: tf.math.real(tf.linalg.logm(tf.cast(x[1], tf.complex64))),
        lambda x: tf.linalg.tridiagonal_solve(x[1], x[1][:, 0]),
        lambda x: tf.linalg.tridiagonal_matmul([x[1][:, i] for i in range(3)], x[1], diagonals_format="sequence"),
        lambda x: tf.linalg.cross(x[1], x[1]),
        lambda x: tf.einsum("bij,bjk->bik", x[1], x[1]),
        lambda x: RAW.BatchMatMulV3(x=x[1], y=x[1], Tout=tf.float32),
        lambda x: tf.boolean_mask(x[0], [True, False, True]),
        lambda x: tf.dynamic_stitch([[0, 2], [1]], tf.dynamic_partition(x[0], [0, 1, 0], 2)),
        lambda x: tf.math.top_k(x[0], 2)[0],
        lambda x: RAW.NthElement(input=x[0], n=1),
        lambda x: tf.nn.softmax_cross_entropy_with_logits(x[0], x[0]),
        lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1, 2], x[0]),
        lambda x: tf.nn.log_softmax(x[0]) + tf.nn.softmax(x[0]),
        lambda x: tf.clip_by_value(x[0], 0.2, 0.5),
        lambda x: RAW.Bucketize(input=x[0], boundaries=[0.2, 0.5]),
        lambda x: tf.math.betainc(x[0], x[0], x[0]),
        *(
            lambda x, name=name: tf.math.real(getattr(tf.signal, name)(tf.cast(f(4, 4, 4), tf.complex64)))
            for name in ("fft", "fft2d", "fft3d", "ifft", "ifft2d", "ifft3d")
        ),
        *(lambda x, name=name: tf.abs(getattr(tf.signal, name)(x[2])) for name in ("rfft", "rfft2d", "rfft3d")),
        *(
            lambda x, n=n: getattr(tf.signal, f"i{n}")(getattr(tf.signal, n)(x[2]))
            for n in ("rfft", "rfft2d", "rfft3d")
        ),
        lambda x: tf.sparse.to_dense(tf.sparse.add(sparse(), sparse())),
        lambda x: tf.sparse.to_dense(tf.sparse.concat(0, [sparse(), sparse()])),
        lambda x: tf.sparse.reduce_sum(sparse() * f(3, 4), 1),
        lambda x: tf.sparse.reduce_max(sparse(), 1),
        lambda x: tf.sparse.to_dense(tf.sparse.reshape(sparse(), [4, 3])),
        lambda x: tf.sparse.slice(sparse(), [0, 0], [2, 2]).values,
        lambda x: tf.sparse.softmax(sparse()).values,
        lambda x: tf.sparse.maximum(sparse(), sparse()).values + tf.sparse.minimum(sparse(), sparse()).values,
        lambda x: tf.sparse.fill_empty_rows(tf.SparseTensor([[0, 1], [2, 0]], x[0][0, :2], [4, 4]), 0.0)[0].values,
        lambda x: tf.sparse.reorder(sparse()).values,
        lambda x: tf.sparse.sparse_dense_matmul(tf.SparseTensor([[0, 1], [2, 0]], x[0][0, :2], [4, 3]), x[0]),
        lambda x: tf.sparse.add(sparse(), x[0]),
        lambda x: (sparse() / x[0]).values + (sparse() * x[0]).values,
        lambda x: RAW.SparseDenseCwiseAdd(sp_indices=[[0, 1]], sp_values=[1.0], sp_shape=[3, 4], dense=x[0]),
        lambda x: tf.compat.v1.sparse_to_dense([[0, 1], [2, 0]], [3, 4], x[0][0, :2]),
        lambda x: tf.RaggedTensor.from_row_splits(x[0][0], [0, 1, 4]).to_sparse().values,
        lambda x: tf.gather(tf.RaggedTensor.from_row_splits(x[0][0], [0, 1, 4]), [1, 0]).flat_values,
        lambda x: tf.cast(tf.ragged.range([3, 2], [5, 7]).flat_values, tf.float32),
    ], (x, m, f(4, 4, 4))


def _others() -> Programs:
    seed, shape = tf.constant([1, 2]), tf.constant([3, 2])
    key, counter = tf.constant([1], tf.uint64), tf.constant([1, 2], tf.uint64)
    v2 = {"shape": shape, "key": key, "counter": counter, "alg": 1}
    boxes, scores = f(5, 4), f(5)
    draws = ("Normal", "Uniform")
    return [
        *(lambda x, n=n: getattr(RAW, f"StatelessRandom{n}")(shape=shape, seed=seed) for n in draws),
        *(lambda x, n=n: getattr(RAW, f"StatelessRandom{n}V2")(**v2) for n in draws),
        lambda x: RAW.StatelessTruncatedNormal(shape=shape, seed=seed) + RAW.StatelessTruncatedNormalV2(**v2),
        lambda x: RAW.StatelessRandomUniformInt(shape=shape, seed=seed, minval=0, maxval=9),
        lambda x: RAW.StatelessRandomUniformIntV2(**v2, minval=0, maxval=9),
        lambda x: RAW.StatelessRandomUniformFullInt(shape=shape, seed=seed, dtype=tf.int32),
        lambda x: RAW.StatelessRandomUniformFullIntV2(**v2, dtype=tf.int32),
        lambda x: RAW.StatelessRandomGetKeyCounter(seed=seed)[0],
        lambda x: RAW.StatelessRandomGetKeyCounterAlg(seed=seed)[0],
        lambda x: RAW.StatelessRandomGammaV2(shape=[3, 2], seed=seed, alpha=x[0]),
        lambda x: RAW.StatelessRandomGammaV3(**v2, alpha=x[0]),
        lambda x: RAW.StatelessRandomPoisson(shape=[3, 2], seed=seed, lam=x[0], dtype=tf.float32),
        lambda x: RAW.StatelessRandomBinomial(shape=[3, 2], seed=seed, counts=x[0], probs=x[0]),
        lambda x: RAW.StatelessMultinomial(logits=f(2, 3), num_samples=4, seed=seed),
        lambda x: RAW.StatelessShuffle(value=f(3, 2), key=key, counter=counter, alg=1),
        lambda x: RAW.Multinomial(logits=f(2, 3), num_samples=4),
        lambda x: RAW.RandomGamma(shape=[3], alpha=x[0]),
        lambda x: tf.cast(RAW.RandomPoissonV2(shape=[3], rate=x[0]), tf.float32),
        lambda x: RAW.UniformCandidateSampler(
            true_classes=[[1], [2]], num_true=1, num_sampled=3, unique=True, range_max=9
        )[1],
        lambda x: RAW.LogUniformCandidateSampler(
            true_classes=[[1], [2]], num_true=1, num_sampled=3, unique=True, range_max=9
        )[1],
        lambda x: RAW.ComputeAccidentalHits(true_classes=[[1], [2]], sampled_candidates=[1, 2, 5], num_true=1)[0],
        lambda x: tf.image.non_max_suppression(boxes, scores, 3),
        lambda x: RAW.NonMaxSuppressionV4(
            boxes=boxes,
            scores=scores,
            max_output_size=3,
            iou_threshold=0.5,
            score_threshold=0.0,
            pad_to_max_output_size=True,
        )[0],
        lambda x: tf.image.non_max_suppression_with_scores(boxes, scores, 3, soft_nms_sigma=0.5)[0],
        lambda x: tf.image.combined_non_max_suppression(f(2, 5, 1, 4), f(2, 5, 3), 2, 4)[0],
        lambda x: RAW.CTCLoss(
            inputs=f(5, 2, 4), labels_indices=[[0, 0], [1, 0]], labels_values=[1, 2], sequence_length=[5, 4]
        )[0],
        lambda x: tf.math.bincount([0, 1, 1, 3], minlength=5),
        lambda x: RAW.DenseBincount(input=[[0, 1], [2, 1]], size=4, weights=tf.zeros([2, 2]), binary_output=False),
        lambda x: RAW.Bincount(arr=[0, 1, 1], size=3, weights=f(3)),
        lambda x: tf.histogram_fixed_width(f(6), [0.0, 1.0], 4),
        lambda x: tf.searchsorted(f(2, 4), f(2, 3)),
        lambda x: tf.searchsorted(f(2, 4), f(2, 3), "right"),
        lambda x: tf.nn.in_top_k([0, 1], f(2, 3), 2),
        lambda x: RAW.InTopK(predictions=f(2, 3), targets=[0, 1], k=2),
        lambda x: RAW.ConcatOffset(concat_dim=1, shape=[[2, 2], [2, 3]]),
        lambda x: RAW.BroadcastGradientArgs(s0=[2, 3], s1=[1, 3]),
        lambda x: tf.unravel_index([3, 5], [2, 3]),
        lambda x: tf.edit_distance(
            tf.SparseTensor([[0, 0], [1, 0]], ["a", "b"], [2, 1]), tf.SparseTensor([[0, 0], [1, 0]], ["a", "c"], [2, 1])
        ),
        lambda x: tf.strings.substr(["hello", "x"], [1, 0], [2, 1]),
        lambda x: tf.strings.reduce_join([["a", "b"], ["c", "d"]], 1, separator="-"),
        lambda x: tf.strings.split(["a b", "c"]).flat_values,
        lambda x: tf.strings.regex_replace(["abc"], "b", "\\\\0x"),
        lambda x: RAW.RegexReplace(input=["abc"], pattern="b", rewrite="\\\\0x"),
        lambda x: tf.strings.format("{} and {}", (f(3), f(2, 2))),
        lambda x: tf.strings.as_string(f(3), 3, width=9, fill="0"),
        lambda x: RAW.UniqueV2(x=f(3, 2), axis=[0])[0],
        lambda x: RAW.UniqueWithCountsV2(x=[1, 1, 2], axis=[0])[0],
        lambda x: RAW.RaggedTensorToTensor(
            shape=[3, -1],
            values=f(3),
            default_value=0.0,
            row_partition_tensors=[3, [0, 1, 1]],
            row_partition_types=["FIRST_DIM_SIZE", "VALUE_ROWIDS"],
        ),
    ], (f(2),)


def _lists(x: Any) -> Any:
    """Run every op on lists."""
    made = RAW.TensorListReserve(element_shape=[2], num_elements=3, element_dtype=tf.float32)
    made = RAW.TensorListSetItem(input_handle=made, index=0, item=x[0])
    made = RAW.TensorListSetItem(input_handle=made, index=5, item=x[0], resize_if_index_out_of_bounds=True)
    made = RAW.TensorListResize(input_handle=made, size=2)
    one = RAW.TensorListGetItem(input_handle=made, index=0, element_shape=[2], element_dtype=tf.float32)
    stacked = RAW.TensorListStack(input_handle=made, element_shape=[2], element_dtype=tf.float32)
    other = RAW.TensorListFromTensor(tensor=stacked, element_shape=[2])
    other = RAW.TensorListPushBack(input_handle=other, tensor=x[0])
    other, last = RAW.TensorListPopBack(input_handle=other, element_shape=[2], element_dtype=tf.float32)
    other = RAW.TensorListScatterIntoExistingList(input_handle=other, tensor=stacked, indices=[0, 1])
    gathered = RAW.TensorListGather(input_handle=other, indices=[1, 0], element_shape=[2], element_dtype=tf.float32)
    scattered = RAW.TensorListScatterV2(tensor=stacked, indices=[1, 0], element_shape=[2], num_elements=4)
    RAW.TensorListScatter(tensor=stacked, indices=[1, 0], element_shape=[2])
    parts = RAW.TensorListSplit(tensor=f(5, 2), element_shape=[-1, 2], lengths=[2, 3])
    joined = RAW.TensorListConcatV2(
        input_handle=parts, element_shape=[-1, 2], leading_dims=tf.constant([], tf.int64), element_dtype=tf.float32
    )[0]
    RAW.TensorListLength(input_handle=scattered)
    RAW.TensorListElementShape(input_handle=scattered, shape_type=tf.int32)
    optional = RAW.OptionalFromValue(components=[x[0]])
    kept = RAW.OptionalGetValue(optional=optional, output_types=[tf.float32], output_shapes=[[2]])[0]
    total = tf.reduce_sum(one) + tf.reduce_sum(gathered) + tf.reduce_sum(last)
    return total + tf.reduce_sum(joined) + tf.reduce_sum(kept) + tf.reduce_sum(stacked)


def programs() -> list[Programs]:
    """Return programs, with what each of them is given."""
    return [_pools(), _arrays(), _others(), ([_lists], (f(2),))]
