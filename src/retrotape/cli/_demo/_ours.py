"""The programs of the demo, on our tape.

Their source is shown, so each is what a user would type; `print` adds a row to the table.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import retrotape as rt
from retrotape.cli._demo._show import Print
from retrotape.tf.core import tf

x = tf.constant([[1.0, 2.0], [0.5, -1.0]])
_folder = TemporaryDirectory(prefix="retrotape-demo-")  # removed when the process exits
FILE = Path(_folder.name) / "loss.tape"


class Scaled(tf.keras.layers.Layer):
    """A custom layer, which no other process has."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.scale * inputs**2


def elsewhere(code: str) -> str:
    """Run code in a new Python process where `FILE` is the path of the saved tape, and return its output."""
    known = f"import retrotape as rt; FILE = {str(FILE)!r}; "
    done = subprocess.run([sys.executable, "-c", known + code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def variables(*values: list[list[float]]) -> list[tf.Variable]:
    """Return a variable for each value."""
    return [tf.Variable(value) for value in values]


def several_tapes(print: Print) -> None:
    """Two models, a tape each, one optimizer for both."""
    left, right = tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)
    adam = tf.keras.optimizers.Adam(0.1)
    with rt.Tape() as first:
        one = tf.nn.l2_loss(left(x))
    with rt.Tape() as second:
        two = tf.nn.l2_loss(right(x))
    grads = first.backward(one) + second.backward(two)
    grads.clip(global_norm=1.0).apply(adam)
    print("losses before", one + two)
    print("losses after", tf.nn.l2_loss(left(x)) + tf.nn.l2_loss(right(x)))


def chain_rule(print: Print) -> None:
    """One tape continues where another ended."""
    x = tf.constant(1.0)
    with rt.Tape() as first:
        y = x**2
    with rt.Tape() as second:
        z = tf.sin(y)
    print("dy/dx", first.gradient(y, x))
    print("dz/dy", second.gradient(z, y))
    print("dz/dx", rt.join(first, second).gradient(z, x))


def through_a_step(print: Print) -> None:
    """A stock optimizer's step is part of the program."""
    w, sgd = tf.Variable([1.0, 2.0]), tf.keras.optimizers.SGD(0.1)
    with rt.Tape() as tape:
        grads = tape.gradient(tf.reduce_sum(w**2), [w])
        sgd.apply(grads, [w])
        after = tf.reduce_sum(w**2)
    slope = tape.gradient(after, sgd.learning_rate, through_updates=True)
    print("w.r.t. the learning rate", slope)
    slope2 = tape.gradient(slope, sgd.learning_rate, through_updates=True)
    print("second derivative", slope2)


def second_order(print: Print) -> None:
    """Second derivatives of what was recorded once."""
    x = tf.constant([1.0, 2.0, 4.0])
    with rt.Tape() as tape:
        variance = tf.nn.moments(x, [0])[1]
    print("row 0", tape.hessian(variance, x)[0])


def several_losses(print: Print) -> None:
    """Two losses that share a part of the model."""
    body, head, other = variables([[1.0], [0.5]], [[2.0]], [[-1.0]])
    sgd = tf.keras.optimizers.SGD(0.1)
    with rt.Tape() as tape:
        features = tf.tanh(x @ body)
        one = tf.reduce_mean((features @ head) ** 2)
        two = tf.reduce_mean((features @ other - 1.0) ** 2)
    grads = tape.backward(one) + tape.backward(two)  # neither has all three
    print("norm of the sum", grads.norm())
    grads.clip(global_norm=1.0).apply(sgd)
    print("head after the step", head)


def saved(print: Print) -> None:
    """Saved here, differentiated in another process."""
    layer = Scaled()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(layer(x))
    tape.save(FILE, {"loss": loss})
    code = "print(rt.load(FILE).gradient('loss', 'scale').numpy())"
    print("in another process", elsewhere(code))


def why_none(print: Print) -> None:
    """A gradient that is None."""
    w = tf.Variable(3.0, name="w")
    with rt.Tape() as tape:
        y = w * 2.0
        loss = tf.square(float(y))
    print("gradient", tape.gradient(loss, w))
    print("why?", tape.why(loss, w))


def find_the_nan(print: Print) -> None:
    """A finite loss whose gradient is not a number."""
    x = tf.constant([0.0, 1.0, 4.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.where(x > 0.0, x * tf.math.log(x), 0.0))
    print("gradient", tape.gradient(loss, x))
    print("which op?", tape.first_nonfinite(loss))
