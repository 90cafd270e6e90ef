"""What is remembered of earlier programs: neither tensors nor variables, and not without end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.warm import forgetful
from record.following import has_followed
from retrotape.record import _expected, _sites

X = tf.constant([0.5, -1.5, 2.0])


@pytest.fixture(autouse=True)
def _begins_without_programs() -> Iterator[None]:
    with forgetful():
        yield


def chain(length: int) -> rt.Tape:
    with rt.Tape() as tape:
        y = X
        for _ in range(length):
            y = tf.sin(y)
        tf.cos(y)
    return tape


def test_no_tensor_is_kept_alive():
    def once():
        x = X * 2.0
        with rt.Tape() as tape:
            y = tf.sin(x * 3.0)
            z = tf.reduce_sum(y * y)
        tape.gradient(z, x)
        return [weakref.ref(what) for what in (x, y, z, tape)]

    found = [ref for _ in range(5) for ref in once()]
    gc.collect()
    assert [ref() for ref in found] == [None] * 20


def test_no_variable_is_kept_alive():
    def once():
        w = tf.Variable([1.0, 2.0, 3.0])
        for _ in range(4):
            with rt.Tape() as tape:
                loss = tf.reduce_sum(w * X)
                w.assign_add(X)
            tape.gradient(loss, [w])
        assert has_followed(tape)
        return weakref.ref(w), weakref.ref(w.handle)

    found = once()
    gc.collect()
    assert [ref() for ref in found] == [None, None]


def test_no_backward_function_is_kept_alive():
    class Held:
        pass

    def once():
        held = Held()

        @tf.custom_gradient
        def custom(a):
            return a * 1.0, lambda dy: dy * 2.0 if held else dy

        for _ in range(4):
            with rt.Tape() as tape:
                y = custom(X)
            tape.gradient(y, X)
        return weakref.ref(held)

    found = once()
    gc.collect()
    assert found() is None


def test_a_variable_that_takes_the_place_of_a_dead_one_has_its_own_values():
    for number in range(6):
        w = tf.Variable([float(number)] * 3)
        with rt.Tape() as tape:
            y = tf.reduce_sum(w * w)
        assert tape.gradient(y, w).numpy().tolist() == [2.0 * number] * 3
        del w, tape, y


def test_the_number_of_places_is_bounded(monkeypatch):
    monkeypatch.setattr(_sites, "SITES", 3)
    for number in range(8):
        space = {"rt": rt, "tf": tf, "X": X}
        exec(compile("with rt.Tape():\n    tf.sin(X)", f"<cell {number}>", "exec"), space)
    assert len(_sites._sites) == 3


def test_the_number_of_programs_of_a_place_is_bounded(monkeypatch):
    monkeypatch.setattr(_sites, "TEMPLATES", 3)
    for length in range(8):
        chain(length)
    (site,) = _sites._sites.values()
    assert [len(template.eqns) for template in site.templates] == [8, 7, 6]
    assert not has_followed(chain(1))
    assert has_followed(chain(1))


def test_a_place_with_another_program_each_time_remembers_few_of_them(monkeypatch):
    monkeypatch.setattr(_sites, "PATIENCE", 4)
    made = []
    first = _sites.Template
    monkeypatch.setattr(_sites, "Template", lambda trace: made.append(1) or first(trace))
    for length in range(20):
        chain(length)
    assert len(made) == 8  # the first four, and then each fourth


def test_a_program_that_comes_again_makes_the_place_worth_it(monkeypatch):
    monkeypatch.setattr(_sites, "PATIENCE", 4)
    for length in range(20):
        chain(length)
    for _ in range(5):
        tape = chain(3)
    assert has_followed(tape)


def test_very_long_programs_are_not_remembered(monkeypatch):
    monkeypatch.setattr(_sites, "EQUATIONS", 10)
    for _ in range(3):
        assert not has_followed(chain(20))
    chain(5)
    assert has_followed(chain(5))


def test_the_total_size_is_bounded(monkeypatch):
    monkeypatch.setattr(_sites, "TOTAL", 30)
    for number in range(8):
        space = {"rt": rt, "tf": tf, "X": X}
        lines = "\n".join(["with rt.Tape():", *["    tf.sin(X)"] * 10])
        exec(compile(lines, f"<cell {number}>", "exec"), space)
    assert sum(site.size() for site in _sites._sites.values()) <= 30


def test_an_empty_block_is_not_remembered():
    for _ in range(3):
        with rt.Tape() as tape:
            pass
        assert not has_followed(tape)
    (site,) = _sites._sites.values()
    assert not site.templates


def test_forgetting_forgets_all():
    chain(3)
    _sites.forget_sites()
    assert not _sites._sites
    assert not has_followed(chain(3))


def test_the_places_of_a_warm_loop_are_known_without_looking_for_them(monkeypatch):
    looked = []
    find = _expected.here
    monkeypatch.setattr(_expected, "here", lambda depth: looked.append(1) or find(depth))
    for number in range(3):
        looked.clear()
        with rt.Tape() as tape:
            y = tf.sin(tf.constant(1.0)) * 2.0
        assert bool(looked) == (number == 0)
        assert len({tape.program.frame_of(eqn).line for eqn in tape.program.eqns}) == 1
    assert y.shape == ()
