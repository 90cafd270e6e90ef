"""Results in `work=` are those of the same function, whatever form it has."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import retrotape as rt
from distribute import dying
from distribute.forms import FORMS, loss
from retrotape.distribute._fingerprint import fingerprint
from retrotape.distribute._origin import is_library, source, version_of


@pytest.mark.parametrize("form", FORMS)
def test_another_function_of_this_form_is_computed_anew(tapes, tmp_path, monkeypatch, form):
    made, wanted = FORMS[form], loss(rt.load(tapes[0]))
    for factor in (2.0, 3.0):
        found = rt.farm.map(tapes[:1], made(factor), work=tmp_path)
        np.testing.assert_allclose(found[0], factor * wanted, rtol=1e-6)
    paths = dying.loaded(monkeypatch)
    again = rt.farm.map(tapes[:1], made(2.0), work=tmp_path)
    np.testing.assert_allclose(again[0], 2.0 * wanted, rtol=1e-6)
    assert paths == []


def test_another_process_has_the_same_fingerprints():
    script = Path(__file__).with_name("forms.py")
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout
    there = dict(line.split(":") for line in found.splitlines())
    assert there == {title: fingerprint(form(2.0)) for title, form in FORMS.items()}


def test_a_module_that_was_edited_or_changed(tapes, tmp_path, monkeypatch):
    file, work = tmp_path / "edited_helper.py", tmp_path / "work"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file.write_text("FACTOR = 2.0\ndef scaled(value):\n    return FACTOR * value\n")
    import edited_helper  # type: ignore[import-not-found]

    def question(tape: rt.LoadedTape) -> float:
        return edited_helper.scaled(loss(tape))

    wanted = loss(rt.load(tapes[0]))
    assert rt.farm.map(tapes[:1], question, work=work)[0] == 2.0 * wanted
    file.write_text("FACTOR = 3.0\ndef scaled(value):\n    return FACTOR * value\n")
    importlib.reload(edited_helper)
    assert rt.farm.map(tapes[:1], question, work=work)[0] == 3.0 * wanted
    monkeypatch.setattr(edited_helper, "FACTOR", 5.0)
    assert rt.farm.map(tapes[:1], question, work=work)[0] == 5.0 * wanted
    before = fingerprint(question)
    file.write_text(file.read_text() + "# for what is found by its name only when it runs\n")
    assert fingerprint(question) != before
    monkeypatch.delitem(sys.modules, "edited_helper")


def test_what_cannot_be_described_is_computed_anew(tapes, tmp_path, monkeypatch):
    lock = threading.Lock()

    def question(tape: rt.LoadedTape) -> bool:
        return lock.locked()

    assert rt.farm.map(tapes[:1], question, work=tmp_path)[0] is False
    with lock:
        assert rt.farm.map(tapes[:1], question, work=tmp_path)[0] is True

    def late(tape: rt.LoadedTape) -> float:
        import no_such_module_yet  # type: ignore[import-not-found]

        return no_such_module_yet.value

    assert fingerprint(late) != fingerprint(late)


def factorial(number: int) -> int:
    return 1 if number < 2 else number * factorial(number - 1)


def test_recursion_has_an_end():
    assert fingerprint(factorial) == fingerprint(factorial)
    held: list[object] = []
    held.append(held)
    assert fingerprint(lambda tape: held) != fingerprint(lambda tape: [])

    def function() -> object:
        return held

    assert fingerprint(function) == fingerprint(function)


def test_which_code_is_of_a_library():
    assert all(is_library(name) for name in ("sys", "json.decoder", "numpy", "tensorflow", "retrotape.errors"))
    assert not any(is_library(name) for name in ("__main__", __name__, "no_such_module_anywhere", None))
    assert version_of("numpy.linalg") == np.__version__
    assert version_of("json") == sys.version
    assert source(None) == source("<ipython-input-1>") == ""
