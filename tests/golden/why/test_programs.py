"""Wrong programs, and what `tape.why` says of each.

The texts are next to this file; `UPDATE_GOLDEN=1 pytest tests/golden/why` writes them anew. The table below is written
by hand, so that a text which is wrong cannot become golden by that.
"""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tensorflow as tf

import retrotape as rt
from golden.why.programs import PROGRAMS
from retrotape import errors
from retrotape.diagnose.why import Explanation, Verdict

FOLDER = Path(__file__).parent
# Also after "If it was computed from the values that Python read, k".
STAY = "eep the computation in TensorFlow: use its ops"
SMOOTH = "Stay in floating point: replace this op"
PASS = "Use a straight-through estimator, whose backward pass treats the op as the identity"
CHOICE = "Use a straight-through estimator, `soft + tf.stop_gradient(hard - soft)`"
USE = "Use a differentiable op"
CHECK = "Check that the target is computed from this source."
UPDATES = "Pass `through_updates=True`."
INSIDE = "Move the code that makes it into the `with` block"
READ = "Read it inside the block"


class Expected(NamedTuple):
    """What is so. The line is the one that ends in `# here`, where there is an op."""

    verdict: str
    op: str | None
    remedy: str
    has_gradient: bool = False


TABLE = {
    "numpy_round_trip": Expected("LEFT_TENSORFLOW", "numpy()", STAY),
    "float_of_the_loss": Expected("LEFT_TENSORFLOW", "float()", STAY),
    "item_of_the_loss": Expected("LEFT_TENSORFLOW", "numpy()", STAY),
    "list_of_numbers": Expected("LEFT_TENSORFLOW", "numpy()", STAY),
    "keras_predict": Expected("LEFT_TENSORFLOW", "numpy()", STAY),
    "numpy_function": Expected("LEFT_TENSORFLOW", "numpy_function", STAY),
    "numpy_function_of_a_tensor": Expected("LEFT_TENSORFLOW", "numpy_function", STAY),
    "numpy_function_in_a_function": Expected("LEFT_TENSORFLOW", "PyFunc", STAY),
    # The buffer protocol leaves no trace: that NumPy took these is not known, and not claimed.
    "np_array_of_a_tensor": Expected("NO_PATH", "Pow", STAY),
    "numpy_does_the_sum": Expected("NO_PATH", None, CHECK),
    "a_number_for_an_op": Expected("LEFT_TENSORFLOW", "float()", STAY),
    "the_first_of_two_numbers": Expected("LEFT_TENSORFLOW", "float()", STAY),
    "clipped_by_numpy": Expected("LEFT_TENSORFLOW", "numpy()", STAY),
    "logged_before_another_batch": Expected("NO_PATH", None, CHECK),
    "accuracy_as_loss": Expected("INTEGER", "ArgMax", CHOICE),
    "one_hot_of_argmax": Expected("INTEGER", "ArgMax", CHOICE),
    "rounded": Expected("RULE_RETURNED_NONE", "Round", PASS),
    "signs": Expected("ZERO", "Sign", PASS, True),
    "floor_division": Expected("RULE_RETURNED_NONE", "FloorDiv", PASS),
    "cast_to_int_and_back": Expected("INTEGER", "Cast", SMOOTH),
    "comparison_as_mask": Expected("INTEGER", "Greater", SMOOTH),
    "indices_of_a_gather": Expected("INTEGER", "Cast", SMOOTH),
    "indices_of_top_k": Expected("INTEGER", "TopKV2", CHOICE),
    "unique_values": Expected("NO_GRADIENT", "Unique", USE),
    "written_as_text": Expected("INTEGER", "AsString", SMOOTH),
    "histogram_of_an_image": Expected("INTEGER", "HistogramFixedWidth", SMOOTH),
    "boxes_that_overlap": Expected("INTEGER", "NonMaxSuppressionV3", SMOOTH),
    "jpeg_quality": Expected("INTEGER", "Cast", SMOOTH),
    "image_saturation": Expected("NO_GRADIENT", "AdjustSaturation", USE),
    "sampled_action": Expected("INTEGER", "Multinomial", CHOICE),
    "keras_argmin": Expected("INTEGER", "ArgMin", CHOICE),
    "keras_round": Expected("RULE_RETURNED_NONE", "Round", PASS),
    "keras_sample": Expected("INTEGER", "StatelessMultinomial", CHOICE),
    "keras_accuracy": Expected("INTEGER", "Greater", SMOOTH),
    "drawn_with_a_probability": Expected("INTEGER", "Less", CHOICE),
    "divided_by_the_norm_of_numpy": Expected("CONNECTED", None, "Compute it in TensorFlow too: use `tf.norm`", True),
    "rows_divided_by_norms_of_numpy": Expected("CONNECTED", None, "Compute it in TensorFlow too: use `tf.norm`", True),
    "logged_on_the_way": Expected("CONNECTED", None, "", True),
    "its_shape_alone": Expected("NO_GRADIENT", "OnesLike", CHECK),
    "integer_source": Expected("INTEGER", None, "Make the source floating point."),
    "integer_target": Expected("INTEGER", None, "Make the target floating point."),
    "rounded_and_cast": Expected("RULE_RETURNED_NONE", "Round", PASS),
    "through_a_dataset": Expected("NO_GRADIENT", "TensorSliceDataset", "Do not use `tf.data` between them"),
    "target_network": Expected("STOP_GRADIENT", "StopGradient", "Remove it"),
    "stopped_in_a_function": Expected("STOP_GRADIENT", "StopGradient", "Remove it"),
    "rounded_in_a_function": Expected("INTEGER", "Cast", SMOOTH),
    "noise_in_a_function": Expected("INSIDE_FUNCTION", "tf.function 'noisy'", "run_functions_eagerly"),
    "stopped_beside_noise_in_a_function": Expected("STOP_GRADIENT", "StopGradient", "Remove it"),
    "cut_on_every_route": Expected("STOP_GRADIENT", "StopGradient", "Remove it"),
    "custom_gradient_that_returns_none": Expected(
        "RULE_RETURNED_NONE", "custom gradient 'straight'", "Return a gradient for this input"
    ),
    "computed_before_the_block": Expected("TARGET_NOT_RECORDED", None, INSIDE),
    "computed_after_the_block": Expected("TARGET_NOT_RECORDED", None, INSIDE),
    "computed_in_a_pause": Expected("TARGET_NOT_RECORDED", None, "out of `tape.stop_recording()`"),
    "source_used_only_in_a_pause": Expected("SOURCE_NOT_RECORDED", None, READ),
    "path_through_a_pause": Expected("NO_PATH", None, CHECK),
    "features_made_before_the_block": Expected("SOURCE_NOT_RECORDED", None, READ),
    "on_another_thread": Expected("TARGET_NOT_RECORDED", None, "on the thread that records"),
    "input_from_another_thread": Expected("NO_PATH", None, CHECK),
    "computed_again_on_another_thread": Expected("NO_PATH", "Sum", "compute it on the thread that records"),
    "asked_after_reset": Expected("TARGET_NOT_RECORDED", None, ""),
    "a_copy_of_the_input": Expected("SOURCE_NOT_RECORDED", None, "pass that same object as the source"),
    "a_copy_of_the_weights": Expected("COPY", "Identity", "Pass the original as the source"),
    "another_layer_of_the_same_name": Expected("SAME_NAME", None, "Pass the variable that the model uses"),
    "another_variable_of_the_same_name": Expected("SAME_NAME", None, "Pass the variable that the model uses"),
    "a_layer_that_is_not_used": Expected("SOURCE_NOT_RECORDED", None, READ),
    "logged_and_unrelated": Expected("NO_PATH", None, CHECK),
    "the_other_loss": Expected("NO_PATH", None, CHECK),
    "target_and_source_swapped": Expected("NO_PATH", None, "Swap them"),
    "chosen_by_an_if": Expected("NO_PATH", None, "The condition of a branch or a loop has no gradient"),
    "a_copy_of_a_variable": Expected("SOURCE_NOT_RECORDED", None, "Pass the variable as the source."),
    "hypernetwork": Expected("ASSIGNMENT", "AssignVariableOp", UPDATES),
    "set_weights": Expected("ASSIGNMENT", "AssignVariableOp", UPDATES),
    "optimizer_step_then_loss": Expected("ASSIGNMENT", "AssignSubVariableOp", UPDATES),
    "variable_made_of_a_value": Expected("ASSIGNMENT", "AssignVariableOp", UPDATES),
    "assigned_between_two_blocks": Expected("UNSEEN_UPDATE", "AssignVariableOp", "Assign it inside the block."),
    "assigned_in_a_pause": Expected("UNSEEN_UPDATE", None, "Assign it inside the block."),
    "python_list_in_a_function": Expected("NO_PATH", None, CHECK),
    "dead_relu": Expected("ZERO", "Relu", "Try another initialization", True),
    "saturated_sigmoid": Expected("ZERO", "Sigmoid", "Scale its input down", True),
    "clipped_away": Expected("ZERO", "Minimum", "Widen the bound", True),
    "mask_of_zeros": Expected("ZERO", "Mul", "Check the other factor.", True),
    "loss_weight_of_zero": Expected("ZERO", "Mul", "Check the other factor.", True),
    "branch_not_taken_by_where": Expected("ZERO", "SelectV2", "Check the condition.", True),
    "branch_not_taken_by_cond": Expected("ZERO", "tf.function 'chosen'", CHECK, True),
    "zero_kernel": Expected("ZERO", "MatMul", "Check the other factor.", True),
    "square_at_zero": Expected("ZERO", "Square", "Start from nonzero values.", True),
    "softmax_of_one": Expected("ZERO", "Softmax", "Use a sigmoid", True),
    "terms_that_cancel": Expected("ZERO", None, "Look for terms that cancel.", True),
    "stopped_in_a_loop_of_a_function": Expected("ZERO", "StopGradient", "Remove it", True),
    "the_other_result_of_a_function": Expected("ZERO", "tf.function 'errors'", CHECK, True),
    "too_small_for_half_precision": Expected("ZERO", "Mul", "compute it in float32", True),
    "nothing_left_by_a_mask": Expected("ZERO", "Sum", "Check the mask", True),
    "sum_of_chances": Expected("ZERO", "Softmax", "Weight the classes", True),
    "dropped_before_a_square": Expected("ZERO", "Pow", "Start from nonzero values.", True),
    "another_part_of_a_concat": Expected("ZERO", "ConcatV2", "Check what is taken from it", True),
    "frozen_layer": Expected("CONNECTED", None, "", True),
    "py_function": Expected("CONNECTED", None, "", True),
    "while_loop": Expected("CONNECTED", None, "", True),
    "watched_by_nobody": Expected("CONNECTED", None, "", True),
}
ELSEWHERE = {"SINCE", "UNKNOWN"}  # tested in tests/diagnose/why/test_why.py

