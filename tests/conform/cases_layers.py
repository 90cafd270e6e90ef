"""Stock Keras layers, built once, differentiated by their weights and by their input."""

from __future__ import annotations

import keras
import tensorflow as tf

from conform.table import Case, Random, case, normal, positive

CASES: list[Case] = []
L = keras.layers


def layer(name, make, *shapes, training=None, weights=None, call=None, **options):
    """Add a case that calls a layer with inputs of `shapes`, differentiated by weights and inputs."""

    def build(rng: Random):
        made = make()
        inputs = [normal(*shape)(rng) for shape in shapes]
        call_it = call or (lambda made, *xs: made(*xs, **({} if training is None else {"training": training})))
        call_it(made, *inputs)
        for weight in made.trainable_weights:  # biases of zeros and scales of ones hide mistakes
            weight.assign(rng.normal(scale=0.5, size=weight.shape))

        def run(*sources):
            return call_it(made, *sources[: len(inputs)])

        return run, [*inputs, *(made.trainable_weights if weights is None else weights(made))]

    CASES.append(Case(f"layer_{name}", build, **options))


layer("dense", lambda: L.Dense(3, activation="gelu"), (4, 2))
layer("dense_rank_three", lambda: L.Dense(3, activation="relu"), (2, 3, 2))
layer("dense_no_bias", lambda: L.Dense(3, use_bias=False, activation="softmax"), (4, 2))
layer("einsum_dense", lambda: L.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d"), (2, 3, 4))
layer("conv1d", lambda: L.Conv1D(2, 3, padding="causal", activation="silu"), (2, 5, 3))
layer("conv2d", lambda: L.Conv2D(2, 3, strides=2, activation="relu"), (1, 5, 5, 2))
layer("conv2d_groups", lambda: L.Conv2D(4, 2, groups=2), (1, 4, 4, 2))
layer("conv3d", lambda: L.Conv3D(2, 2), (1, 3, 3, 3, 1))
layer("conv1d_transpose", lambda: L.Conv1DTranspose(2, 3, strides=2), (1, 4, 2))
layer("conv2d_transpose", lambda: L.Conv2DTranspose(2, 3, strides=2, padding="same"), (1, 3, 3, 2))
layer("depthwise_conv2d", lambda: L.DepthwiseConv2D(2, depth_multiplier=2), (1, 4, 4, 2))
layer("separable_conv2d", lambda: L.SeparableConv2D(3, 2), (1, 4, 4, 2))
layer("max_pooling", lambda: L.MaxPooling2D(2), (1, 4, 4, 2))
layer("average_pooling", lambda: L.AveragePooling1D(2, padding="same"), (1, 5, 2))
layer("global_pooling", lambda: keras.Sequential([L.Conv2D(2, 2), L.GlobalAveragePooling2D()]), (1, 4, 4, 2))
layer("global_max_pooling", lambda: L.GlobalMaxPooling1D(), (2, 5, 3))
layer("up_sampling", lambda: L.UpSampling2D(2, interpolation="bilinear"), (1, 2, 2, 1))
layer("zero_padding_cropping", lambda: keras.Sequential([L.ZeroPadding2D(2), L.Cropping2D(1)]), (1, 3, 3, 1))
layer("batch_norm_training", lambda: L.BatchNormalization(), (6, 3), training=True)
layer("batch_norm_inference", lambda: L.BatchNormalization(), (6, 3), training=False)
layer("batch_norm_of_images", lambda: L.BatchNormalization(), (2, 3, 3, 2), training=True)
layer(
    "batch_norm_frozen_stats",
    lambda: L.BatchNormalization(),
    (6, 3),
    training=True,
    weights=lambda m: m.weights,
    more=True,
)
layer("layer_norm", lambda: L.LayerNormalization(), (4, 5))
layer("rms_norm", lambda: L.RMSNormalization(), (4, 5))
layer("group_norm", lambda: L.GroupNormalization(2), (2, 3, 3, 4))
layer("unit_norm", lambda: L.UnitNormalization(), (4, 5))
layer("spectral_norm_training", lambda: L.SpectralNormalization(L.Dense(3)), (4, 2), training=True)
layer("spectral_norm_inference", lambda: L.SpectralNormalization(L.Dense(3)), (4, 2), training=False)
layer("dropout", lambda: L.Dropout(0.5), (6, 4), training=True)
layer("dropout_inference", lambda: L.Dropout(0.5), (6, 4), training=False)
layer("spatial_dropout", lambda: L.SpatialDropout1D(0.5), (4, 3, 5), training=True)
layer("gaussian_noise", lambda: L.GaussianNoise(0.5), (6, 4), training=True)
layer("gaussian_dropout", lambda: L.GaussianDropout(0.5), (6, 4), training=True)
layer("alpha_dropout", lambda: L.AlphaDropout(0.5), (6, 4), training=True)
layer("prelu", lambda: L.PReLU(), (4, 3))
layer("leaky_relu_elu", lambda: keras.Sequential([L.LeakyReLU(), L.ELU(), L.Softmax()]), (4, 3))
layer("lstm", lambda: L.LSTM(3), (2, 4, 2))
layer("lstm_sequences_and_state", lambda: L.LSTM(3, return_sequences=True, return_state=True), (2, 4, 2))
layer("lstm_unrolled", lambda: L.LSTM(3, unroll=True), (2, 4, 2))
layer("lstm_dropout", lambda: L.LSTM(3, dropout=0.3, recurrent_dropout=0.3), (2, 4, 2), training=True)
layer("gru", lambda: L.GRU(3), (2, 4, 2))
layer("gru_other_form", lambda: L.GRU(3, reset_after=False, go_backwards=True, return_sequences=True), (2, 4, 2))
layer("simple_rnn", lambda: L.SimpleRNN(3, return_sequences=True), (2, 4, 2))
layer("stacked_cells", lambda: L.RNN([L.LSTMCell(3), L.GRUCell(2)]), (2, 4, 2))
layer("bidirectional", lambda: L.Bidirectional(L.GRU(2, return_sequences=True)), (2, 4, 2))
layer("time_distributed", lambda: L.TimeDistributed(L.Dense(3)), (2, 4, 2))
layer("conv_lstm", lambda: L.ConvLSTM2D(2, 2), (1, 3, 4, 4, 1))
layer("lstm_masked", lambda: keras.Sequential([L.Masking(9.0), L.LSTM(3)]), (2, 4, 2))
layer("multi_head_attention", lambda: L.MultiHeadAttention(2, 3), (2, 4, 5), (2, 3, 5))
layer(
    "causal_attention",
    lambda: L.MultiHeadAttention(2, 3, dropout=0.2),
    (2, 4, 5),
    call=lambda made, x: made(x, x, use_causal_mask=True, training=True),
)
layer(
    "attention_scores",
    lambda: L.MultiHeadAttention(2, 3),
    (2, 4, 5),
    call=lambda made, x: made(x, x, return_attention_scores=True),
)
layer("grouped_query_attention", lambda: L.GroupQueryAttention(3, 4, 2), (2, 4, 5), (2, 3, 5))
layer(
    "attention",
    lambda: L.Attention(use_scale=True),
    (2, 4, 3),
    (2, 5, 3),
    call=lambda made, q, v: made([q, v]),
)
layer(
    "additive_attention",
    lambda: L.AdditiveAttention(),
    (2, 4, 3),
    (2, 5, 3),
    call=lambda made, q, v: made([q, v]),
)
layer(
    "merging",
    lambda: L.Concatenate(),
    (2, 3),
    (2, 3),
    call=lambda made, x, y: made([L.Multiply()([x, y]), L.Dot(1)([x, y]), L.Maximum()([x, y])]),
)
layer("mixed_float16", lambda: L.Dense(3, activation="tanh", dtype="mixed_float16"), (4, 2), tolerance=1e-3)
layer("mixed_bfloat16", lambda: L.Conv1D(3, 2, dtype="mixed_bfloat16"), (2, 4, 2), tolerance=1e-2)
layer("float64", lambda: L.Dense(3, activation="tanh", dtype="float64"), (4, 2))
layer("quantized_lora", lambda: _lora(), (4, 2))
layer("discretization_beside", lambda: L.Rescaling(2.0, 1.0), (4, 2))
layer("random_rotation", lambda: L.RandomRotation(0.2), (1, 4, 4, 1), training=True)
layer("lambda_layer", lambda: L.Lambda(lambda x: keras.ops.square(x) * 3.0), (4, 2))
layer(
    "kernel_regularizer",
    lambda: L.Dense(3, kernel_regularizer="l2", bias_regularizer=keras.regularizers.L1(0.3)),
    (4, 2),
    call=lambda made, x: [made(x), *made.losses],
)
layer(
    "activity_regularizer",
    lambda: L.Dense(3, activity_regularizer=keras.regularizers.L1L2(0.1, 0.2)),
    (4, 2),
    call=lambda made, x: [made(x), *made.losses],
)
layer(
    "orthogonal_regularizer",
    lambda: L.Dense(3, kernel_regularizer="orthogonal_regularizer"),
    (4, 2),
    call=lambda made, x: (made(x), made.losses)[1],
)


def _lora():
    dense = L.Dense(3)
    dense.build((None, 2))
    dense.enable_lora(2)
    return dense


class WithLoss(L.Layer):
    """A layer that adds a loss of its own."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        self.add_loss(keras.ops.sum(keras.ops.square(x * self.w)))
        return keras.ops.sin(x * self.w)


layer("add_loss", WithLoss, (4, 2), call=lambda made, x: [made(x), *made.losses])


def _shared():
    one, two = keras.Input((4,)), keras.Input((4,))
    tower = keras.Sequential([L.Dense(3, activation="tanh"), L.LayerNormalization()])
    return keras.Model([one, two], L.Dot(1, normalize=True)([tower(one), tower(two)]))


def _residual():
    x = keras.Input((4,))
    y = L.Dense(4, activation="relu")(x)
    y = L.Add()([x, L.Dropout(0.3)(y)])
    return keras.Model(x, {"sum": y, "max": L.Maximum()([x, y])})


layer("functional_with_shared_tower", _shared, (3, 4), (3, 4), call=lambda made, x, y: made([x, y]))
layer("functional_with_outputs_in_a_dict", _residual, (3, 4), call=lambda made, x: made(x, training=True))
layer(
    "sequential_convnet",
    lambda: keras.Sequential(
        [L.Conv2D(2, 2, activation="relu"), L.BatchNormalization(), L.MaxPooling2D(), L.Flatten(), L.Dense(2)]
    ),
    (2, 5, 5, 1),
    call=lambda made, x: made(x, training=True),
)


def _embedded(name, make, call=None):
    def build(rng: Random):
        made = make()
        ids = tf.constant([[0, 2, 2], [1, 0, 2]])
        made(ids)

        def run(*_):
            return made(ids)

        return run, list(made.trainable_weights)

    CASES.append(Case(f"layer_{name}", build))


_embedded("embedding", lambda: L.Embedding(4, 3))
_embedded("embedding_masked_into_lstm", lambda: keras.Sequential([L.Embedding(4, 3, mask_zero=True), L.LSTM(2)]))
_embedded("embedding_pooled", lambda: keras.Sequential([L.Embedding(4, 3), L.GlobalAveragePooling1D(), L.Dense(1)]))


@case(CASES)
def _layer_called_twice_and_sliced(rng: Random):
    dense = L.Dense(3, activation="tanh")
    x = normal(4, 3)(rng)
    dense(x)
    return lambda x, *_: dense(dense(x)[:2]) * dense(x[:2]), [x, *dense.trainable_weights]


@case(CASES)
def _model_wrapped_in_a_function(rng: Random):
    model = keras.Sequential([L.Dense(3, activation="tanh"), L.BatchNormalization(), L.Dropout(0.3), L.Dense(1)])
    x = normal(4, 2)(rng)
    model(x)
    call = tf.function(lambda x: model(x, training=True))
    return lambda x, *_: call(x), [x, *model.trainable_weights]


@case(CASES)
def _subclassed_model_with_losses(rng: Random):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.one = L.Dense(3, kernel_regularizer="l2")
            self.two = L.Dense(1, activity_regularizer="l1")

        def call(self, x, training=False):
            hidden = keras.ops.relu(self.one(x))
            self.add_loss(keras.ops.mean(hidden))
            return self.two(hidden)

    net = Net()
    x = positive(4, 2)(rng)
    net(x)
    return lambda x, *_: tf.reduce_mean(net(x, training=True)) + tf.add_n(net.losses), [
        x,
        *net.trainable_weights,
    ]
