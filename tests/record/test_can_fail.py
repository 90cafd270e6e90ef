"""The checks of these tests notice what is wrong."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import X, assert_close
from helpers.untouched import is_untouched
from retrotape.tf import hooks


def test_a_wrong_rule_is_noticed(monkeypatch):
    from retrotape.rules import Rule, _lookup

    monkeypatch.setitem(_lookup.RULES, "Sin", Rule(lambda op, grad: grad * 2.0))
    with rt.Tape() as tape:
        y = tf.sin(X)
    with pytest.raises(AssertionError):
        assert_close(tape.gradient(y, X), tf.cos(X))


def test_a_hook_left_behind_is_noticed(monkeypatch):
    owner, name, hook = hooks._HOOKS[1]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, hook)
        assert not is_untouched()
    assert is_untouched()