# What is lost in a file: functions are saved as what they ran, some ops as what they gave, and no code.
NOT_IN_FILES = {
    "branch_not_taken_by_cond",
    "jpeg_quality",
    "a_number_for_an_op",
    "stopped_in_a_loop_of_a_function",
    "the_other_result_of_a_function",
}
CANNOT_BE_SAVED = ("function", "predict", "dataset")


def line_to_blame(name: str) -> int:
    lines, first = inspect.getsourcelines(PROGRAMS[name])
    (found,) = [number for number, line in enumerate(lines, first) if line.rstrip().endswith("# here")]
    return found


def gradient(tape: rt.Tape, target: Any, source: Any) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.NotDifferentiableWarning)
            return tape.gradient(target, source)
    except (errors.NotRecordedError, errors.NoRuleError):
        return None


def test_the_table_is_whole():
    assert sorted(TABLE) == sorted(PROGRAMS)
    assert {row.verdict for row in TABLE.values()} | ELSEWHERE == {verdict.name for verdict in Verdict}
    assert sum(row.verdict == "UNKNOWN" for row in TABLE.values()) <= 2
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == sorted(PROGRAMS)


@pytest.mark.parametrize("name", TABLE)
def test_verdict_op_line_and_remedy(name):
    tape, target, source = PROGRAMS[name]()
    found, expected = tape.why(target, source), TABLE[name]
    assert found.verdict.name == expected.verdict
    assert (found.cut and found.cut.op) == expected.op
    if expected.op is not None and expected.verdict != "COPY":
        where = (inspect.getsourcefile(PROGRAMS[name]), line_to_blame(name))
        assert (found.cut.frame.file, found.cut.frame.line) == where
        assert "# here" in str(found)
    told = found.remedy or found.verdict.remedy
    assert expected.remedy in told
    assert bool(expected.remedy) == bool(told) or name == "asked_after_reset"


