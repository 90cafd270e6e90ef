"""Functions that travel by name: a worker with another one refuses, and what is the same goes on."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

import retrotape as rt
from distribute import dying
from retrotape.distribute._references import Reference, check, references
from retrotape.errors import FarmError


def names(question) -> list[str]:
    return [f"{reference.module}.{reference.name}" for reference in references(question)]


class Scaled:
    def __call__(self, tape):
        return dying.scaled(tape)


def test_functions_of_the_users_modules_are_found():
    def inner(tape):
        return dying.scaled(tape)

    norm = "distribute.dying.norm_of_x"
    scaled = ["distribute.dying.scaled", norm]
    assert names(dying.scaled) == scaled
    assert names(functools.partial(dying.die_of, 1.0)) == ["distribute.dying.die_of", norm]
    assert names(functools.partial(lambda one, tape: one(tape), dying.scaled)) == scaled
    assert names(lambda tape: dying.scaled(tape)) == scaled
    assert names(lambda tape: [inner(tape) for _ in range(2)]) == scaled
    assert names(Scaled()) == [f"{__name__}.Scaled.__call__", *scaled]


def test_functions_of_libraries_are_left_out():
    assert names(lambda tape: json.dumps(np.linalg.norm(rt.load(tape)))) == []
    assert names(json.dumps) == []


def test_a_change_is_noticed(monkeypatch):
    expected = references(dying.scaled)
    check(expected)
    monkeypatch.setattr(dying, "FACTOR", 2.0)
    with pytest.raises(FarmError) as raised:
        check(expected)
    assert str(raised.value) == (
        "The function distribute.dying.scaled, or something that it refers to, is different in the worker process: "
        "what was changed in a module while the program ran is not there. Define the function in the main script, or "
        "pass values as arguments: `functools.partial(question, scale)`"
    )
    assert isinstance(expected[0], Reference)


def test_a_worker_refuses_a_module_that_was_changed_here(tapes, tmp_path, monkeypatch):
    options = {"executor": 1, "work": tmp_path}
    same = rt.farm.map(tapes[:2], dying.scaled, **options)
    assert list(same) == [dying.scaled(rt.load(path)) for path in tapes[:2]]
    monkeypatch.setattr(dying, "FACTOR", 3.0)
    with pytest.raises(
        FarmError, match=r"distribute\.dying\.scaled, or something .* is different in the worker process"
    ):
        rt.farm.map(tapes[:2], dying.scaled, **options)
    assert list(rt.farm.map(tapes[:2], dying.scaled, work=tmp_path)) == [dying.scaled(rt.load(p)) for p in tapes[:2]]
