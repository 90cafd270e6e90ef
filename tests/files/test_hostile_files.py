"""All hostile files, one after the other, in a process that may take 1 GiB more than it has: none ends it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import retrotape as rt
from files import hostile_child
from files.checks.hostile_programs import BOMBS, FORBIDDEN
from files.hostile_texts import BUILDERS, REFUSED, SHOWN
from files.store.hostile import ATTACKS
from helpers.processes import PYTHON
from helpers.seeds import DATE
from retrotape.errors import RetrotapeError

SECONDS = 2.0
LENIENT = 4  # a machine that is busy with other things may take so many times as long


def test_there_are_many():
    assert len(ATTACKS) + len(BUILDERS) + len(BOMBS) + len(FORBIDDEN) >= 250


@pytest.fixture(scope="module", params=["containers", "texts"])
def told(request, tmp_path_factory) -> list[dict[str, Any]]:
    """What came of each file of a family."""
    folder = tmp_path_factory.mktemp("hostile")
    done = subprocess.run(
        [PYTHON, hostile_child.__file__, str(folder), request.param, str(len(hostile_child.VERBS) if DATE else 2)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(rt.__file__).parents[1])},
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = len(ATTACKS) if request.param == "containers" else len(BUILDERS)
    after = found[-1]["name"] if found else "nothing"
    assert len(found) == expected, f"the process ended with {done.returncode} after {after}: {done.stderr[-1500:]}"
    return found


def test_each_is_refused_by_an_error_of_ours_or_does_no_harm(told):
    assert [(one["name"], one["kind"]) for one in told if one["kind"] not in ("refused", "fine")] == []


def test_each_takes_a_moment(told):
    assert [(one["name"], one["seconds"]) for one in told if one["seconds"] > SECONDS * LENIENT] == []
    slow = [(one["name"], verb) for one in told for verb in one["commands"] if verb["seconds"] > SECONDS * LENIENT]
    assert slow == []


def test_nothing_that_is_said_of_them_steers_a_terminal(told):
    for one in told:
        for text in [*one["texts"], *(verb[out] for verb in one["commands"] for out in ("out", "err"))]:
            assert all(line.isprintable() for line in text.split("\n")), (one["name"], text[:500])


def test_the_command_line_says_it_in_one_line(told):
    for one in told:
        for verb in one["commands"]:
            about = (one["name"], verb)
            assert verb["code"] in (0, 1, 2), about
            assert verb["err"].count("\n") <= 1, about
            assert len(verb["err"]) < 1500, about
            assert "it failed with" not in verb["err"], about
            loads = verb["verb"] in ("why y x", "grad y x", "nan")  # the others know no definitions of ops
            assert one["kind"] == "fine" or not loads or verb["code"], about


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_for_what_it_is(name, tmp_path):
    with pytest.raises(RetrotapeError) as caught:
        rt.load(REFUSED[name].write(tmp_path / "a.tape"))
    assert re.search(re.escape(REFUSED[name].text), str(caught.value)), str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 800 + len(str(tmp_path))


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_in_order_is_answered(name, tmp_path):
    tape = rt.load(SHOWN[name].write(tmp_path / "a.tape"))
    assert tape.gradient("y", "x").numpy().tolist() == [-1.0, -1.0]
