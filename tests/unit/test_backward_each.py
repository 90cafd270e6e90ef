"""Several losses in one go: the same, to the bit, as one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors
from retrotape.execute import _each, _plan, _values, make_plan
from retrotape.execute._plan import make_plans
from retrotape.ir import reached_from
from retrotape.tape import _KEEP


class Heads:
    """A trunk and eight heads on it, each with a loss of its own."""

    def __init__(self, heads: int = 8) -> None:
        rng = np.random.default_rng(7)

        def normal(*shape: int) -> tf.Variable:
            return tf.Variable(rng.normal(size=shape).astype("float32"))

        self.x = tf.constant(rng.normal(size=(5, 4)), tf.float32)
        self.trunk = [normal(4, 6), normal(6), normal(6, 6)]
        self.tops = [normal(6, 2) for _ in range(heads)]
        self.table = normal(9, 6)
        self.scale = tf.Variable(1.5)

    def losses(self) -> list[tf.Tensor]:
        first, bias, second = self.trunk
        hidden = tf.nn.gelu(self.x @ first + bias) + tf.gather(self.table, [1, 1, 3, 0, 8])
        hidden = tf.tanh(hidden @ second) * tf.nn.softmax(hidden) * self.scale
        means, spread = tf.nn.moments(hidden, [0])
        hidden = (hidden - means) / tf.sqrt(spread + 0.1)
        return [
            tf.reduce_mean(tf.square(hidden @ top - float(n))) + tf.reduce_sum(hidden)
            for n, top in enumerate(self.tops)
        ]

    @property
    def sources(self) -> list[Any]:
        return [*self.trunk, *self.tops, self.table, self.scale, self.x]


def identical(ours: Any, theirs: Any) -> None:
    assert (ours is None) == (theirs is None)
    assert isinstance(ours, tf.IndexedSlices) == isinstance(theirs, tf.IndexedSlices)
    if isinstance(ours, tf.IndexedSlices):
        np.testing.assert_array_equal(ours.indices, theirs.indices)
        ours, theirs = ours.values, theirs.values
    if ours is not None:
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()


def values_of(grad: Any) -> tf.Tensor:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def same(each: list[rt.Gradients], alone: list[rt.Gradients]) -> None:
    assert len(each) == len(alone)
    for row, other in zip(each, alone, strict=True):
        assert [id(key) for key in row] == [id(key) for key in other]
        for key in row:
            identical(row.get(key), other.get(key))
            assert row.why(key) == other.why(key)


# ------------------------------------------------------------------ the same to the bit


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
    evaluate = _values.evaluate
    monkeypatch.setattr(_values, "evaluate", lambda log, eqn, inputs: ran.append(eqn.op) or evaluate(log, eqn, inputs))

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
    recording = tape._asked().recording
    targets = [(recording.find(loss),) for loss in losses]
    sources = [recording.cells[variable.handle._id].current for variable in heads.trunk]
    _, plans = make_plans(recording, targets, sources, through_updates=False)
    lengths = []
    for plan, target in zip(plans, targets, strict=True):
        alone = make_plan(recording, target, sources, through_updates=False)
        assert plan.indices == alone.indices
        assert list(plan.order()) == list(alone.order())
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


# ------------------------------------------------------------------ what is taken


def test_nothing_gives_nothing():
    with rt.Tape() as tape:
        _ = tf.Variable(1.0) * 2.0
    assert tape.backward_each([]) == []
    assert tape.backward_each(()) == []


def test_a_loss_may_be_a_nest_and_come_twice():
    v, w = tf.Variable(2.0), tf.Variable(3.0)
    with rt.Tape() as tape:
        a, b = v * w, v * v
    rows = tape.backward_each([a, {"a": a, "b": b}, a], [v, w])
    assert [[float(row[v]), float(row[w])] for row in rows] == [[3.0, 2.0], [7.0, 2.0], [3.0, 2.0]]
    assert [float(row[v]) for row in tape.backward_each((loss for loss in (a, b)), v)] == [3.0, 4.0]


def test_a_loss_may_be_a_source():
    v = tf.Variable(2.0)
    x = tf.constant(1.0)
    with rt.Tape() as tape:
        a = v * 3.0
    rows = tape.backward_each([a, x], [v, a, x])
    assert [float(rows[0][key]) for key in (v, a)] == [3.0, 1.0]
    assert float(rows[1][x]) == 1.0


@pytest.mark.parametrize("keep", ["needed", "leaves"])
def test_a_vector_of_losses(keep):
    heads = Heads()
    with rt.Tape(keep=keep) as tape:
        listed = heads.losses()
        losses = tf.stack(listed)
        apart = tf.unstack(losses)
    each = tape.backward_each(losses, heads.sources)
    assert len(each) == 8
    for row, loss, alone in zip(each, apart, tape.backward_each(listed, heads.sources), strict=True):
        expected = tape.backward(loss, heads.sources)
        for key in heads.sources:
            identical(row.get(key), expected.get(key))
        assert row.is_close(alone)


def test_a_vector_of_losses_inside_a_function():
    w = tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    def run():
        with rt.Tape() as tape:
            losses = w * w
        return [row[w] for row in tape.backward_each(losses)]

    np.testing.assert_array_equal(run(), np.diag([2.0, 4.0, 6.0]))


def test_one_loss_in_a_vector():
    w = tf.Variable(3.0)
    with rt.Tape() as tape:
        losses = tf.reshape(w * w, [1])
    assert [float(row[w]) for row in tape.backward_each(losses)] == [6.0]


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_other_tensors_are_refused(shape):
    w = tf.Variable(tf.ones(shape))
    with rt.Tape() as tape:
        losses = w * 2.0
    text = rf"takes a list of losses or a vector of them, got a tensor of shape {tf.TensorShape(shape)}. For one loss"
    with pytest.raises(errors.ShapeMismatchError, match=text.replace("(", r"\(").replace(")", r"\)")):
        tape.backward_each(losses)


def test_a_vector_of_unknown_size_is_refused():
    w = tf.Variable([1.0, 2.0])

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(x):
        with rt.Tape() as tape:
            losses = x * w[0]
        return tape.backward_each(losses)[0][w]

    with pytest.raises(
        errors.ShapeMismatchError, match=r"got a tensor of shape \(None,\)\. For one loss use `tape\.back"
    ):
        run(tf.ones(2))


def test_output_gradients():
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        losses = [w * w, 3.0 * w]
    seed = tf.constant([1.0, 10.0])
    rows = tape.backward_each(losses, output_gradients=seed)
    np.testing.assert_array_equal([row[w] for row in rows], [[2.0, 40.0], [3.0, 30.0]])
    with pytest.raises(
        errors.ShapeMismatchError, match=r"takes no output_gradients for a vector of losses: .* Scale what"
    ):
        tape.backward_each(losses[0], output_gradients=seed)


def test_zeros_on_request():
    v, w = tf.Variable(2.0), tf.Variable([3.0, 4.0])
    with rt.Tape() as tape:
        losses = [v * v, tf.reduce_sum(w)]
    rows = tape.backward_each(losses, [v, w], unconnected_gradients="zero")
    assert [row.missing for row in rows] == [(), ()]
    assert [float(tf.reduce_sum(row[key])) for row in rows for key in (v, w)] == [4.0, 0.0, 0.0, 2.0]


def test_wrong_use_is_told_as_for_one():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        losses = [v * v, v * 3.0]
    with pytest.raises(
        ValueError, match="since= says how far to go through updates; give through_updates=True with it"
    ):
        tape.backward_each(losses, since=1)
    with pytest.raises(
        ValueError, match="since= says how far to go through updates; give through_updates=True with it"
    ):
        tape.backward_each(losses[:1], since=1)
    with pytest.raises(errors.NotASourceError, match="A target must be a tensor"):
        tape.backward_each([losses[0], 3.0])
    with pytest.raises(errors.NotRecordedError, match="made after recording ended"):
        tape.backward_each([losses[0], losses[1] * 2.0])
    with pytest.raises(TypeError, match="through"):
        tape.backward_each(losses, through=True)
    assert [float(row[v]) for row in tape.backward_each(losses)] == [4.0, 3.0]
