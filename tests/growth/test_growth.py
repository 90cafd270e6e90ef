"""A tape that is twice as long takes twice the work: no step looks at all the others."""

from __future__ import annotations

import cProfile
import gc
import pstats
import time
from collections.abc import Iterator

import pytest

from growth.programs import PROGRAMS, stages


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
    calls_of(program, 100, tmp_path)  # what is done once
    small, large = (calls_of(program, ops, tmp_path) for ops in (600, 1200))
    ratios = {stage: large[stage] / small[stage] for stage in small}
    assert max(ratios.values()) < 2.3, ratios


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
