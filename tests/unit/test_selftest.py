"""A TensorFlow that nobody has tried is checked before it is trusted."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import _hooks, _selftest


@pytest.fixture
def untried(monkeypatch):
    monkeypatch.setattr(_selftest, "TRIED", ((1, 0), (1, 15)))
    monkeypatch.setattr(_selftest, "_checked", False)


def test_an_untried_tensorflow_is_checked_once_before_it_is_trusted(untried, monkeypatch):
    check, checked = _selftest.check, []
    monkeypatch.setattr(_selftest, "check", lambda make_tape: checked.append(check(make_tape)))
    x = tf.constant(3.0)
    for _ in range(2):
        with rt.Tape() as tape:
            y = x * x
        assert float(tape.gradient(y, x)) == 6.0
    assert len(checked) == 1


def test_a_tried_tensorflow_is_not_checked(monkeypatch):
    monkeypatch.setattr(_selftest, "_checked", False)
    monkeypatch.setattr(_selftest, "is_tried", lambda version: version == tf.__version__)
    monkeypatch.setattr(_selftest, "check", lambda make_tape: pytest.fail("a check that nobody needs"))
    with rt.Tape():
        pass


def test_a_tensorflow_that_hides_reads_is_refused(untried, monkeypatch):
    hooks = [hook for hook in _hooks._HOOKS if hook[1] != "TFE_Py_FastPathExecute"]
    monkeypatch.setattr(_hooks, "_HOOKS", tuple(hooks))
    for _ in range(2):  # and not only the first time
        with (
            pytest.raises(
                rt.errors.IncompatibleTensorFlowError, match=r"cannot record on TensorFlow .*install one of them"
            ),
            rt.Tape(),
        ):
            pass
