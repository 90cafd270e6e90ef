"""The parts of `retrotape diff`: how far arrays are apart, what programs have in common, values computed again."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import tensorflow as tf

from retrotape.cli._diff_align import align, find_suspects
from retrotape.cli._diff_values import compare_values, distance
from retrotape.cli._tape import open_saved
from retrotape.execute import ForwardPass
from retrotape.files.load import read
from retrotape.ir import Program

# ------------------------------------------------------------------ how far apart


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], (0.5, 0.2, 1, 1)),
        ([np.nan, 1.0], [np.nan, 1.0], (0.0, 0.0, 0, 0)),
        ([np.inf], [np.inf], (0.0, 0.0, 0, 0)),
        ([np.inf], [1.0], (np.inf, 1.0, 1, 1)),
        ([np.nan], [1.0], (np.nan, np.nan, 1, 1)),
        ([0.0], [-0.0], (0.0, 0.0, 0, 0)),
        ([1], [3], (2.0, 2 / 3, 1, 1)),
        ([2**62], [2**62 + 1], (1.0, 1 / 2**62, 1, 1)),
        ([True, False], [True, True], (1.0, 1.0, 1, 1)),
        ([3 + 4j], [0j], (5.0, 1.0, 1, 1)),
        ([b"a"], [b"b"], (np.nan, np.nan, 1, 1)),
        ([], [], (0.0, 0.0, 0, 0)),
    ],
    ids=str,
)
def test_distances(one, other, expected):
    kind = object if one and isinstance(one[0], bytes) else None
    found = distance(np.array(one, kind), np.array(other, kind))
    np.testing.assert_allclose(found[:4], expected)


def test_distances_of_large_arrays_are_those_of_their_pieces():
    one = np.zeros(3 * 2**20 + 5, np.float32)
    other = one.copy()
    other[[5, -1]] = [1.0, 3.0]
    assert distance(one, other)[:4] == (3.0, 1.0, 2, 2)
    assert distance(one, other, atol=2.0).beyond == 1


def test_what_is_allowed_grows_with_the_numbers():
    one, other = np.array([100.0, 0.1]), np.array([101.0, 0.101])
    assert distance(one, other, rtol=0.02).beyond == 0
    assert distance(one, other, rtol=0.005).beyond == 2
    assert distance(one, other, atol=0.5).beyond == 1


def test_narrow_floats_are_compared_as_numbers():
    one, other = (tf.constant([value], tf.bfloat16).numpy() for value in (1.0, 1.5))
    assert distance(one, other)[:2] == (0.5, pytest.approx(1 / 3))


# ------------------------------------------------------------------ programs


def test_programs_are_the_same_whatever_their_vars_are_numbered():
    first = Program.parse('%0 : float32[]\n%1 : float32[] = Mul(%0, %0) @0\n@0 = "a.py":1 in "f"')
    second = Program.parse('%0 : float32[]\n%2 : float32[]\n%1 : float32[] = Mul(%2, %0) @0\n@0 = "b.py":9 in "g"')
    found = align(first, second)
    assert found.reason == ""
    assert found.leaves == [(0, 2), (0, 0)]
    assert found.eqns == [([(0, 2), (0, 0)], [(1, 1)])]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("%3 : float32[2] = Sub{T=float32}(%2, %1) @0", "another op: Mul and Sub"),
        ("%3 : float32[2] = Mul{T=float64}(%2, %1) @0", "other attributes: T"),
        ("%3 : float32[2] = Mul{T=float32}(%2, %2) @0", "input 1 comes from another place"),
        ("%3 : float32[2] = Mul{T=float32}(%2) @0", "another number of inputs or outputs"),
        ("%3 : float32[3] = Mul{T=float32}(%2, %1) @0", "its output is float32[2] and float32[3]"),
    ],
)
def test_in_what_equations_differ(line, reason):
    text = '%0 : float32[2]\n%1 : float32[2]\n%2 : float32[2] = Neg(%0) @0\n{}\n@0 = "a.py":1 in "f"'
    first = Program.parse(text.format("%3 : float32[2] = Mul{T=float32}(%2, %1) @0"))
    found = align(first, Program.parse(text.format(line)))
    assert (len(found.eqns), found.reason) == (1, reason)


# ------------------------------------------------------------------ values


def test_values_are_dropped_after_their_last_use(saved, loop):
    with open_saved(saved["plain"]) as one, open_saved(saved["moved"]) as other:
        alignment = align(one.program, other.program)
        found = compare_values(one, other, alignment, find_suspects(one, other, alignment))
    assert sum(apart.beyond > 0 for apart in found.values()) > 3
    trace = read(loop).trace
    indices = list(range(len(trace.program.eqns)))
    assert len(indices) > 60
    references, most = [], 0
    for passed in ForwardPass(trace, indices).run():
        references += [weakref.ref(value) for value in passed.outputs]
        del passed
        most = max(most, sum(reference() is not None for reference in references))
    assert most < 6
    assert [reference() for reference in references] == [None] * len(references)
