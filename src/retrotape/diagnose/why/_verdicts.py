"""Why there is a gradient, or none: every verdict has a sentence, a remedy, and a short reason."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What was found. The value is a sentence, the remedy, and a short reason for a source without gradient."""

    CONNECTED = ("There is a path from the source to the target.", "", "there is a path")
    ZERO = ("There is a path from the source to the target, but the gradient is zero.", "", "the gradient is zero")
    NO_PATH = (
        "Both are on the tape, but no recorded op connects the source to the target.",
        "Check that the target is computed from this source.",
        "no recorded op connects it to the loss",
    )
    SOURCE_NOT_RECORDED = (
        "No recorded op used the source.",
        "",
        "no op on this tape used it",
    )
    TARGET_NOT_RECORDED = ("The target is not on this tape.", "", "the loss is not on this tape")
    SAME_NAME = (
        "Another variable with the same name was read on this tape, not this one.",
        "Pass the variable that the model uses: see `model.trainable_variables`.",
        "another variable with the same name was read on this tape",
    )
    COPY = (
        "The source is a copy of a value that the target was computed from.",
        "Pass the original as the source, or compute the target from the copy.",
        "it is a copy of a value that the loss was computed from",
    )
    LEFT_TENSORFLOW = (
        "A value left TensorFlow, and the target depends on a constant that Python made afterwards.",
        "Keep the computation in TensorFlow: use its ops, or wrap it in `tf.custom_gradient` or `tf.py_function`.",
        "its value left TensorFlow",
    )
    STOP_GRADIENT = (
        "`tf.stop_gradient` cuts the path.",
        "Remove it, or use a tensor computed after it as the source.",
        "`tf.stop_gradient` cuts the path",
    )
    INTEGER = (
        "The path goes through integers, booleans or strings, which are not differentiable.",
        "Stay in floating point: replace this op with a smooth function.",
        "the path goes through integers, booleans or strings",
    )
    NO_GRADIENT = (
        "The path goes through an op that has no gradient.",
        "Use a differentiable op, or define a gradient with `tf.custom_gradient`.",
        "the path goes through an op that has no gradient",
    )
    RULE_RETURNED_NONE = (
        "The gradient function of an op on the path returned None.",
        "Use another op, or define a gradient with `tf.custom_gradient`.",
        "the gradient function of an op on the path returned None",
    )
    ASSIGNMENT = (
        "The path goes through a variable assignment, where it ends by default, as on `tf.GradientTape`.",
        "Pass `through_updates=True`.",
        "every path ends at an assignment; pass through_updates=True",
    )
    SINCE = (
        "The path goes through an assignment that `since` excludes.",
        "Start from an earlier value of the variable.",
        "since= excludes every path; start from an earlier value",
    )
    UNSEEN_UPDATE = (
        "The target depends on a variable that was assigned while the tape was not recording.",
        "Assign it inside the block.",
        "the loss depends on a variable that was assigned while the tape was not recording",
    )
    INSIDE_FUNCTION = (
        "The path ends inside a tf.function, and the exact op cannot be determined.",
        "Record again with `tf.config.run_functions_eagerly(True)`.",
        "the path ends inside a tf.function",
    )
    UNKNOWN = (
        "There is no gradient, and the tape does not show why.",
        "Compare the ops that use the source with those that lead to the target.",
        "the tape does not show why",
    )

    @property
    def sentence(self) -> str:
        """The finding, as a sentence."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.value[1]

    @property
    def reason(self) -> str:
        """The finding in a few words, about the source."""
        return self.value[2]
