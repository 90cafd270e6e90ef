"""Whatever is let go, moved to a file or computed again, no answer changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import keras
import pytest
import tensorflow as tf

import retrotape as rt
from conform.asking import answers_of, questions_about
from conform.cases import CASES
from conform.table import Case
from helpers.random_programs import Randomly, begin
from record.segments import programs, programs_of_values
from record.segments.tools import KEEPS, combined, frozen, is_near

pytestmark = pytest.mark.slow  # every program four times, in segments of a hundred bytes
PROGRAMS = {**programs.PROGRAMS, **programs_of_values.PROGRAMS}


def asked(keep: str, name: str) -> Any:
    tf.random.set_seed(5)
    keras.utils.set_random_seed(5)
    return frozen(PROGRAMS[name](rt.Tape(keep=keep))())


@cache
def wanted(name: str) -> Any:
    return asked("needed", name)


@pytest.mark.parametrize(("name", "keep"), combined(PROGRAMS, KEEPS, known={}))
def test_answers_do_not_depend_on_what_is_kept(name: str, keep: str, fetched: Counter[str]):
    expected = wanted(name)
    fetched.clear()
    assert asked(keep, name) == expected
    assert fetched["read" if keep == "disk" else "computed"]


@pytest.mark.parametrize("name", ["all_questions", "through_updates", "functions"])
def test_answers_of_a_tape_that_keeps_everything(name: str):
    assert asked("all", name) == wanted(name)


# ------------------------------------------------------------------ all programs that there are


def together(run: Callable[[], Any]) -> tuple[list[rt.Tape], Any]:
    """Run something once under a tape of each kind: draws and states are the same for all of them."""
    tapes = [rt.Tape(), rt.Tape(keep="leaves"), rt.Tape(keep="segments"), rt.Tape(keep="disk")]
    with tapes[0], tapes[1], tapes[2], tapes[3]:
        outcome = run()
    return tapes, outcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance_table(case: Case):
    run, sources = case.made()
    (needed, *others), outcome = together(lambda: run(*sources))
    questions = questions_about(outcome, sources)
    expected = frozen(answers_of(needed, questions))
    for source in tf.nest.flatten(sources):
        if hasattr(source, "assign"):
            source.assign(tf.ones_like(source) * 3)
    for tape in others:
        assert is_near(frozen(answers_of(tape, questions)), expected)


@pytest.mark.parametrize("seed", range(100, 116))
def test_random_programs(seed: int, fetched: Counter[str]):
    values, ways = begin(seed)
    made = Randomly(seed, values)

    def run() -> Any:
        for _ in range(14):
            made.step()
        return made.end()

    (needed, *others), y = together(run)
    sources, vectors = made.sources, [tf.constant(way) for way in ways]

    def answers(tape: rt.Tape) -> Any:
        return frozen(
            [
                tape.gradient(y, sources),
                tape.gradient(y, sources, through_updates=True),
                tape.hvp(y, sources, vectors, through_updates=True),
                [version.value for variable in made.variables for version in tape.versions(variable)],
            ]
        )

    expected = answers(needed)
    assert all(is_near(answers(tape), expected) for tape in others)
    assert fetched["computed"]
    assert fetched["read"]
