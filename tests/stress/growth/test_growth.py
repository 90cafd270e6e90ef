"""A tape that is twice as long takes twice the work: no step looks at all the others."""

from __future__ import annotations

import cProfile
import gc
import pstats
import time
from collections.abc import Iterator

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.execute import _values
from stress.growth.programs import PROGRAMS, stages


@pytest.fixture
def without_collections() -> Iterator[None]:
    """Count no time of Python's garbage collector, which looks at everything that there is."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def calls_of(program, ops, folder):
    """Return how many functions each stage calls."""
    found = {}
    for name, run in stages(program, ops, folder):
        profile = cProfile.Profile()
        profile.runcall(run)
        found[name] = pstats.Stats(profile).total_calls
    return found


def seconds_of(program, ops, folder):
    """Return the CPU seconds of each stage."""
    found = {}
    for name, run in stages(program, ops, folder):
        begin = time.process_time()
        run()
        found[name] = time.process_time() - begin
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_grow_with_the_length(name, tmp_path):
    program = PROGRAMS[name]
    calls_of(program, 60, tmp_path)  # what is done once
    small, large = (calls_of(program, ops, tmp_path) for ops in (300, 600))
    ratios = {stage: large[stage] / small[stage] for stage in small}
    assert max(ratios.values()) < 2.15, ratios


def test_what_branches_off_a_chain_is_computed_once(tmp_path, monkeypatch):
    w, a = tf.Variable(2.0), tf.constant(1.0)
    with rt.Tape() as tape:
        chain = [a := a + 1.0 for _ in range(50)]  # at which no gradient looks
        y = tf.add_n([tf.sin(a) * w for a in chain])
    tape.save(tmp_path / "branches.tape", y=y, w=w)
    ran = []
    evaluate = _values.Values._evaluate
    monkeypatch.setattr(_values.Values, "_evaluate", lambda *given: ran.append(given[1].op) or evaluate(*given))
    found = rt.load(tmp_path / "branches.tape").gradient("y", "w")
    assert float(found) == pytest.approx(float(tape.gradient(y, w)))
    assert ran.count("AddV2") <= 3 * 50  # a chain again for each of them would be 1,275


@pytest.mark.slow
@pytest.mark.usefixtures("without_collections")
@pytest.mark.parametrize("name", PROGRAMS)
def test_time_grows_with_the_length(name, tmp_path):
    program = PROGRAMS[name]
    seconds_of(program, 1000, tmp_path)
    small, large = (seconds_of(program, ops, tmp_path) for ops in (10_000, 40_000))
    # Four times would be linear, sixteen times quadratic; what takes no time is not compared.
    ratios = {stage: large[stage] / max(small[stage], 0.05) for stage in small}
    assert max(ratios.values()) < 9.0, ratios
