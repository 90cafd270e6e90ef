"""Every method beside the stored values, op by op and inside a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from aggregate.reference import MATRICES, Case, assert_same, assert_vector, cases, preference, problem_of
from retrotape import aggregate as ag

# What TorchJD has no good answer for.
_STATIONARY = ("rank2_5x6", "opposite_2x4")  # no solution
_BAD_SCALES = ("scales_5x8",)
_ZERO_ROWS = ("zero_row_4x6", "all_zero_3x4")


class Row(NamedTuple):
    """A stored method, the same of ours, how exact TorchJD's is, and matrices to leave out."""

    stored: str
    make: Callable[[int], ag.Weighting]
    relative: float = 1e-9
    leave_out: tuple[str, ...] = ()


TABLE = [
    Row("Sum", lambda m: ag.Sum()),
    Row("Mean", lambda m: ag.Mean()),
    Row("Constant", lambda m: ag.Constant(preference(m))),
    Row("exact_UPGrad", lambda m: ag.UPGrad()),
    Row("UPGrad", lambda m: ag.UPGrad(regularize=1e-4), 1e-8),
    Row("UPGrad_pref", lambda m: ag.UPGrad(preference(m), regularize=1e-4), 1e-8),
    Row("UPGrad_noreg", lambda m: ag.UPGrad(), 1e-8, ("rank2_5x6", "opposite_2x4", "scales_5x8", "all_zero_3x4")),
    Row("exact_DualProj", lambda m: ag.DualProj()),
    Row("DualProj", lambda m: ag.DualProj(regularize=1e-4), 1e-8),
    Row("DualProj_pref", lambda m: ag.DualProj(preference(m), regularize=1e-4), 1e-8),
    Row("exact_MGDA", lambda m: ag.MGDA()),
    Row("exact_CAGrad_c0.5", lambda m: ag.CAGrad(0.5), 1e-9, _BAD_SCALES),
    Row("CAGrad_c0.5", lambda m: ag.CAGrad(0.5), 1e-4, ("zero_row_4x6", "scales_5x8", "tiny_3x5")),
    Row("CAGrad_c0", lambda m: ag.CAGrad(0.0), 1e-9, ("zero_row_4x6", "scales_5x8", "tiny_3x5")),
    Row("IMTLG", lambda m: ag.IMTLG(), 1e-9, _BAD_SCALES),
    Row("AlignedMTL", lambda m: ag.AlignedMTL(), 1e-9, _BAD_SCALES),
    Row("AlignedMTL_median", lambda m: ag.AlignedMTL(scale="median"), 1e-9, _BAD_SCALES),
    Row("AlignedMTL_rmse", lambda m: ag.AlignedMTL(scale="rmse"), 1e-9, _BAD_SCALES),
    Row("AlignedMTL_pref", lambda m: ag.AlignedMTL(preference(m)), 1e-9, _BAD_SCALES),
    Row("exact_Nash", lambda m: ag.NashMTL(max_norm=None)),
    Row("exact_Nash", lambda m: ag.FairGrad(alpha=1.0)),
    Row("NashMTL", lambda m: ag.NashMTL(), 1e-5, (*_STATIONARY, *_BAD_SCALES, *_ZERO_ROWS, "huge_3x5")),
    Row("FairGrad_1", lambda m: ag.FairGrad(1.0), 1e-3, (*_STATIONARY, *_BAD_SCALES)),
    Row("FairGrad_2", lambda m: ag.FairGrad(2.0), 1e-6, (*_STATIONARY, *_BAD_SCALES)),
    Row("Krum_1_1", lambda m: ag.Krum(1, 1, squared=False)),
    Row("Krum_1_2", lambda m: ag.Krum(1, 2, squared=False)),
]
TRACED = [name for name in MATRICES if name[-3:-1] in ("2x", "3x", "4x", "5x")] + ["conflict_8x40", "random_8x40"]
SLOW_TO_TRACE = ("random_3x5", "conflict_8x40", "rank2_5x6", "tiny_3x5", "huge_3x5", "random_8x40")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.stored)
def test_op_by_op(row: Row):
    for case in cases(row.stored, row.leave_out):
        found = row.make(len(case.matrix)).solve(problem_of(case))
        assert np.all(found.converged), case.name
        assert_same(found.values, case, row.relative)


# Tracing takes longest, and is done for each number of rows: the fast tests take two of them for each method.
COUNTS = (2, 3, 4, 5, 8)
ROTATED = [
    pytest.param(row, count, id=f"{row.stored}-{count}", marks=() if (place + number) % 5 < 2 else pytest.mark.slow)
    for place, row in enumerate(TABLE)
    for number, count in enumerate(COUNTS)
]


@pytest.mark.parametrize(("row", "count"), ROTATED)
def test_inside_functions(row: Row, count: int):
    for case in cases(row.stored, row.leave_out):
        names = SLOW_TO_TRACE if "CAGrad_c0.5" in row.stored else TRACED
        if case.name in names and len(case.matrix) == count:
            assert_same(row.make(count).weights(case.gramian), case, row.relative)


def test_what_is_traced_has_these_numbers_of_rows():
    assert {len(case.matrix) for case in cases("Mean") if case.name in {*TRACED, *SLOW_TO_TRACE}} == set(COUNTS)


