"""What `rt.load` and `tape.save` say to arguments that mean nothing."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import UnknownNameError, UnsafeTapeError
from retrotape.files import store


@pytest.fixture
def saved(tmp_path):
    x, w = tf.constant([1.0, 2.0]), tf.Variable([3.0, 4.0], name="w")
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.sin(x) * w)
    tape.save(tmp_path / "a.tape", {"x": x, "y": y})
    return tape, tmp_path / "a.tape"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"allow_ops": "Sin"}, TypeError, r"allow_ops= takes a list of ops, got 'Sin': `allow_ops=\['Sin'\]`"),
        ({"limits": 5}, TypeError, r"limits= takes `retrotape\.store\.Limits\(total_bytes=\.\.\.\)`, got int"),
        (
            {"memory": 2**30},
            ValueError,
            "memory= and timeout= apply to an isolated process: give isolate=True with them",
        ),
        (
            {"timeout": 5.0},
            ValueError,
            "memory= and timeout= apply to an isolated process: give isolate=True with them",
        ),
        ({"isolate": True, "memory": "2G"}, ValueError, "memory= takes a number above 0, got '2G'"),
        ({"isolate": True, "timeout": -1}, ValueError, "timeout= takes a number above 0, got -1"),
        ({"isolate": True, "timeout": float("nan")}, ValueError, "timeout= takes a number above 0, got nan"),
        ({"isolate": "very"}, ValueError, "isolate= must be False, True or 'strict', got 'very'"),
    ],
)
def test_options_of_load(options, error, text, saved):
    with pytest.raises(error, match=text):
        rt.load(saved[1], **options)


def test_limits_hold_in_the_other_process_too(saved):
    with pytest.raises(UnsafeTapeError, match="the tensors are too large"):
        rt.load(saved[1], isolate=True, limits=store.Limits(total_bytes=1))


def test_no_file_is_no_file_wherever_it_is_loaded(tmp_path):
    for isolate in (False, True):
        with pytest.raises(FileNotFoundError, match=r"none\.tape"):
            rt.load(tmp_path / "none.tape", isolate=isolate)


@pytest.mark.parametrize("names", [["x"], {"x"}, "x", tf.constant(1.0)])
def test_names_that_are_no_mapping(names, saved, tmp_path):
    for save in (saved[0].save, saved[0].export_saved_model, saved[0].export_graph):
        with pytest.raises(TypeError, match=r"names= takes a mapping, `\{'x': x, 'loss': loss\}`; got "):
            save(tmp_path / "b", names)


def test_redact_takes_names_not_tensors(saved, tmp_path):
    with pytest.raises(TypeError, match="redact= takes names, got EagerTensor"):
        saved[0].save(tmp_path / "b.tape", redact=[tf.constant(1.0)])


def test_words_that_are_options_are_no_names(saved):
    loaded = rt.load(saved[1])
    same = loaded.gradient("y", "x", None, "zero")
    np.testing.assert_array_equal(same, loaded.gradient("y", "x"))
    np.testing.assert_array_equal(loaded.hvp("y", "x", vectors="x"), loaded.hvp("y", "x", loaded["x"]))
    np.testing.assert_array_equal(loaded.jacobian("y", "x", "none"), same)
    with pytest.raises(UnknownNameError, match="nothing named 'zero'"):
        loaded.gradient("y", "zero")
