"""Three tapes with matrices between them, joined: the same gradients as from one stock tape.

Multiplying the gradients of the tapes element by element is not the chain rule: it is wrong even if the shapes fit.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import retrotape as rt

RNG = np.random.default_rng(0)
X, W, BIAS = (tf.Variable(RNG.normal(size=shape)) for shape in [(3, 4), (4, 2), (2,)])


def gap(left: tf.Tensor, right: tf.Tensor) -> float:
    return float(tf.reduce_max(tf.abs(left - right)))


def main() -> dict[str, object]:
    with tf.GradientTape() as stock:
        with rt.Tape() as first:
            hidden = tf.tanh(X @ W)  # feeds both tapes below
        with rt.Tape() as second:
            gates = tf.nn.softmax(hidden + BIAS)  # one bias for all rows
        with rt.Tape() as third:
            loss = tf.reduce_sum(tf.matmul(gates, hidden, transpose_b=True) ** 2)
    joined = rt.join(first, second, third).gradient(loss, [X, W, BIAS])
    apart = [gap(ours, theirs) for ours, theirs in zip(joined, stock.gradient(loss, [X, W, BIAS]), strict=True)]

    grad_gates, grad_hidden = third.gradient(loss, [gates, hidden])
    carried = second.gradient(gates, hidden, output_gradients=grad_gates)  # pass in what flows back from the next tape
    by_hand = first.gradient(hidden, X, output_gradients=carried + grad_hidden)
    element_wise = grad_gates * second.gradient(gates, hidden)
    possible = element_wise.shape == first.gradient(hidden, X).shape
    numbers = {"apart": max(apart), "by hand": gap(by_hand, joined[0]), "wrong by": gap(element_wise, carried)}
    print(f"three joined tapes: differ from one stock tape by {numbers['apart']:.1e}")
    print(f"by hand, with output_gradients: differs from the joined tape by {numbers['by hand']:.1e}")
    print(f"element by element: off by {numbers['wrong by']:.3f} after two tapes;", end=" ")
    print("the shape for the third tape fits" if possible else "the shape for the third tape does not even fit")
    return {**numbers, "possible": possible}


if __name__ == "__main__":
    main()