@pytest.mark.parametrize("name", TABLE)
def test_the_verdict_is_that_of_the_gradient(name):
    tape, target, source = PROGRAMS[name]()
    grad, expected = gradient(tape, target, source), TABLE[name]
    assert (grad is not None) == expected.has_gradient
    if grad is not None:
        assert bool(tf.reduce_any(tf.convert_to_tensor(grad) != 0.0)) == (expected.verdict == "CONNECTED")
    assert tape.why(target, source).verdict.name == expected.verdict  # also after the gradient was asked for


@pytest.mark.parametrize("name", TABLE)
def test_the_text_is_as_it_was(name):
    text = str(explained(name)).replace(str(FOLDER) + os.sep, "") + "\n"
    golden = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def explained(name: str) -> Explanation:
    tape, target, source = PROGRAMS[name]()
    return tape.why(target, source)


@pytest.mark.parametrize("name", [name for name in TABLE if name not in NOT_IN_FILES])
def test_a_saved_tape_says_the_same(name, tmp_path):
    tape, target, source = PROGRAMS[name]()
    before = tape.why(target, source)
    try:
        tape.save(tmp_path / "it.tape", {"target": target, "source": source})
    except (errors.NotRecordedError, errors.NotPersistableError):
        absent = before.verdict.name.endswith(("NOT_RECORDED", "NAME"))
        assert absent or any(part in name for part in CANNOT_BE_SAVED)
        return
    after = rt.load(tmp_path / "it.tape").why("target", "source")
    assert (after.verdict, after.cut, after.reached, after.leading) == (
        before.verdict,
        before.cut,
        before.reached,
        before.leading,
    )
