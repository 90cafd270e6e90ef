"""Why there is a gradient, or none: every verdict is a sentence, what to do about it, and the same in few words."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What was found. The value is a sentence, the remedy, and what is said of a source that has no gradient."""

    CONNECTED = ("There is a path.", "", "there is a path")
    ZERO = ("There is a path, but what arrives at its end is zero.", "", "there is a path, and the gradient is zero")
    NO_PATH = (
        "Both are on the tape, but no op leads from the one to the other.",
        "Check that the source is what the target was computed from.",
        "no recorded op leads from it to the loss",
    )
    SOURCE_NOT_RECORDED = (
        "The source was not used in what was recorded.",
        "",
        "it was not used in what this tape recorded",
    )
    TARGET_NOT_RECORDED = ("The target is not on this tape.", "", "the loss is not on this tape")
    SAME_NAME = (
        "The tape has read another variable of the same name, not this one.",
        "Ask for the variable that the model uses: `model.trainable_variables`.",
        "another variable of its name was read on this tape",
    )
    COPY = (
        "The source is a copy of what the target was computed from.",
        "Ask for the original, or compute from the copy.",
        "it is a copy of what the loss was computed from",
    )
    LEFT_TENSORFLOW = (
        "A value left TensorFlow, and the target depends on a constant that was made after that.",
        "Stay with tensors: write it with TensorFlow ops, or wrap it in `tf.custom_gradient` or `tf.py_function`.",
        "its value left TensorFlow",
    )
    STOP_GRADIENT = (
        "`tf.stop_gradient` cuts the path.",
        "Remove it, or ask about what comes after it.",
        "`tf.stop_gradient` cuts the path",
    )
    INTEGER = (
        "The path goes through whole numbers, booleans or text, which have no derivative.",
        "Stay in floating point: put a smooth function in the place of this op.",
        "the path goes through whole numbers, booleans or text",
    )
    NO_GRADIENT = (
        "The path goes through an op that has no gradient.",
        "Use an op that has one, or say what its gradient is with `tf.custom_gradient`.",
        "the path goes through an op that has no gradient",
    )
    RULE_RETURNED_NONE = (
        "The gradient function of an op on the path returned None.",
        "Use another op, or say what its gradient is with `tf.custom_gradient`.",
        "the gradient function of an op on the path returned None",
    )
    ASSIGNMENT = (
        "The path goes through an assignment, which ends it as on the stock tape.",
        "Ask with `through_updates=True`.",
        "an assignment ends every path; ask with through_updates=True",
    )
    SINCE = (
        "The path goes through an assignment at which `since` ends it.",
        "Ask from an earlier value on.",
        "since= ends every path; ask from an earlier value on",
    )
    UNSEEN_UPDATE = (
        "The target depends on a value that a variable was given while nothing was recorded.",
        "Assign it inside the block.",
        "the loss depends on a variable that was assigned while nothing was recorded",
    )
    INSIDE_FUNCTION = (
        "The path ends inside a tf.function, and the exact op cannot be determined.",
        "Record with `tf.config.run_functions_eagerly(True)` and ask again.",
        "the path ends inside a tf.function",
    )
    UNKNOWN = (
        "There is no gradient, and the recording does not show why.",
        "Look at the two ends below.",
        "the recording does not show why",
    )

    @property
    def sentence(self) -> str:
        """What is so."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.value[1]

    @property
    def reason(self) -> str:
        """What is so, in few words, said of the source."""
        return self.value[2]
