"""Why there is a gradient, or none: every verdict is a sentence and what to do about it."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What was found. The value is a sentence, and the remedy."""

    CONNECTED = ("There is a path, and the gradient is not zero.", "")
    ZERO = ("There is a path, but the gradient is zero all along it from here on.", "")
    NO_PATH = (
        "Both are on the tape, but no op leads from the one to the other.",
        "Check that the source is what the target was computed from.",
    )
    SOURCE_NOT_RECORDED = ("The source took no part in what was recorded.", "")
    TARGET_NOT_RECORDED = ("The target is not on this tape.", "")
    SAME_NAME = (
        "The tape has read another variable of the same name, not this one.",
        "Ask for the variable that the model uses: `model.trainable_variables`.",
    )
    LEFT_TENSORFLOW = (
        "The value left TensorFlow and came back as a constant.",
        "Stay with tensors: write it with TensorFlow ops, or wrap it in `tf.custom_gradient` or `tf.py_function`.",
    )
    STOP_GRADIENT = ("`tf.stop_gradient` cuts the path.", "Remove it, or ask about what comes after it.")
    INTEGER = (
        "The path goes through whole numbers or booleans, which have no derivative.",
        "Stay in floating point: a smooth function in place of the cast or the comparison.",
    )
    NO_GRADIENT = (
        "The path goes through an op that has no gradient.",
        "Use an op that has one, or say what its gradient is with `tf.custom_gradient`.",
    )
    RULE_RETURNED_NONE = (
        "The gradient function of an op on the path returned None.",
        "Use another op, or say what its gradient is with `tf.custom_gradient`.",
    )
    ASSIGNMENT = (
        "The path goes through an assignment, which ends it as on the stock tape.",
        "Ask with `through_updates=True`.",
    )
    UNSEEN_UPDATE = (
        "The path goes through a variable that was assigned while nothing was recorded.",
        "Assign it inside the block.",
    )
    INSIDE_FUNCTION = (
        "The path ends inside a tf.function, and it cannot be told where.",
        "Record with `tf.config.run_functions_eagerly(True)` and ask again.",
    )
    UNKNOWN = ("There is no gradient, and the recording does not show why.", "Look at the two ends below.")

    @property
    def sentence(self) -> str:
        """What is so."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.value[1]
