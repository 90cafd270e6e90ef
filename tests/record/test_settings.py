"""Whether queries are compiled: for a process, from here on, or for one block."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread

import pytest

import retrotape as rt
from retrotape.record import settings
from retrotape.record._settings import mode_in


@pytest.fixture(autouse=True)
def _leaves_the_setting() -> Iterator[None]:
    before = settings.mode
    yield
    settings.set(before)


@pytest.mark.parametrize(("value", "mode"), [(True, "warm"), (False, "never"), ("always", "always")])
def test_a_setting_holds_from_the_call_on(value, mode: str):
    rt.config(compile=value)
    assert settings.mode == mode


def test_as_a_context_manager_it_holds_for_one_block():
    rt.config(compile=True)
    with rt.config(compile=False):
        assert settings.mode == "never"
        with rt.config(compile="always"):
            assert settings.mode == "always"
        assert settings.mode == "never"
    assert settings.mode == "warm"


def test_an_exception_in_the_block_puts_it_back():
    rt.config(compile=True)
    with pytest.raises(KeyError), rt.config(compile=False):
        raise KeyError
    assert settings.mode == "warm"


def test_a_block_is_about_its_own_thread():
    rt.config(compile=True)
    seen = []
    with rt.config(compile=False):
        other = Thread(target=lambda: seen.append(settings.mode))
        other.start()
        other.join()
    assert seen == ["warm"]


@pytest.mark.parametrize("value", ["never", "yes", "", 1, 0, None, [True], {"always": 1}])
def test_other_values_are_refused(value):
    before = settings.mode
    with pytest.raises(ValueError, match='compile= must be True, False or "always", got ') as caught:
        rt.config(compile=value)
    assert repr(value) in str(caught.value)
    assert settings.mode == before


def test_the_setting_has_to_be_named():
    with pytest.raises(TypeError):
        rt.config(False)


@pytest.mark.parametrize(("text", "mode"), [("0", "never"), ("1", "warm"), ("always", "always")])
def test_the_environment_sets_it_for_a_process(text: str, mode: str):
    assert mode_in({"RETROTAPE_COMPILE": text}) == mode
    assert mode_in({}) == "warm"


@pytest.mark.parametrize("text", ["", "2", "true", "Always"])
def test_other_values_in_the_environment_are_refused(text: str):
    with pytest.raises(ValueError, match="RETROTAPE_COMPILE must be 0, 1 or always, got "):
        mode_in({"RETROTAPE_COMPILE": text})


def test_a_process_with_a_bad_value_says_so():
    environment = {**os.environ, "RETROTAPE_COMPILE": "sometimes"}
    code = "import retrotape; retrotape.Tape()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "RETROTAPE_COMPILE must be 0, 1 or always, got 'sometimes'." in done.stderr
