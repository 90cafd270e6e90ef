"""What is remembered for the life of the process has a bound: a process may make functions, and files, without end."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.execute import _calls as gradients_of_functions
from retrotape.record import _attributes, _frames, _functions, _traits

# Caches without bound, each with the reason.
BOUNDED_BY_ITSELF: dict[str, str] = {}


def caches() -> Iterator[tuple[str, functools._lru_cache_wrapper]]:
    for info in pkgutil.walk_packages(rt.__path__, "retrotape."):
        if not info.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(info.name)).items():
                if isinstance(value, functools._lru_cache_wrapper) and value.__module__ == info.name:
                    yield f"{info.name}.{name}", value


def test_every_cache_that_takes_arguments_has_a_bound():
    found = dict(caches())
    assert "retrotape.record._traits.traits" in found
    endless = [
        name
        for name, value in found.items()
        if value.cache_info().maxsize is None and inspect.signature(value).parameters
    ]
    assert endless == list(BOUNDED_BY_ITSELF)


def test_names_of_functions_do_not_pile_up():
    for number in range(5000):
        _traits.traits(f"__inference_step_{number}")
    assert _traits.traits.cache_info().currsize <= 4096
    assert _traits.traits("MatMul").kind is _traits.Kind.PLAIN


def test_attributes_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(_attributes, "LARGEST", 50)
    monkeypatch.setattr(_attributes, "_cache", {})
    for seed in range(200):
        found = dict(_attributes.canonical("RandomUniform", ("seed", seed, "seed2", 7)))
        assert (found["seed"], found["seed2"]) == (seed, 7)
    assert len(_attributes._cache) <= 50


def test_files_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(_frames, "LARGEST", 50)
    monkeypatch.setattr(_frames, "_kinds", {})
    for number in range(200):
        assert not _frames.is_foreign(f"<cell {number}>")
    assert len(_frames._kinds) <= 50


@pytest.mark.parametrize("order", [1, 2])
def test_functions_that_are_gone_are_forgotten(order):
    def record_one() -> None:
        v = tf.Variable(2.0)
        step = tf.function(lambda x: tf.cond(x > 0.0, lambda: v * v * x, lambda: v * 1.0))
        with rt.Tape() as tape:
            found = step(tf.constant(3.0))
        for _ in range(order):
            found = tape.gradient(found, v)
        assert float(found) == (12.0 if order == 1 else 6.0)

    def remembered() -> int:
        return len(_functions._known) + len(gradients_of_functions._gradient_functions)

    record_one()
    gc.collect()
    before = remembered()
    for _ in range(3):
        record_one()
    gc.collect()
    assert remembered() <= before
