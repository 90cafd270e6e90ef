"""Variables in all ways of reading and writing them, random draws, tables and datasets."""

from __future__ import annotations

import keras
import tensorflow as tf

from conform.table import Case, Random, case, normal, simple, variable

CASES: list[Case] = []

CASES += [
    simple("variable_given_to_an_op", lambda v: tf.sin(v), variable(3)),
    simple("variable_times_tensor", lambda v, x: v * x + x / v - v**2, variable(3), normal(3)),
    simple("variable_right_operand", lambda v, x: x @ v + (1.0 - tf.reduce_sum(v)), variable(3, 2), normal(2, 3)),
    simple("variable_concat", lambda v, x: tf.concat([v, x, v], 0) ** 2, variable(2), normal(3)),
    simple("variable_stack", lambda v, w: tf.stack([v, w]) ** 2, variable(2), variable(2)),
    simple("variable_add_n", lambda v, w: tf.add_n([v, w, v]) ** 2, variable(2), variable(2)),
    simple("variable_value_and_read_value", lambda v: v.value() * v.read_value(), variable(3)),
    simple("variable_identity_convert", lambda v: tf.identity(v) * tf.convert_to_tensor(v), variable(3)),
    simple("variable_slicing", lambda v: v[1:] * v[:-1] + v[0], variable(4)),
    simple("variable_sparse_read", lambda v: v.sparse_read([0, 2, 0]) ** 2, variable(3, 2)),
    simple("variable_gather", lambda v: tf.gather(v, [0, 2, 0]) ** 2, variable(3, 2)),
    simple("variable_gather_and_dense", lambda v: tf.gather(v, [0, 2, 0]) ** 2 + tf.reduce_sum(v), variable(3, 2)),
    simple("variable_two_gathers", lambda v: tf.gather(v, [0, 2]) * tf.gather(v, [1, 2]), variable(3, 2)),
    simple("variable_gather_axis_one", lambda v: tf.gather(v, [0, 1, 0], axis=1) ** 2, variable(3, 2)),
    simple("variable_gather_nd", lambda v: tf.gather_nd(v, [[0, 1], [2, 0]]) ** 2, variable(3, 2)),
    simple("variable_gather_nd_method", lambda v: v.gather_nd([[0], [2], [0]]) ** 2, variable(3, 2)),
    simple("variable_cast", lambda v: tf.cast(v, tf.float64) ** 2, variable(3)),
    simple("variable_unread", lambda v, x: x**2, variable(3), normal(3)),
    simple("variable_of_rank_zero", lambda v, x: v * x, variable(), normal(3)),
    simple("variable_in_a_dict", lambda v, x: {"a": v * x, "b": v**2}, variable(3), normal(3)),
    simple("variable_of_float64", lambda v: tf.cumsum(v) ** 2, variable(3, dtype="float64")),
    simple("variable_of_complex", lambda v: v * tf.math.conj(v) * v, variable(3, dtype="complex64")),
    simple(
        "variable_with_free_shape",
        lambda v: tf.reduce_sum(v, 0) ** 2,
        variable(3, 2, shape=tf.TensorShape([None, 2])),
    ),
    simple("embedding_lookup", lambda v: tf.nn.embedding_lookup(v, [[0, 2], [2, 2]]) ** 2, variable(4, 2)),
    simple(
        "embedding_lookup_max_norm",
        lambda v: tf.nn.embedding_lookup(v, [0, 2, 2], max_norm=0.5) ** 2,
        variable(4, 2),
    ),
    simple(
        "embedding_lookup_sparse",
        lambda v: (
            tf.nn.embedding_lookup_sparse(
                v,
                tf.SparseTensor([[0, 0], [0, 1], [1, 0]], tf.constant([0, 2, 2], tf.int64), [2, 2]),
                None,
                combiner="sum",
            )
            ** 2
        ),
        variable(4, 2),
    ),
    simple("variable_not_trainable", lambda v, x: v * x, variable(3, trainable=False), normal(3), more=True),
]


def _written(write):
    """Return a program that reads, writes and reads again."""

    def run(v, x):
        before = v * x
        write(v, x)
        return before + v**2

    return run


CASES += [
    simple("assign_between_reads", _written(lambda v, x: v.assign(2.0 * x)), variable(3), normal(3)),
    simple("assign_from_itself", _written(lambda v, x: v.assign(tf.sin(v) * x)), variable(3), normal(3)),
    simple("assign_add", _written(lambda v, x: v.assign_add(x)), variable(3), normal(3)),
    simple("assign_sub", _written(lambda v, x: v.assign_sub(0.1 * v)), variable(3), normal(3)),
    simple("assign_slice", _written(lambda v, x: v[1:].assign(x[1:])), variable(3), normal(3)),
    simple(
        "scatter_update",
        _written(lambda v, x: v.scatter_update(tf.IndexedSlices(x[:2], [0, 2]))),
        variable(3),
        normal(3),
    ),
    simple("scatter_nd_add", _written(lambda v, x: v.scatter_nd_add([[0], [2]], x[:2])), variable(3), normal(3)),
    simple(
        "scatter_sub",
        _written(lambda v, x: v.scatter_sub(tf.IndexedSlices(x[:2], [0, 0]))),
        variable(3),
        normal(3),
    ),
    simple(
        "batch_scatter_update",
        _written(lambda v, x: v.scatter_max(tf.IndexedSlices(x[:2], [0, 1]))),
        variable(3),
        normal(3),
    ),
    simple("assign_unread_value", _written(lambda v, x: v.assign(x, read_value=False)), variable(3), normal(3)),
    simple("assign_returned_value", lambda v, x: v.assign(x * 2.0) * x, variable(3), normal(3)),
    simple("assign_add_returned_value", lambda v, x: tf.sin(v.assign_add(x)) * v, variable(3), normal(3)),
    simple(
        "gather_after_assign",
        lambda v, x: (tf.gather(v, [0]), v.assign(x), tf.gather(v, [1]))[-1] ** 2,
        variable(3),
        normal(3),
    ),
]


