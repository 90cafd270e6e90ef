"""Training programs with several models, several tapes, or a function of TensorFlow inside the step."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

import retrotape as rt
from playback.programs import CLASSES, CROSS_ENTROPY, SIZE, WIDTH, L, O, Program, dense, labels, normal, program


def _models() -> tuple[Any, Any, list[Any]]:
    generator = keras.Sequential([L.Dense(6, activation="relu"), L.Dense(3)])
    critic = keras.Sequential([L.Dense(6, activation="tanh"), L.Dense(4, activation="tanh"), L.Dense(1)])
    generator(tf.zeros([1, 2]))
    critic(tf.zeros([1, 3]))
    optimizers = [O.Adam(0.005, beta_1=0.5) for _ in range(2)]
    for optimizer, model in zip(optimizers, (critic, generator), strict=True):
        optimizer.build(model.trainable_variables)
    return generator, critic, optimizers


@program
def gan() -> Program:
    """Two optimizers; the noise is drawn in the step."""
    generator, critic, optimizers = _models()
    seed = keras.random.SeedGenerator(5)
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(real: Any) -> dict[str, Any]:
        noise = keras.random.normal([4, 2], seed=seed)
        with tf.GradientTape() as tape:
            fake = generator(noise, training=True)
            loss = entropy(tf.ones([4, 1]), critic(real)) + entropy(tf.zeros([4, 1]), critic(fake))
        optimizers[0].apply(tape.gradient(loss, critic.trainable_variables), critic.trainable_variables)
        with tf.GradientTape() as tape:
            fooled = entropy(tf.ones([4, 1]), critic(generator(noise, training=True)))
        optimizers[1].apply(tape.gradient(fooled, generator.trainable_variables), generator.trainable_variables)
        return {"critic": loss, "generator": fooled}

    return Program(step, lambda number: (normal(number, 4, 3),), [generator, critic, *optimizers, seed])


@program
def wasserstein_gan() -> Program:
    """The penalty is a gradient that is differentiated again, by one tape."""
    generator, critic, optimizers = _models()

    def step(real: Any, noise: Any, mix: Any) -> tuple[Any, Any]:
        with rt.Tape() as tape:
            fake = generator(noise, training=True)
            mixed = mix * real + (1.0 - mix) * fake
            slopes = tape.gradient(critic(mixed, training=True), mixed)
            penalty = tf.reduce_mean((tf.sqrt(tf.reduce_sum(slopes**2, 1) + 1e-8) - 1.0) ** 2)
            loss = tf.reduce_mean(critic(fake)) - tf.reduce_mean(critic(real)) + 10.0 * penalty
        optimizers[0].apply(tape.gradient(loss, critic.trainable_variables), critic.trainable_variables)
        with rt.Tape() as tape:
            fooled = -tf.reduce_mean(critic(generator(noise, training=True)))
        optimizers[1].apply(tape.gradient(fooled, generator.trainable_variables), generator.trainable_variables)
        return loss, fooled

    def batches(number: int) -> tuple[Any, ...]:
        return normal(number, 4, 3), normal(100 + number, 4, 2), tf.sigmoid(normal(200 + number, 4, 1))

    return Program(step, batches, [generator, critic, *optimizers])


@program
def nested_stock_tapes() -> Program:
    """The same penalty by two stock tapes."""
    _, critic, (optimizer, _) = _models()

    def step(mixed: Any) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(mixed)
                score = critic(mixed, training=True)
            penalty = tf.reduce_mean((tf.norm(inner.gradient(score, mixed), axis=1) - 1.0) ** 2)
            loss = penalty + tf.reduce_mean(score**2)
        optimizer.apply(outer.gradient(loss, critic.trainable_variables), critic.trainable_variables)
        return loss

    return Program(step, lambda number: (normal(number, 4, 3),), [critic, optimizer])


class Sampling(L.Layer):
    """Draws from a Gaussian so that its mean and variance can be learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(11)

    def call(self, mean: Any, log_variance: Any) -> Any:
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seed)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


@program
def variational_autoencoder() -> Program:
    encoder = keras.Sequential([L.Dense(6, activation="relu"), L.Dense(4)])
    decoder = keras.Sequential([L.Dense(6, activation="relu"), L.Dense(5)])
    sample, optimizer = Sampling(), O.Adam(0.01)
    encoder(tf.zeros([1, 5]))
    decoder(tf.zeros([1, 2]))
    weights = encoder.trainable_variables + decoder.trainable_variables
    optimizer.build(weights)

    def step(x: Any) -> dict[str, Any]:
        with rt.Tape() as tape:
            mean, log_variance = tf.split(encoder(x, training=True), 2, axis=1)
            rebuilt = decoder(sample(mean, log_variance), training=True)
            kl = -0.5 * tf.reduce_sum(1.0 + log_variance - mean**2 - tf.exp(log_variance), 1)
            loss = tf.reduce_mean(tf.reduce_sum((x - rebuilt) ** 2, 1) + kl)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss, "parts": [kl, rebuilt]}

    return Program(step, lambda number: (normal(number, 4, 5),), [encoder, decoder, sample, optimizer])