@pytest.mark.parametrize("name", ["ConFIG", "ConFIG_pref"])
def test_config(name: str):
    for case in cases(name):
        method = ag.ConFIG(preference(len(case.matrix)) if name.endswith("pref") else None)
        found = method.weights(case.gramian).numpy() @ case.matrix
        if "vector" in case.result:
            assert_vector(found, case)
        else:  # the weights that are stored are not of this kind
            np.testing.assert_allclose(np.linalg.norm(found), case.result["vector_norm"], rtol=1e-9)


def test_the_combination_of_mgda_is_not_longer_than_that_of_many_steps_of_frank_wolfe():
    for case in cases("MGDA_tight"):
        found = ag.MGDA().weights(case.gramian).numpy() @ case.matrix
        gap = case.vector @ case.vector - found @ found
        noise = 1e-12 * (found @ found) + 1e-28 * np.sum(case.matrix**2)
        assert gap >= -noise, case.name
        # The shortest one is the projection of zero, so another one is as far away as it is longer, in squares.
        far = np.sum((case.vector - found) ** 2)
        assert far <= gap * (1.0 + 1e-6) + noise, case.name


@pytest.mark.parametrize("name", ["NashMTL", "NashMTL_nonorm"])
def test_nash_bargaining_needs_no_state(name: str):
    method, checked = ag.NashMTL(1.0 if name == "NashMTL" else None), []
    for case in cases(name, (*_STATIONARY, *_BAD_SCALES, *_ZERO_ROWS, "huge_3x5", "tiny_3x5")):
        if "sequence_weights" not in case.result:  # not stored for the largest matrix
            continue
        steps = case.result["sequence_weights"]
        for weights, matrix in zip(steps, (case.matrix, 0.5 * case.matrix[::-1], case.matrix), strict=True):
            found = method.weights(tf.constant(matrix @ matrix.T))
            np.testing.assert_allclose(found.numpy() @ matrix, weights @ matrix, rtol=1e-5, atol=1e-7)
        checked.append(case.name)
    assert len(checked) == 9


def test_random_weights():
    for case in cases("Random"):
        drawn = tf.constant(case.result["draws"]["randn"], tf.float64)
        assert_same(ag.Random().weigh(problem_of(case), drawn).values, case)


def test_pcgrad():
    weigh = tf.function(ag.PCGrad().weigh, autograph=False)
    for case in cases("PCGrad"):
        drawn = tf.constant(case.result["draws"]["permutations"])
        assert_same(ag.PCGrad().weigh(problem_of(case), drawn).values, case)
        if len(case.matrix) in (3, 8):
            assert_same(weigh(problem_of(case), drawn).values, case)


def orders_of(case: Case) -> tf.Tensor:
    """Return the stored orders of others as orders of all: the last one is a gradient itself, which is left out."""
    count = len(case.matrix)
    others = [[row for row in range(count) if row != own] for own in range(count)]
    drawn = case.result["draws"]["permutations_of_others"]
    return tf.constant(
        [[*(rest[k] for k in order), own] for own, (rest, order) in enumerate(zip(others, drawn, strict=True))]
    )


def test_gradvac_at_its_first_call():
    turn = tf.function(ag.GradVac(epsilon=1e-8).turn, autograph=False)
    for case in cases("GradVac"):
        nothing = tf.zeros_like(case.gramian)
        found, _ = ag.GradVac(epsilon=1e-8).turn(case.gramian, orders_of(case), nothing)
        assert_same(found, case)
        if len(case.matrix) in (3, 8):
            assert_same(turn(case.gramian, orders_of(case), nothing)[0], case)


@pytest.mark.parametrize("name", ["conflict_2x2", "aligned_2x2", "readme_2x3", "opposite_2x4", "single_1x4"])
def test_gradvac_over_several_calls(name: str):
    """Only the first orders are stored, so these are matrices for which orders do not matter."""
    (case,) = (case for case in cases("GradVac") if case.name == name)
    targets = tf.zeros_like(case.gramian)
    for weights, matrix in zip(
        case.result["sequence_weights"], (case.matrix, 0.5 * case.matrix[::-1], case.matrix), strict=True
    ):
        found, targets = ag.GradVac(epsilon=1e-8).turn(tf.constant(matrix @ matrix.T), orders_of(case), targets)
        np.testing.assert_allclose(found.numpy() @ matrix, weights @ matrix, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["GradDrop", "GradDrop_leak"])
def test_graddrop(name: str):
    for case in cases(name):
        if "vector" not in case.result:
            continue
        leak = np.linspace(0.0, 0.5, len(case.matrix)).tolist() if name.endswith("leak") else None
        keep = ag.GradDrop(leak).keep
        given = tf.constant(case.matrix), tf.constant(case.result["draws"]["rand"], tf.float64)
        assert_vector(keep(*given).numpy(), case)
        assert_vector(tf.function(keep, autograph=False)(*given).numpy(), case)


def test_trimmed_mean():
    for case in cases("TrimmedMean_1"):
        if "vector" in case.result:
            combine = ag.TrimmedMean(1).combine
            assert_vector(combine(tf.constant(case.matrix), None).numpy(), case)
            assert_vector(tf.function(combine, autograph=False)(tf.constant(case.matrix), None).numpy(), case)
