"""The text of the errors of `rt.aggregate`: what was got, what was expected, what to type instead."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from aggregate.making import rows_of_matrix
from helpers.processes import PYTHON
from retrotape import aggregate as ag
from retrotape.errors import AggregationWarning, MethodStateError, MissingPackageError, ShapeMismatchError

PARAMETERS = {
    "CAGrad: c": (lambda: ag.CAGrad(c=-0.1), "c= takes a number, 0 or more, got -0.1: `CAGrad(c=0.5)`."),
    "CAGrad: NaN": (lambda: ag.CAGrad(c=np.nan), "c= takes a number, 0 or more, got nan: `CAGrad(c=0.5)`."),
    "FairGrad: alpha": (
        lambda: ag.FairGrad(alpha=0.0),
        "alpha= takes a positive number, got 0.0: `FairGrad(alpha=1.0)`.",
    ),
    "DWA: temperature": (
        lambda: ag.DWA(temperature=0.0),
        "temperature= takes a positive number, got 0.0: `DWA(temperature=2.0)`.",
    ),
    "DWA: steps_per_epoch": (
        lambda: ag.DWA(steps_per_epoch=0),
        "steps_per_epoch= takes a number of calls, 1 or more, got 0. For epochs that `method.end_epoch()` ends, use "
        "`DWA(steps_per_epoch=None)`.",
    ),
    "AlignedMTL: scale": (
        lambda: ag.AlignedMTL(scale="max"),
        "scale= must be 'min', 'median' or 'rmse', got 'max'.",
    ),
    "Krum: byzantine": (
        lambda: ag.Krum(byzantine=-1),
        "byzantine= takes a number of gradients, 0 or more, got -1: `Krum(byzantine=1)`.",
    ),
    "Krum: selected": (
        lambda: ag.Krum(selected=0),
        "selected= takes a number of gradients, 1 or more, got 0: `Krum(selected=1)`.",
    ),
    "TrimmedMean: trim": (
        lambda: ag.TrimmedMean(trim=-1),
        "trim= takes a number of gradients, 0 or more, got -1: `TrimmedMean(trim=1)`.",
    ),
    "GradDrop: leak": (
        lambda: ag.GradDrop(leak=[0.5, 1.5]),
        "leak= takes shares between 0 and 1, one for each loss, got [0.5, 1.5]: `GradDrop(leak=[0.0, 0.5])`.",
    ),
    "GradVac: beta": (
        lambda: ag.GradVac(beta=1.5),
        "beta= takes a number between 0 and 1, got 1.5: `GradVac(beta=0.5)`.",
    ),
    "MoCo: beta": (lambda: ag.MoCo(beta=0.0), "beta= takes a number above 0, and 1 at most, got 0.0"),
    "MoCo: gamma": (lambda: ag.MoCo(gamma=-0.5), "gamma= takes a positive number, got -0.5"),
    "GradNorm: learning_rate": (
        lambda: ag.GradNorm(learning_rate=0.0),
        "learning_rate= takes a positive number, got 0.0: `GradNorm(learning_rate=0.025)`.",
    ),
    "NashMTL: max_norm": (
        lambda: ag.NashMTL(max_norm=0.0),
        "max_norm= takes a positive number, got 0.0. For no limit, use `NashMTL(max_norm=None)`.",
    ),
    "preference: infinite": (
        lambda: ag.UPGrad(preference=[1.0, np.inf]),
        "preference= takes finite numbers, one for each loss, got [1.0, inf]: `preference=[0.5, 1.0]`.",
    ),
    "preference: none": (
        lambda: ag.DualProj(preference=[]),
        "preference= takes finite numbers, one for each loss, got []",
    ),
    "preference: one number": (
        lambda: ag.Constant(3.0),
        "preference= takes finite numbers, one for each loss, got 3.0: `preference=[0.5, 1.0]`.",
    ),
    "preference: text": (
        lambda: ag.AlignedMTL("ab"),
        "preference= takes finite numbers, one for each loss, got 'ab': `preference=[0.5, 1.0]`.",
    ),
    "leak: not a number": (
        lambda: ag.GradDrop(leak=[np.nan]),
        "leak= takes finite numbers, one for each loss, got [nan]: `leak=[0.5, 1.0]`.",
    ),
    "Weighted: negative": (
        lambda: ag.Weighted([2.0, -1.0]),
        "Weighted takes weights that are not negative, and not all zero, got [2.0, -1.0]. For weights of any sign, as "
        "they are: `rt.aggregate.Constant(weights)`.",
    ),
    "Weighted: zero": (
        lambda: ag.Weighted([0.0, 0.0]),
        "Weighted takes weights that are not negative, and not all zero, got [0.0, 0.0].",
    ),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str):
    make, text = PARAMETERS[name]
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


def rows(count: int, losses=None) -> rt.Rows:
    return rows_of_matrix(np.random.default_rng(0).normal(size=(count, 4)), losses=losses)


def complex_rows() -> rt.Rows:
    z = tf.Variable([1.0 + 1.0j])
    with rt.Tape() as tape:
        losses = [tf.math.real(z[0]), tf.math.imag(z[0]), tf.abs(z[0])]
    return tape.backward_each(losses)


def stacks_of_two_lengths() -> rt.Rows:
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3.0)]
    return rt.Rows.from_stacked(variables, [tf.ones([3, 2]), tf.ones([4])])


NEEDS_LOSSES = "needs the values of the losses, and there are none. Take rows of `tape.backward_each(losses)`, or give"
SHAPES = {
    "Krum: byzantine": (
        lambda: ag.Krum(byzantine=2)(rows(4)),
        "Got 4 losses; with byzantine=2 and selected=1, Krum takes 5 or more. For 4 losses, use "
        "`Krum(byzantine=1, selected=1)`.",
    ),
    "Krum: selected": (
        lambda: ag.Krum(byzantine=1, selected=5).weights(tf.eye(4)),
        "Got 4 losses; with byzantine=1 and selected=5, Krum takes 5 or more. For 4 losses, use "
        "`Krum(byzantine=1, selected=4)`.",
    ),
    "Krum: two losses": (
        lambda: ag.Krum(byzantine=0)(rows(2)),
        "Krum takes 3 or more. Krum compares 3 gradients or more; use `rt.aggregate.Mean()`.",
    ),
    "TrimmedMean: too few": (
        lambda: ag.TrimmedMean(trim=3)(rows(5)),
        "Got 5 losses; TrimmedMean(trim=3) leaves out 6 and takes 7 or more. For 5 losses, use `TrimmedMean(trim=2)`.",
    ),
    "GradDrop: leak": (
        lambda: ag.GradDrop(leak=[0.5, 0.5])(rows(3)),
        "Got leak= of 2 numbers for 3 losses; give one for each.",
    ),
    "preferences": (
        lambda: ag.UPGrad(preference=[1.0, 2.0])(rows(3)),
        "Got 2 preferences for 3 losses; give one for each.",
    ),
    "preferences of Weighted": (
        lambda: ag.Weighted([1.0, 2.0, 3.0, 4.0]).weights(tf.eye(3)),
        "Got 4 preferences for 3 losses; give one for each.",
    ),
    "Gramian: not square": (
        lambda: ag.UPGrad().weights(tf.zeros([2, 3])),
        "Got a Gramian of shape (2, 3) and dtype float32; expected a square matrix of floats: `rows.gramian()`.",
    ),
    "Gramian: a vector": (lambda: ag.MGDA().weights([1.0, 2.0]), "Got a Gramian of shape (2,) and dtype float32"),
    "Gramian: integers": (lambda: ag.MGDA().weights([[1, 0], [0, 1]]), "Got a Gramian of shape (2, 2) and dtype int32"),
    "stacks": (
        stacks_of_two_lengths,
        "Got stacks of [3, 4] gradients; expected as many for each variable: the number of losses.",
    ),
    "no losses": (lambda: ag.GradNorm()(rows(3)), f"GradNorm {NEEDS_LOSSES}"),
    "no losses of a Gramian": (lambda: ag.DWA().weights(tf.eye(2)), f"DWA {NEEDS_LOSSES}"),
    "number of losses": (
        lambda: ag.UncertaintyWeighting().weights(tf.eye(3), [1.0, 2.0]),
        "Got 2 values of losses for 3 losses; give one for each.",
    ),
    "complex: TrimmedMean": (
        lambda: ag.TrimmedMean(1)(complex_rows()),
        "TrimmedMean compares numbers, and a gradient has dtype complex128. Combine complex gradients with a method "
        "that has weights, such as UPGrad.",
    ),
    "complex: GradDrop": (
        lambda: ag.GradDrop()(complex_rows()),
        "GradDrop compares numbers, and a gradient has dtype complex128.",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str):
    compute, text = SHAPES[name]
    with pytest.raises(ShapeMismatchError, match=re.escape(text)):
        compute()


@pytest.mark.parametrize(("method", "given"), [("krum", {"byzantine": 9}), ("trimmed mean", {"trim": 9})])
@pytest.mark.parametrize("count", [3, 4, 7])
def test_what_the_message_says_to_use_works(method: str, given: dict[str, int], count: int):
    with pytest.raises(ShapeMismatchError) as raised:
        rows(count).combine(method, **given)
    (remedy,) = re.findall(r"use `(.*)`\.$", str(raised.value))
    assert len(eval(f"ag.{remedy}", {"ag": ag})(rows(count))) == 1


@pytest.mark.parametrize("method", [ag.GradNorm, ag.DWA])
def test_losses_that_are_not_positive(method):
    text = f"{method.__name__} compares losses by their ratios, so they have to be positive"
    shown = ", but 0 is 1, 1 is -2. Add a constant to a loss that can be negative."
    with pytest.raises(ValueError, match=re.escape(text + shown)):
        method()(rows(2, losses=tf.constant([1.0, -2.0])))
    inside = tf.function(method().weights)
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(f"{text}. The losses 0, 1 are:")):
        inside(tf.eye(2), tf.constant([0.0, 2.0]))


class Stuck(ag.Weighting):
    """A method that finds no weights."""

    uses_nnls = True

    def solve(self, problem: ag.Problem) -> ag.Solution:
        return ag.Solution(tf.ones([problem.size], tf.float64), tf.constant(False))


@pytest.mark.parametrize("has_scipy", [True, False])
def test_the_warning_names_scipy_if_it_could_help(has_scipy: bool, monkeypatch):
    if not has_scipy:
        monkeypatch.setattr("retrotape.aggregate._weighting.nnls", lambda: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        combined = Stuck()(rows(3))
    assert not combined.converged
    (text,) = (str(one.message) for one in caught if one.category is AggregationWarning)
    assert text.startswith(
        "Stuck() did not converge for these gradients, and each loss that was affected keeps its own gradient. The "
        "result says so: `combined.converged` is False."
    )
    remedy = ' SciPy has a solver for such cases: `pip install "retrotape[aggregate]"`.'
    assert text.endswith(remedy) is not has_scipy


def test_a_heat_map_needs_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingPackageError, match="A heat map needs matplotlib"):
        rows(2).conflicts().plot()


# ------------------------------------------------------------------ in replicas

IN_REPLICAS = {
    "state": (
        MethodStateError,
        "The state of this GradNorm was made outside of the strategy whose replicas use it. Make a new one, which is "
        "first used there, or make and build it inside of `with strategy.scope():`.",
    ),
    "draws": (MethodStateError, "The state of this PCGrad was made outside of the strategy whose replicas use it."),
    "gramian": (
        rt.errors.TapeUseError,
        "In one of several replicas, these are inner products of its share of the gradients, not of the whole. Call a "
        "method, `rt.aggregate.UPGrad()(rows)`, which sums the rows over replicas first.",
    ),
    "DPSGD": (rt.errors.TapeUseError, "DPSGD bounds each example, and replicas would be summed first."),
}


@pytest.fixture(scope="module")
def errors_in_replicas() -> dict[str, list[str]]:
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [PYTHON, str(tests / "aggregate" / "errors_in_replicas.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.partition("errors:")[2])


@pytest.mark.parametrize("name", IN_REPLICAS)
def test_in_replicas(name: str, errors_in_replicas):
    kind, text = IN_REPLICAS[name]
    raised, message = errors_in_replicas[name]
    assert raised == kind.__name__
    assert message.startswith(text)
