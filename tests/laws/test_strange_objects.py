"""Objects that raise where they are looked at, in the closures, defaults and globals of backward functions."""

from __future__ import annotations

import array
import ctypes
import io
import threading

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

SPECIAL = """hash eq ne bool len iter getitem contains array repr str float int index""".split()  # noqa: SIM905


def refuse(*args, **options):
    raise RuntimeError("looked at")


REFUSING = {f"__{name}__": refuse for name in SPECIAL}


class Meta(type):
    __hash__ = __eq__ = __bool__ = __len__ = __iter__ = __repr__ = __instancecheck__ = __subclasscheck__ = refuse


class NoAttributes:
    factor = 2.0

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


class Dictionary(dict):
    __hash__, factor = None, 2.0
    __getitem__ = items = values = keys = __iter__ = refuse


class Listed(list):
    factor = 2.0
    __iter__ = __len__ = __getitem__ = refuse


class Array(np.ndarray):
    factor = 2.0
    __eq__ = __hash__ = refuse


def factor(thing):
    return thing.factor


def first(thing):
    return float(thing[0])


def two(thing):
    return 2.0


THINGS = {
    "all special methods": (type("Hostile", (), {**REFUSING, "factor": 2.0})(), factor),
    "of a strange class": (Meta("Strange", (), {"factor": 2.0})(), factor),
    "a strange class": (Meta("Strange", (), {"factor": 2.0}), factor),
    "no attributes": (NoAttributes(), factor),
    "a dictionary": (Dictionary(a=1), factor),
    "a list": (Listed([1]), factor),
    "an array": (np.zeros(2).view(Array), factor),
    "a memoryview": (memoryview(np.array([2.0])), first),
    "a bytearray": (bytearray(b"\2"), first),
    "an array of Python's": (array.array("d", [2.0]), first),
    "a C number": (ctypes.c_double(2.0), lambda thing: thing.value),
    "bytes in memory": (io.BytesIO(b"ab"), lambda thing: float(len(thing.getvalue()))),
    "a lock": (threading.Lock(), two),
    "a set": ({2.0}, two),
    "a generator": ((each for each in [2.0]), two),
    "a record": (np.zeros(1, [("a", "f4")])[0], two),
    "an array of objects": (np.array([2.0, None], object), first),
}
THING = None


def in_closure(thing, use):
    return lambda dy: dy * use(thing)


def as_default(thing, use):
    def backward(dy, thing=thing):
        return dy * use(thing)

    return backward


def in_globals(thing, use):
    global THING
    THING = thing
    return lambda dy: dy * use(THING)


@pytest.mark.parametrize("wrap", [lambda call: call, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("way", [in_closure, as_default, in_globals])
@pytest.mark.parametrize("name", THINGS)
def test_gradients_of_functions_that_refer_to_it(name, way, wrap):
    thing, use = THINGS[name]

    @tf.custom_gradient
    def operation(x):
        return tf.sin(x), way(thing, use)

    v = tf.Variable([1.0, 2.0])
    call = wrap(lambda x: operation(x * 2.0))
    for _ in range(4):
        with rt.Tape() as tape:
            y = call(v)
        np.testing.assert_array_equal(tape.gradient(y, v), [4.0, 4.0])
