"""Ops that move, pick and join: indexing, shapes, sorting, segments, ragged and sparse tensors, strings."""

from __future__ import annotations

import tensorflow as tf

from conform.table import Ask, Case, Random, apart, case, normal, positive, simple, variable

CASES: list[Case] = []

CASES += [
    simple("slice_strided", lambda x: x[1:, ::-2] ** 2, normal(4, 5)),
    simple("slice_ellipsis_newaxis", lambda x: x[..., 0, tf.newaxis] * x[0, ..., None, 1], normal(2, 2, 3)),
    simple("slice_by_tensor", lambda x: x[tf.constant(1) : tf.constant(3)] ** 2, normal(4, 2)),
    simple("slice_op", lambda x: tf.slice(x, [0, 1], [-1, 2]) ** 2, normal(3, 4)),
    simple("boolean_mask", lambda x: tf.boolean_mask(x, [True, False, True]) ** 2, normal(3, 2)),
    simple("mask_from_values", lambda x: x[x > 0.0] ** 2, normal(9)),
    simple("gather", lambda x: tf.gather(x, [2, 0, 2]) ** 2, normal(3, 2)),
    simple("gather_axis", lambda x: tf.gather(x, [2, 0, 2], axis=1) ** 2, normal(2, 3)),
    simple("gather_batch_dims", lambda x: tf.gather(x, [[2, 0], [1, 1]], batch_dims=1, axis=1) ** 2, normal(2, 3)),
    simple("gather_nd", lambda x: tf.gather_nd(x, [[0, 1], [2, 0], [0, 1]]) ** 2, normal(3, 2)),
    simple("scatter_nd", lambda u: tf.scatter_nd([[1], [3], [1]], u, [5, 2]) ** 2, normal(3, 2)),
    simple(
        "tensor_scatter_update",
        lambda x, u: tf.tensor_scatter_nd_update(x, [[0], [2]], u) ** 2,
        normal(3, 2),
        normal(2, 2),
    ),
    simple(
        "tensor_scatter_add",
        lambda x, u: tf.tensor_scatter_nd_add(x, [[0], [0]], u) ** 2,
        normal(3),
        normal(2),
    ),
    simple(
        "tensor_scatter_max",
        lambda x, u: tf.tensor_scatter_nd_max(x, [[0], [2]], u) ** 2,
        normal(3),
        normal(2),
    ),
    simple("concat", lambda x, y: tf.concat([x, y, 2.0 * x], 1) ** 2, normal(2, 3), normal(2, 1)),
    simple(
        "stack_unstack",
        lambda x, y: tf.stack([*tf.unstack(x, axis=1)[::-1], y], 1) ** 2,
        normal(2, 3),
        normal(2),
    ),
    simple("split_even", lambda x: [part**2 for part in tf.split(x, 3, axis=1)][1], normal(2, 6)),
    simple("split_sizes", lambda x: tf.split(x, [1, 4, 1], axis=1)[1] ** 3, normal(2, 6)),
    simple("pad_constant", lambda x: tf.pad(x, [[1, 0], [2, 1]]) ** 2, normal(2, 2)),
    simple("pad_reflect", lambda x: tf.pad(x, [[1, 1], [1, 0]], "REFLECT") ** 2, normal(3, 3)),
    simple("tile_repeat", lambda x: tf.tile(x, [2, 2]) ** 2 + tf.repeat(tf.repeat(x, 2, 0), 2, 1), normal(2, 3)),
    simple("reshape_transpose", lambda x: tf.transpose(tf.reshape(x, [3, -1]), [1, 0]) ** 2, normal(2, 6)),
    simple("squeeze_expand", lambda x: tf.expand_dims(tf.squeeze(x, 1), 0) ** 2, normal(2, 1, 3)),
    simple("reverse_roll", lambda x: tf.roll(tf.reverse(x, [1]), [1, 2], [0, 1]) * x, normal(3, 4)),
    simple("reverse_sequence", lambda x: tf.reverse_sequence(x, [2, 3], seq_axis=1) * x, normal(2, 4)),
    simple("space_to_depth", lambda x: tf.nn.space_to_depth(x, 2) ** 2, normal(1, 4, 4, 2)),
    simple("space_to_batch", lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]) ** 2, normal(1, 4, 4, 1)),
    simple("where_three", lambda x, y: tf.where(x > y, x**2, y**3), normal(2, 3), normal(3)),
    simple("where_guarded_nan", lambda x: tf.where(x > 1.0, x, tf.sqrt(tf.where(x > 1.0, 1.0, x))), positive(5)),
    simple("meshgrid", lambda x, y: tf.meshgrid(x, y)[0] * tf.meshgrid(x, y)[1], normal(3), normal(2)),
    simple("linspace", lambda a, b: tf.linspace(a, b, 5) ** 2, normal(), normal()),
    simple("zeros_ones_like", lambda x: x * tf.ones_like(x) + tf.zeros_like(x), normal(3)),
    simple("identity_n", lambda x, y: tf.identity_n([x * y, y])[0], normal(3), normal(3)),
    simple("sequence_mask", lambda x: x * tf.sequence_mask([1, 3], 4, tf.float32), normal(2, 4)),
    simple("sort", lambda x: tf.sort(x, direction="DESCENDING") * [1.0, 2.0, 3.0], apart(2, 3)),
    simple("top_k", lambda x: tf.math.top_k(x, 2).values ** 2, apart(3, 4)),
    simple("argsort_gather", lambda x: tf.gather(x, tf.argsort(x), batch_dims=1) * [1.0, 2.0, 3.0], apart(2, 3)),
    simple("unique_counts", lambda x: x * tf.cast(tf.unique_with_counts([1, 1, 2])[2][:1], tf.float32), normal(3)),
    simple("dynamic_partition", lambda x: tf.dynamic_partition(x, [0, 1, 0, 1], 2)[1] ** 2, normal(4, 2)),
    simple(
        "dynamic_stitch",
        lambda x, y: tf.dynamic_stitch([[0, 2], [1]], [x, y]) ** 2,
        normal(2, 2),
        normal(1, 2),
    ),
    simple(
        "extract_patches",
        lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID") ** 2,
        normal(1, 4, 4, 1),
    ),
]

