"""Several losses in one go: the same, to the bit, as one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from query.backward_each.heads import Heads, identical, same, values_of
from retrotape.execute import _each, _plan, _values, make_plan
from retrotape.execute._plan import make_plans
from retrotape.ir import reached_from
from retrotape.tape.live import _KEEP


@pytest.mark.parametrize("keep", _KEEP)
def test_a_shared_trunk(keep):
    heads = Heads()
    with rt.Tape(keep=keep) as tape:
        losses = heads.losses()
    same(tape.backward_each(losses), [tape.backward(loss) for loss in losses])
    same(tape.backward_each(losses, heads.sources), [tape.backward(loss, heads.sources) for loss in losses])
    assert len(tape.backward_each(losses)[0].missing) == 7


def test_values_are_computed_again_once_for_all(monkeypatch):
    heads = Heads()
    with rt.Tape(keep="leaves") as tape:
        losses = heads.losses()

    ran: list[str] = []
    evaluate = _values.Values._evaluate
    counted = lambda self, eqn, inputs: ran.append(eqn.op) or evaluate(self, eqn, inputs)  # noqa: E731
    monkeypatch.setattr(_values.Values, "_evaluate", counted)

    def ops(ask: Callable[[], Any]) -> int:
        ran.clear()
        ask()
        return ran.count("Tanh")

    assert ops(lambda: [tape.backward(loss) for loss in losses]) == 8
    assert ops(lambda: tape.backward_each(losses)) == 1
    monkeypatch.setattr(_each, "SEGMENT", 0)  # where they are large they are not held until the last walk has passed
    assert ops(lambda: tape.backward_each(losses)) == 8
    same(tape.backward_each(losses), [tape.backward(loss) for loss in losses])


def test_sources_are_looked_for_once(monkeypatch):
    heads = Heads()
    with rt.Tape() as tape:
        losses = heads.losses()
    calls = []
    monkeypatch.setattr(_plan, "reached_from", lambda *args: calls.append(1) or reached_from(*args))
    with rt.config(compile=False):
        tape.backward_each(losses)
    assert len(calls) == 1


def test_through_updates():
    heads = Heads()
    with rt.Tape() as tape:
        heads.scale.assign(heads.scale * heads.trunk[1][0])
        early = heads.losses()[:4]
        heads.tops[5].assign_add(heads.tops[4] * early[0])
        losses = [*early, *heads.losses()[4:]]
    options = {"through_updates": True}
    same(
        tape.backward_each(losses, heads.sources, **options),
        [tape.backward(loss, heads.sources, **options) for loss in losses],
    )
    versions = [tape.at(heads.scale, 0), tape.at(heads.scale, 1), heads.tops[5]]  # of both kinds in one question
    same(tape.backward_each(losses, versions), [tape.backward(loss, versions) for loss in losses])
    options["since"] = -1
    same(
        tape.backward_each(losses, heads.sources, **options),
        [tape.backward(loss, heads.sources, **options) for loss in losses],
    )


def test_inside_the_block():
    heads = Heads()
    with rt.Tape() as tape:
        losses = heads.losses()
        each = tape.backward_each(losses, heads.trunk)
        penalty = tf.reduce_sum(tf.square(each[2][heads.trunk[0]]))
    with rt.Tape() as other:
        alone = [other.backward(loss, heads.trunk) for loss in heads.losses()]
        expected = tf.reduce_sum(tf.square(alone[2][heads.trunk[0]]))
    for row, second in zip(each, alone, strict=True):
        for key in heads.trunk:
            identical(row[key], second[key])
    identical(tape.gradient(penalty, heads.trunk[0]), other.gradient(expected, heads.trunk[0]))


@pytest.mark.parametrize("keep", ["needed", "leaves"])
@pytest.mark.parametrize("outer_kind", [rt.Tape, tf.GradientTape])
def test_inside_an_outer_tape(outer_kind, keep):
    heads, found = Heads(), []
    first = heads.trunk[0]
    for ask in (
        lambda tape, losses: tape.backward_each(losses, heads.trunk),
        lambda tape, losses: [tape.backward(loss, heads.trunk) for loss in losses],
    ):
        with outer_kind(persistent=True) as outer:
            with rt.Tape(keep=keep) as tape:
                losses = heads.losses()
            rows = ask(tape, losses)
            squares = [tf.reduce_sum(tf.square(row[first])) for row in rows]
        found.append((rows, [outer.gradient(square, first) for square in squares]))
    (each, seconds), (alone, expected) = found
    same(each, alone)
    for ours, theirs in zip(seconds, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keep", ["needed", "leaves"])
def test_second_derivatives_of_one_of_the_rows(keep):
    heads = Heads()
    with rt.Tape(keep=keep) as tape:
        losses = heads.losses()
    each, alone = tape.backward_each(losses, heads.sources), tape.backward(losses[3], heads.sources)
    for key in (heads.trunk[0], heads.tops[3], heads.table, heads.x):
        for second, expected in zip(
            tape.gradient(values_of(each[3][key]), [*heads.trunk, heads.scale]),
            tape.gradient(values_of(alone[key]), [*heads.trunk, heads.scale]),
            strict=True,
        ):
            identical(second, expected)
    assert tape.gradient(each[0][heads.trunk[0]], heads.tops[5]) is None
    assert float(tf.norm(tape.gradient(each[5][heads.trunk[0]], heads.tops[5]))) > 0.0


def test_a_derivative_that_is_constant_is_zero_as_alone():
    x = tf.Variable(3.0)
    with rt.Tape() as tape:
        y, z = 2.0 * x, x * x
    slopes = [tape.gradient(target, x) for target in (y, z)]
    assert [float(row[x]) for row in tape.backward_each(slopes, [x])] == [0.0, 2.0]
    assert [row.missing for row in tape.backward_each(slopes, [x])] == [(), ()]


def test_inside_a_function():
    heads = Heads(heads=2)

    def rows(ask: Callable[[rt.Tape, list[tf.Tensor]], list[rt.Gradients]]) -> list[Any]:
        @tf.function
        def run() -> Any:
            with rt.Tape() as tape:
                losses = heads.losses()
                total = tf.constant(0.0)
                for _ in tf.range(3):  # TensorFlow changes a loop that it differentiates
                    total = tf.sin(total + losses[0]) * heads.scale
                losses = [*losses, total, total * losses[1]]
            return [[tf.convert_to_tensor(row[key]) for key in heads.sources] for row in ask(tape, losses)]

        return tf.nest.flatten(run())

    each = rows(lambda tape, losses: tape.backward_each(losses, heads.sources))
    alone = rows(lambda tape, losses: [tape.backward(loss, heads.sources) for loss in losses])
    for ours, theirs in zip(each, alone, strict=True):
        identical(ours, theirs)


def test_on_joined_tapes():
    heads = Heads()
    with rt.Tape() as first:
        inputs = heads.x * heads.scale
    heads.x = inputs
    with rt.Tape() as second:
        losses = heads.losses()
    joined = rt.join(first, second)
    same(joined.backward_each(losses), [joined.backward(loss) for loss in losses])


@pytest.mark.parametrize("keep", ["needed", "leaves"])
def test_where_only_one_loss_needs_a_repair(keep):
    """The second derivative of `tf.nn.moments` is put right on the way to one target, not on the way to another."""
    x = tf.Variable(np.random.default_rng(1).normal(loc=100.0, size=1000).astype("float32"))
    with rt.Tape(keep=keep) as tape:
        with rt.Tape() as inner:
            variance = tf.nn.moments(x * x, [0])[1]
        slope = inner.gradient(variance, x)
        losses = [variance, tf.reduce_sum(slope * slope), variance * 2.0]
    same(tape.backward_each(losses, [x]), [tape.backward(loss, [x]) for loss in losses])
    both = tape.gradient(variance, x), tape.gradient([variance, losses[1]], x, [tf.constant(1.0), tf.constant(0.0)])
    assert not np.array_equal(*both)  # passed or not makes a difference, be it in rounding


def test_plans_made_together_are_those_made_alone():
    heads = Heads()
    with rt.Tape() as tape:
        with rt.Tape() as inner:
            early = heads.losses()
        slope = inner.gradient(early[0], heads.trunk[0])
        losses = [*early[:3], tf.reduce_sum(slope), *heads.losses()[3:5], tf.reduce_sum(heads.x) * 2.0]
    trace = tape._recorded().trace
    targets = [(trace.tensors.find(loss),) for loss in losses]
    sources = [trace.facts.histories[variable.handle._id].current for variable in heads.trunk]
    _, plans = make_plans(trace, targets, sources, through_updates=False)
    lengths = []
    for plan, target in zip(plans, targets, strict=True):
        alone = make_plan(trace, target, sources, through_updates=False)
        assert plan.indices == alone.indices
        assert [step.index for step in plan.steps()] == [step.index for step in alone.steps()]
        assert plan.repaired == alone.repaired
        for index in plan.indices:
            inputs = set(plan.eqns[index].inputs)
            assert inputs & plan.reached == inputs & alone.reached
        lengths.append((len(plan.indices), len(plan.repaired)))
    assert len(set(lengths)) > 2
    assert lengths[-1] == (0, 0)


def test_functions_that_are_looked_into():
    v, w = tf.Variable([0.5, -1.0]), tf.Variable(2.0)

    @tf.function
    def update(a):
        v.assign(v * a + w)
        return tf.reduce_sum(v)

    update.get_concrete_function(tf.constant(1.0))
    a = tf.constant(3.0)
    with rt.Tape() as tape:
        first = update(a)
        losses = [first * 2.0, update(first), tf.reduce_sum(v * v)]
    options = {"through_updates": True}
    same(
        tape.backward_each(losses, [v, w, a], **options), [tape.backward(loss, [v, w, a], **options) for loss in losses]
    )
