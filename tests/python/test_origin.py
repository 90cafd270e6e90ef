"""Whose code it is, is decided by its file."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib.util
import json
import logging
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.python import LIBRARY, NEUTRAL, USER, of_class, of_code


@dataclasses.dataclass
class Mine:
    rate: float = 1.0


class Sub(json.JSONDecoder):
    def decode(self, *args):
        return super().decode(*args)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: None, USER),
        (Mine.__init__, USER),
        (tf.reduce_sum, LIBRARY),
        (keras.ops.sum, LIBRARY),
        (np.mean.__wrapped__, LIBRARY),
        (rt.compile, LIBRARY),
        (contextlib.nullcontext.__enter__, NEUTRAL),
        (collections.namedtuple("Pair", "a b").__new__, NEUTRAL),
        (logging.getLogger, LIBRARY),
    ],
)
def test_code(function, expected):
    function = getattr(function, "__wrapped__", function)
    assert of_code(function.__code__, function.__globals__) == expected


@pytest.mark.parametrize(
    ("kind", "expected"), [(Mine, USER), (Sub, USER), (argparse.Namespace, NEUTRAL), (keras.Layer, LIBRARY)]
)
def test_classes(kind, expected):
    assert of_class(kind) == expected


def test_a_users_file_with_the_name_of_a_module_of_python(tmp_path, monkeypatch):
    path = tmp_path / "sched.py"
    path.write_text("class Warmup:\n    def get(self):\n        return 1.0\n")
    spec = importlib.util.spec_from_file_location("sched", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sched", module)
    spec.loader.exec_module(module)
    assert of_class(module.Warmup) == USER


def test_generated_code_is_that_of_the_module_of_its_globals():
    space: dict = {"__name__": "anywhere"}
    exec("def f(): pass", space)
    assert of_code(space["f"].__code__, space) == USER