@program
def learning_to_learn() -> Program:
    """As in MAML: an inner step of SGD on tensors, differentiated by the outer one."""
    start = [tf.Variable(normal(31, 2, 4)), tf.Variable(tf.zeros([4])), tf.Variable(normal(32, 4, 1))]
    rate, optimizer = tf.Variable(0.1), O.Adam(0.01)
    optimizer.build([*start, rate])

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        return tf.reduce_mean((tf.tanh(x @ weights[0] + weights[1]) @ weights[2] - y) ** 2)

    def step(support: Any, query: Any) -> Any:
        with rt.Tape() as tape:
            weights = [weight * 1.0 for weight in start]
            for _ in range(2):
                grads = tape.gradient(loss_of(weights, *support), weights)
                weights = [weight - rate * grad for weight, grad in zip(weights, grads, strict=True)]
            loss = loss_of(weights, *query)
        optimizer.apply(tape.gradient(loss, [*start, rate]), [*start, rate])
        return loss

    def batches(number: int) -> tuple[Any, ...]:
        xs = normal(number, 2, 5, 2)
        return (xs[0], tf.reduce_sum(xs[0], 1, keepdims=True)), (xs[1], tf.reduce_sum(xs[1], 1, keepdims=True))

    return Program(step, batches, [*start, rate, optimizer])


@program
def function_inside() -> Program:
    """The model runs inside `tf.function`, with a state that the function changes."""
    model, optimizer = dense(), O.SGD(0.1, momentum=0.9)
    model(normal(0, SIZE, WIDTH))
    optimizer.build(model.trainable_variables)
    calls = tf.Variable(0)

    @tf.function(autograph=False)
    def logits_of(x: Any) -> Any:
        calls.assign_add(1)
        return model(x, training=True) * tf.cast(1.0 + 1.0 / tf.cast(calls, tf.float32), tf.float32)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = CROSS_ENTROPY(y, logits_of(x))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    batches = lambda number: (normal(number, SIZE, WIDTH), labels(number))  # noqa: E731
    return Program(step, batches, [model, optimizer, calls])


class Found(NamedTuple):
    """What a step returns."""

    loss: Any
    norm: Any
    name: str
    nothing: None = None


@program
def teacher_and_student() -> Program:
    """A teacher that follows its student; the step returns a named tuple with values of Python in it."""
    student, teacher, optimizer = dense(), dense(), O.AdamW(0.01)
    for model in (student, teacher):
        model(normal(0, SIZE, WIDTH))
    teacher.set_weights(student.get_weights())
    optimizer.build(student.trainable_variables)

    def step(x: Any, y: Any) -> Found:
        goal = tf.nn.softmax(teacher(x) / 2.0)
        with rt.Tape() as tape:
            logits = student(x, training=True)
            loss = CROSS_ENTROPY(y, logits) + tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(goal, logits))
        grads = tape.gradient(loss, student.trainable_variables)
        optimizer.apply(grads, student.trainable_variables)
        for slow, fast in zip(teacher.variables, student.variables, strict=True):
            slow.assign(0.9 * slow + 0.1 * fast)
        return Found(loss, tf.linalg.global_norm(grads), "student")

    batches = lambda number: (normal(number, SIZE, WIDTH), labels(number))  # noqa: E731
    return Program(step, batches, [student, teacher, optimizer])


class Trainer:
    """A class with a step, as people write it."""

    def __init__(self) -> None:
        self.model, self.optimizer = dense(), O.Adam(0.01)
        self.model(normal(0, SIZE, WIDTH))
        self.optimizer.build(self.model.trainable_variables)
        self.smoothing, self.frozen = 0.1, False

    def _loss(self, x: Any, y: Any) -> Any:
        goal = tf.one_hot(y, CLASSES) * (1.0 - self.smoothing) + self.smoothing / CLASSES
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(goal, self.model(x, training=True)))

    def step(self, batch: dict[str, Any]) -> Any:
        with rt.Tape() as tape:
            loss = self._loss(batch["x"], batch["y"])
        weights = self.model.trainable_variables[2:] if self.frozen else self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss


@program
def attributes_set_between_steps() -> Program:
    """The label smoothing is changed once, and layers are frozen once."""
    trainer = Trainer()

    def batches(number: int) -> tuple[Any, ...]:
        trainer.smoothing = 0.1 if number < 4 else 0.2
        trainer.frozen = number >= 6
        return ({"x": normal(number, SIZE, WIDTH), "y": labels(number)},)

    return Program(trainer.step, batches, [trainer.model, trainer.optimizer])


@program
def stopping_at_a_value() -> Program:
    """Python looks at the loss: large ones are clipped."""
    weight = tf.Variable(normal(41, WIDTH, 1))

    def step(x: Any) -> Any:
        with rt.Tape() as tape:
            loss = tf.reduce_mean((x @ weight - 1.0) ** 2)
        grad = tape.gradient(loss, weight)
        if loss > 1.0:
            grad = tf.clip_by_norm(grad, 0.5)
        weight.assign_sub(0.1 * grad)
        return loss, grad

    return Program(step, lambda number: (normal(number, SIZE, WIDTH),), [weight])


@program
def data_dependent_shapes() -> Program:
    """Only the half of a batch with the larger losses is learnt from, and only rows that a mask selects."""
    model, optimizer = dense(), O.SGD(0.1)
    model(normal(0, SIZE, WIDTH))
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            hard = tf.boolean_mask(losses, losses > tf.reduce_mean(losses))
            loss = tf.reduce_sum(hard) / tf.cast(tf.size(hard), tf.float32)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss, hard

    batches = lambda number: (normal(number, SIZE, WIDTH), labels(number))  # noqa: E731
    return Program(step, batches, [model, optimizer])