_ROWS = [0, 0, 1, 3]
CASES += [
    simple("segment_sum", lambda x: tf.math.segment_sum(x, _ROWS) ** 2, normal(4, 2)),
    simple(
        "segment_mean_max",
        lambda x: tf.math.segment_mean(x, _ROWS) * tf.math.segment_max(x, _ROWS),
        normal(4, 2),
    ),
    simple("unsorted_segment_sum", lambda x: tf.math.unsorted_segment_sum(x, [2, 0, 2, 1], 3) ** 2, normal(4, 2)),
    simple("unsorted_segment_max", lambda x: tf.math.unsorted_segment_max(x, [1, 0, 1, 0], 2) ** 2, normal(4, 2)),
    simple("unsorted_segment_prod", lambda x: tf.math.unsorted_segment_prod(x, [1, 0, 1, 0], 2), normal(4)),
    simple("unsorted_segment_mean", lambda x: tf.math.unsorted_segment_mean(x, [1, 0, 1, 0], 2) ** 2, normal(4)),
    simple("sparse_segment_sum", lambda x: tf.sparse.segment_sum(x, [0, 2, 2], [0, 0, 1]) ** 2, normal(3, 2)),
    simple(
        "embedding_lookup_sparse_of_tensor",
        lambda x: (
            tf.nn.embedding_lookup_sparse(
                x,
                tf.SparseTensor([[0, 0], [0, 1], [1, 0]], tf.constant([0, 2, 2], tf.int64), [2, 2]),
                None,
                combiner="mean",
            )
            ** 2
        ),
        normal(3, 2),
    ),
]


@case(CASES)
def _ragged_reduce(rng: Random):
    def run(x):
        ragged = tf.RaggedTensor.from_row_lengths(x, [2, 0, 3])
        return tf.reduce_sum(ragged, 1) ** 2

    return run, [normal(5)(rng)]


