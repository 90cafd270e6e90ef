"""Programs that end in NaN: the culprit and the cause are named, whether eager, in a function, or from a file."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from golden.nan.programs import PROGRAMS, Program

FOLDER = Path(__file__).parent


def culprit_line(program: Program) -> int:
    """Return the number of the line that is to blame."""
    lines, first = inspect.getsourcelines(program.run)
    (found,) = [number for number, line in enumerate(lines, first) if line.rstrip().endswith("# here")]
    return found


def eager(program: Program, path: Path) -> Any:
    with rt.Tape() as tape:
        loss = program.run(*program.inputs)
    return tape.first_nonfinite(loss)


def in_a_function(program: Program, path: Path) -> Any:
    function = tf.function(program.run)
    with rt.Tape() as tape:
        loss = function(*program.inputs)
    return tape.first_nonfinite(loss)


def saved(program: Program, path: Path) -> Any:
    with rt.Tape() as tape:
        loss = program.run(*program.inputs)
    tape.save(path, {"loss": loss})
    return rt.load(path).first_nonfinite("loss")


def function_saved(program: Program, path: Path) -> Any:
    function = tf.function(program.run)
    with rt.Tape() as tape:
        loss = function(*program.inputs)
    tape.save(path, {"loss": loss})
    return rt.load(path).first_nonfinite("loss")


def sparing(program: Program, path: Path) -> Any:
    with rt.Tape(keep="leaves") as tape:
        loss = program.run(*program.inputs)
    return tape.first_nonfinite(loss)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.parametrize("way", [eager, in_a_function, saved, function_saved, sparing], ids=lambda way: way.__name__)
def test_the_culprit_is_named(way, program, tmp_path):
    found = way(program, tmp_path / "nan.tape")
    assert (found.op, found.backward, found.cause.name) == (program.op, program.backward, program.cause)
    assert (os.path.basename(found.frame.file), found.frame.line) == ("programs.py", culprit_line(program))
    assert found.code.endswith("# here")
    text = str(found)
    assert program.witness in text
    assert program.remedy in text
    golden = FOLDER / f"{program.name}.txt"
    shown = text.replace(str(FOLDER), "nan") + "\n"
    if os.environ.get("RETROTAPE_GOLDEN") == "write":
        golden.write_text(shown)
    assert shown == golden.read_text()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_without_a_target_the_culprit_is_the_same(program):
    with rt.Tape() as tape:
        program.run(*program.inputs)
    found = tape.first_nonfinite()
    assert (found.op, found.frame.line) == (program.op, culprit_line(program))
    if program.cause != "WHERE":  # the value that the other branch hides is named, whether it does harm or not
        assert (found.backward, found.cause.name) == (program.backward, program.cause)


def test_there_are_enough_of_them_and_no_text_is_left_over():
    assert len(PROGRAMS) >= 12
    assert sum(program.backward for program in PROGRAMS) >= 5
    assert {path.stem for path in FOLDER.glob("*.txt")} == {program.name for program in PROGRAMS}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_without_the_culprit_there_is_nothing_to_find(program):
    """The same program on harmless values: nobody is blamed."""
    inputs = [tf.fill(value.shape, tf.constant(0.25, value.dtype)) for value in program.inputs]
    with rt.Tape() as tape:
        loss = program.run(*inputs)
    if program.name not in ("spread_of_equals", "scaled_loss"):  # these are wrong for such values too
        assert tape.first_nonfinite(loss) is None
        assert tape.first_nonfinite() is None


def test_an_overflow_by_weights_that_have_exploded(tmp_path: Path):
    def found_for(weight: float, x: float) -> list[Any]:
        kernel = tf.Variable([[weight]], name="kernel")
        with rt.Tape() as tape:
            loss = tf.reduce_sum((tf.constant([[x]]) @ kernel) ** 2)
        tape.save(tmp_path / "a.tape", {"loss": loss})
        return [tape.first_nonfinite(loss), rt.load(tmp_path / "a.tape").first_nonfinite("loss")]

    for found in found_for(3e19, 2.0):
        assert found.cause.name == "EXPLODED"
        assert "The largest weight is 3e+19, in kernel." in found.detail
        assert "Lower the learning rate" in found.remedy
    for found in found_for(2.0, 3e19):
        assert (found.cause.name, "scale" in found.remedy.lower()) == ("OVERFLOW", True)