@case(CASES)
def _assign_in_a_loop(rng: Random):
    def run(v, x):
        total = 0.0
        for _ in range(4):
            total += v * x
            v.assign_add(0.5 * x)
        return total

    return run, [variable(3)(rng), normal(3)(rng)]


@case(CASES)
def _gradient_step_on_the_way(rng: Random):
    def run(v, x):
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum((v - x) ** 2)
        v.assign_sub(0.1 * inner.gradient(loss, v))
        return tf.reduce_sum((v - x) ** 2) + loss

    return run, [variable(3)(rng), normal(3)(rng)]


@case(CASES)
def _optimizer_on_the_way(rng: Random):
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    weight = keras.Variable(rng.normal(size=(3,)).astype("float32"))
    optimizer.build([weight])

    def run(x, w):
        optimizer.apply_gradients([(x * 0.1, w)])
        return ops_square(w) * x

    def ops_square(w):
        return keras.ops.square(w)

    return run, [normal(3)(rng), weight]


@case(CASES)
def _keras_variable(rng: Random):
    weight = keras.Variable(rng.normal(size=(3,)).astype("float32"))
    return lambda x, w: keras.ops.sin(w) * x + w * w, [normal(3)(rng), weight]


@case(CASES)
def _dense_and_sparse_by_one_variable_cast(rng: Random):
    def run(v):
        return tf.reduce_sum(tf.gather(tf.cast(v, tf.float64), [1, 1])) + tf.cast(
            tf.reduce_sum(tf.gather(v, [1])), tf.float64
        )

    return run, [variable(3)(rng)]


# ------------------------------------------------------------------ random draws

CASES += [
    simple("stateful_random", lambda x: x * tf.random.normal([3]) + tf.random.uniform([3]), normal(3)),
    simple("stateless_random", lambda x: x * tf.random.stateless_normal([3], [1, 2]), normal(3)),
    simple("stateless_gamma", lambda a: tf.random.stateless_gamma([4, 2], [1, 2], alpha=tf.exp(a)), normal(2)),
    simple("random_gamma", lambda a, b: tf.random.gamma([4], tf.exp(a), tf.exp(b)), normal(2), normal(2)),
    simple(
        "random_poisson_stopped",
        lambda a: tf.random.poisson([4], tf.stop_gradient(tf.exp(a))) * tf.sin(a),
        normal(2),
    ),
    simple("categorical_beside", lambda z: tf.gather(z[0], tf.random.categorical(z, 4)[0]), normal(1, 5)),
    simple("random_shuffle_of_indices", lambda x: tf.gather(x, tf.random.shuffle(tf.range(4))) * x, normal(4)),
    simple(
        "reparametrisation",
        lambda m, s: m + tf.exp(s) * tf.random.normal(tf.shape(m)),
        normal(2, 3),
        normal(2, 3),
    ),
    simple(
        "gumbel_softmax",
        lambda z: tf.nn.softmax(z - tf.math.log(-tf.math.log(tf.random.uniform([2, 3], 0.1, 0.9)))),
        normal(2, 3),
    ),
]


@case(CASES)
def _random_generator(rng: Random):
    generator = tf.random.Generator.from_seed(7)
    return lambda x: x * generator.normal([3]) * generator.uniform([3]), [normal(3)(rng)]


@case(CASES)
def _seed_generator(rng: Random):
    seed = keras.random.SeedGenerator(5)
    return lambda x: x**2 * keras.random.normal((3,), seed=seed) + keras.random.uniform((3,), seed=seed), [
        normal(3)(rng)
    ]


@case(CASES)
def _keras_random_dropout(rng: Random):
    seed = keras.random.SeedGenerator(5)
    return lambda x: keras.random.dropout(x**2, 0.5, seed=seed), [normal(4, 3)(rng)]


# ------------------------------------------------------------------ data


@case(CASES)
def _hash_table(rng: Random):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([2.0, 3.0])), default_value=-1.0
    )
    return lambda x: x * table.lookup(tf.constant(["b", "a", "c"])), [normal(3)(rng)]


@case(CASES)
def _mutable_hash_table(rng: Random):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, default_value=0.0)

    def run(x):
        table.insert(["a"], x[:1])
        return x * table.lookup(tf.constant(["a", "a", "b"]))

    return run, [normal(3)(rng)]


@case(CASES)
def _dataset_iterator(rng: Random):
    batches = iter(tf.data.Dataset.from_tensor_slices(rng.normal(size=(4, 3)).astype("float32")).repeat())
    return lambda v, x: tf.reduce_sum(v * next(batches)) * x, [variable(3)(rng), normal(2)(rng)]


@case(CASES)
def _dataset_loop(rng: Random):
    data = tf.data.Dataset.from_tensor_slices(rng.normal(size=(4, 3)).astype("float32")).batch(2)

    def run(v):
        total = tf.zeros([])
        for batch in data:
            total += tf.reduce_sum(tf.sin(v * batch))
        return total

    return run, [variable(3)(rng)]


@case(CASES)
def _queue(rng: Random):
    queue = tf.queue.FIFOQueue(10, [tf.float32], shapes=[[3]])

    def run(x):
        queue.enqueue(2.0 * x)
        return queue.dequeue() * x

    return run, [normal(3)(rng)]
