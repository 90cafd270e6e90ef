"""Functions of a tape in every form, each made for a factor: equal factors make equal functions."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

Question = Callable[[Any], Any]


def loss(tape: Any) -> float:
    return float(tape["loss"])


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, tape: Any) -> float:
        return self.factor * loss(tape)

    def method(self, tape: Any) -> float:
        return self.factor * loss(tape)


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, tape: Any) -> float:
        return self.factor * loss(tape)


def closure(factor: float) -> Question:
    return lambda tape: factor * loss(tape)


def two_closures(factor: float) -> Question:
    first, second = closure(1.0), closure(factor - 1.0)
    return lambda tape: first(tape) + second(tape)


def wrapped(factor: float) -> Question:
    @functools.wraps(loss)
    def wrapper(tape: Any) -> float:
        return factor * loss(tape)

    return wrapper


def wrapped_twice(factor: float) -> Question:
    inner = wrapped(factor)

    @functools.wraps(inner)
    def wrapper(tape: Any) -> float:
        return inner(tape)

    return wrapper


def class_method(factor: float) -> Question:
    class Held:
        value = factor

        @classmethod
        def scaled(cls, tape: Any) -> float:
            return cls.value * loss(tape)

    return Held.scaled


def class_attribute(factor: float) -> Question:
    held = type("Held", (), {"value": factor, "read": property(lambda self: factor)})
    return lambda tape: held.value * loss(tape)


def instance_of_local_class(factor: float) -> Question:
    class Local:
        def __call__(self, tape: Any) -> float:
            return factor * loss(tape)

    return Local()


def module_attribute(factor: float) -> Question:
    module = types.ModuleType("made_here")
    exec(f"def scaled(value):\n    return {factor} * value", vars(module))
    return lambda tape: module.scaled(loss(tape))


def imported_inside(factor: float) -> Question:
    module: Any = types.ModuleType("made_for_import")
    module.factor = factor
    sys.modules["made_for_import"] = module

    def question(tape: Any) -> float:
        from made_for_import import factor  # type: ignore[import-not-found]

        return factor * loss(tape)

    return question


def function_attribute(factor: float) -> Question:
    def question(tape: Any) -> float:
        return question.factor * loss(tape)  # type: ignore[attr-defined]

    question.factor = factor  # type: ignore[attr-defined]
    return question


def made_by_a_library(factor: float) -> Question:
    @contextmanager
    def scaled():
        yield factor

    def question(tape: Any) -> float:
        with scaled() as found:
            return found * loss(tape)

    return question


def in_containers(factor: float) -> Question:
    held: Any = {"functions": [closure(factor)], "unordered": {"a", "b", "c"}}
    held["itself"] = held
    return lambda tape: held["functions"][0](tape)


def tensors(factor: float) -> Question:
    tensor, variable, array = tf.constant(factor), tf.Variable(factor), np.full(3, factor)
    return lambda tape: float(tensor + variable + array[0]) / 3.0 * loss(tape)


def function_of_tensorflow(factor: float) -> Question:
    compiled = tf.function(lambda value: value * factor)
    compiled(tf.constant(1.0))
    return lambda tape: float(compiled(tape["loss"]))


FORMS: dict[str, Callable[[float], Question]] = {
    "callable object": Scale,
    "slots": Slotted,
    "bound method": lambda factor: Scale(factor).method,
    "partial": lambda factor: functools.partial(Scale.method, Scale(factor)),
    "partial of a closure": lambda factor: functools.partial(closure(factor)),
    "default": lambda factor: lambda tape, factor=factor: factor * loss(tape),
    "keyword default": lambda factor: lambda tape, *, factor=factor: factor * loss(tape),
    **{
        made.__name__: made
        for made in (
            closure,
            two_closures,
            wrapped,
            wrapped_twice,
            class_method,
            class_attribute,
            instance_of_local_class,
            module_attribute,
            imported_inside,
            function_attribute,
            made_by_a_library,
            in_containers,
            tensors,
            function_of_tensorflow,
        )
    },
}

if __name__ == "__main__":
    from distribute import forms
    from retrotape.distribute._fingerprint import fingerprint

    for title, form in forms.FORMS.items():
        print(title, fingerprint(form(2.0)), sep=":")
