"""Why an op produces a NaN or an infinity: every cause has a sentence and what to type instead."""

from __future__ import annotations

from enum import Enum

_FROM_LOGITS = (
    "Pass logits instead: `tf.nn.sigmoid_cross_entropy_with_logits`, or a Keras loss with `from_logits=True`."
)
_GUARD = "Guard the input too: `safe = tf.where(ok, x, 1.0)`, and then `tf.where(ok, f(safe), 0.0)`."


class Cause(Enum):
    """What was found. The value is a sentence, and the remedy."""

    WHERE = ("0 · inf from the branch that `tf.where` did not take.", _GUARD)
    LOG_OF_ZERO = (
        "The log of zero is -inf.",
        "Keep the input away from zero: `tf.math.log(tf.maximum(x, 1e-7))`.",
    )
    LOG_OF_NEGATIVE = (
        "The log of a negative number is NaN.",
        "Check the sign of the input, or bound it: `tf.math.log(tf.maximum(x, 1e-7))`.",
    )
    ZERO_TIMES_LOG = (
        "The log of zero is -inf, and it is then multiplied by 0, which gives NaN.",
        "Use `tf.math.xlogy(y, x)`, which is 0 where y is 0.",
    )
    MASKED_BY_PRODUCT = (
        "It is then multiplied by 0, and 0 · inf is NaN: multiplication does not mask it.",
        "Use `tf.math.multiply_no_nan(value, mask)` and guard the input: `tf.where(ok, x, 1.0)`.",
    )
    SIGMOID_CROSS_ENTROPY = ("The log of a sigmoid that is exactly 0 or 1: a hand-written cross-entropy.", _FROM_LOGITS)
    SOFTMAX_CROSS_ENTROPY = (
        "The log of a softmax that is exactly 0: a hand-written cross-entropy.",
        "Use `tf.nn.log_softmax(logits)`, or a Keras loss with `from_logits=True` and no softmax.",
    )
    SQRT_OF_NEGATIVE = ("The square root of a negative number is NaN.", "Bound it: `tf.sqrt(tf.maximum(x, 0.0))`.")
    SQRT_AT_ZERO = (
        "The derivative of a square root is infinite at zero.",
        "Add a small number inside: `tf.sqrt(x + 1e-12)`.",
    )
    NORM_AT_ZERO = (
        "The norm of a zero vector has no derivative: the derivative of the square root is infinite there.",
        "Add a small number inside: `tf.sqrt(tf.reduce_sum(x * x, axis) + 1e-12)`.",
    )
    DEVIATION_AT_ZERO = (
        "The standard deviation of equal values has no derivative: that of the square root is infinite at zero.",
        "Add a small number inside: `tf.sqrt(tf.math.reduce_variance(x, axis) + 1e-12)`.",
    )
    DIVISION_BY_ZERO = ("Division by zero.", "Use `tf.math.divide_no_nan(x, y)`, or add a small number to y.")
    ZERO_OVER_ZERO = ("0 / 0 is NaN.", "Use `tf.math.divide_no_nan(x, y)`, which is 0 where y is 0.")
    MEAN_OF_NOTHING = (
        "The mean of an empty tensor is 0 / 0.",
        "Divide explicitly: `tf.math.divide_no_nan(total, count)`.",
    )
    EXP_OVERFLOW = ("exp overflows.", "Bound the input, `tf.minimum(x, 80.0)`, or work in log space.")
    SOFTMAX_BY_HAND = (
        "exp overflows in a hand-written softmax.",
        "Use `tf.nn.softmax(x)`, or subtract the maximum first: `tf.exp(x - tf.reduce_max(x, axis, keepdims=True))`.",
    )
    LOGSUMEXP_BY_HAND = ("exp overflows in the log of a sum.", "Use `tf.reduce_logsumexp(x, axis)`.")
    SOFTPLUS_BY_HAND = ("exp overflows in log(1 + exp(x)).", "Use `tf.math.softplus(x)`.")
    SIGMOID_BY_HAND = ("exp overflows in a hand-written sigmoid.", "Use `tf.sigmoid(x)`.")
    HALF_OVERFLOW = (
        "Overflow in half precision.",
        'Compute it in float32, `tf.cast(x, tf.float32)` or `dtype="float32"` for the layer, or scale it down.',
    )
    OVERFLOW = ("Overflow.", "Scale the inputs down, or compute it in float64.")
    EXPLODED = (
        "Overflow: the weights have exploded.",
        "Lower the learning rate, warm it up, or clip gradients: `grads.clip(global_norm=1.0)`, "
        "or `global_clipnorm=1.0` for an optimizer of Keras.",
    )
    POW_OF_NEGATIVE = (
        "A negative number raised to a non-integer power is NaN.",
        "Bound the base: `tf.maximum(x, 0.0) ** p`.",
    )
    POW_OF_ZERO = ("Zero raised to a negative power is infinite.", "Keep the base away from zero: `(x + 1e-7) ** p`.")
    POW_AT_ZERO = (
        "The derivative of a power below 1 is infinite at zero.",
        "Add a small number to the base: `(x + 1e-7) ** p`.",
    )
    OUTSIDE_DOMAIN = (
        "The input is outside the domain of the function.",
        "Bound it: `tf.clip_by_value(x, -1.0 + 1e-6, 1.0 - 1e-6)`.",
    )
    EDGE_OF_DOMAIN = (
        "The derivative is infinite at the boundary of the function's domain.",
        "Keep the input inside: `tf.clip_by_value(x, -1.0 + 1e-6, 1.0 - 1e-6)`.",
    )
    ATAN2_AT_ZERO = ("The angle of a zero vector has no derivative.", _GUARD)
    ALL_MASKED = (
        "A softmax over only -inf is 0 / 0.",
        "Mask with a large finite number such as -1e9, or drop rows that are fully masked.",
    )
    INF_MINUS_INF = (
        "inf - inf is NaN.",
        "Use a large finite number instead of infinity, such as -1e9 in a mask.",
    )
    ZERO_TIMES_INF = ("0 · inf is NaN.", "Use a large finite number instead of infinity, or `tf.where`.")
    RSQRT_OF_ZERO = ("1 / sqrt(x) is infinite at zero.", "Add a small number inside: `tf.math.rsqrt(x + 1e-12)`.")
    NOT_DEFINITE = (
        "The matrix is not positive definite, so it has no Cholesky factor.",
        "Add a small number to its diagonal: `x + 1e-6 * tf.eye(n)`, and check that it is symmetric.",
    )
    INSIDE_FUNCTION = (
        "It was produced inside a tf.function that cannot be rerun op by op.",
        "Record again with `tf.config.run_functions_eagerly(True)`.",
    )
    GIVEN = (
        "The value was not computed on the tape, and was not finite when it was first used.",
        "Check it where it was made: `tf.debugging.check_numerics(value, 'input')`.",
    )
    UNKNOWN = ("No known cause matches the values.", "Check the ranges of the inputs.")

    @property
    def sentence(self) -> str:
        """The finding, as a sentence."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.value[1]