@case(CASES)
def _ragged_elementwise(rng: Random):
    def run(x):
        ragged = tf.RaggedTensor.from_row_splits(x, [0, 1, 4, 5])
        return (tf.sin(ragged) * ragged + 1.0).to_tensor() ** 2

    return run, [normal(5)(rng)]


@case(CASES)
def _ragged_source(rng: Random):
    def run(ragged):
        return tf.reduce_sum(ragged**2, 1)

    return run, [tf.RaggedTensor.from_row_lengths(normal(5)(rng), [2, 0, 3])]


@case(CASES)
def _ragged_target(rng: Random):
    def run(x):
        return Ask(tf.RaggedTensor.from_row_lengths(x**2, [2, 0, 3]))

    return run, [normal(5)(rng)]


@case(CASES)
def _sparse_dense_matmul(rng: Random):
    def run(values, dense):
        sparse = tf.SparseTensor([[0, 1], [1, 0], [1, 2]], values, [2, 3])
        return tf.sparse.sparse_dense_matmul(sparse, dense) ** 2

    return run, [normal(3)(rng), normal(3, 2)(rng)]


@case(CASES)
def _sparse_to_dense_and_sum(rng: Random):
    def run(values):
        sparse = tf.SparseTensor([[0, 1], [1, 0], [1, 2]], values, [2, 3])
        return tf.sparse.to_dense(sparse) ** 2 + tf.sparse.reduce_sum(sparse)

    return run, [normal(3)(rng)]


@case(CASES)
def _sparse_softmax_and_add(rng: Random):
    def run(values):
        one = tf.SparseTensor([[0, 1], [1, 0], [1, 2]], values, [2, 3])
        two = tf.SparseTensor([[0, 1], [1, 1], [1, 2]], values * 2.0, [2, 3])
        return tf.sparse.softmax(one).values * tf.sparse.add(one, two).values[:3]

    return run, [normal(3)(rng)]


@case(CASES)
def _strings_beside_the_path(rng: Random):
    def run(x):
        words = tf.strings.split("a bb ccc", " ")
        lengths = tf.cast(tf.strings.length(words), tf.float32)
        label = tf.strings.join(["n", tf.strings.as_string(tf.shape(x)[0])])
        return x * lengths * tf.cast(tf.strings.to_hash_bucket_fast(label, 5) + 1, tf.float32)

    return run, [normal(3)(rng)]


@case(CASES)
def _strings_cut_the_path(rng: Random):
    def run(x):
        return x + tf.strings.to_number(tf.strings.as_string(x * 10.0))

    return run, [normal(3)(rng)]


@case(CASES)
def _indices_from_a_float_source(rng: Random):
    def run(x, table):
        return tf.gather(table, tf.cast(tf.round(x), tf.int32)) * x[:, None]

    return run, [positive(3)(rng), normal(4, 2)(rng)]


@case(CASES)
def _shape_dependent(rng: Random):
    def run(x):
        rows = tf.shape(x)[0]
        return tf.reshape(x, [rows * 2, -1]) * tf.cast(rows, tf.float32) / tf.cast(tf.size(x), tf.float32)

    return run, [normal(2, 4)(rng)]


@case(CASES)
def _indexed_slices_made_dense_on_the_way(rng: Random):
    def run(table):
        doubled = table * 2.0
        return tf.gather(doubled, [0, 0, 1]) ** 2

    return run, [variable(3, 2)(rng)]


@case(CASES)
def _iterating_over_a_tensor(rng: Random):
    def run(x):
        rows = tf.unstack(x)
        total = rows[0]
        for row in rows[1:]:
            total = total * row + 1.0
        return total

    return run, [normal(4, 2)(rng)]


def _python_loop(x: tf.Tensor) -> tf.Tensor:
    total = tf.zeros([2])
    for row in x:
        if row[0].numpy() > 0.0:
            total = total + row**2
    return total


CASES.append(simple("python_decides_by_value", _python_loop, normal(5, 2), eager_only="numpy() of a symbolic tensor"))
