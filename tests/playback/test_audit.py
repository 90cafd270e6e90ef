"""Some calls are recorded anew, and compared with what would have been played back."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt
from playback.alike import plays

ONE = tf.constant(1.0)


class Hiding:
    """A step whose guards see nothing: as if all that it depends on were hidden."""

    def __init__(self, **options):
        self.scale = 1.0
        self.step = rt.compile(lambda x: x * self.scale + x, **options)

    def blind(self):
        for known in self.step._known.values():
            for variant in known.variants:
                variant.guard.changed = lambda: None


def test_what_guards_do_not_see_is_found_by_the_eighth_call():
    hiding = Hiding()
    assert [float(hiding.step(ONE)) for _ in range(2)] == [2.0, 2.0]
    hiding.blind()
    hiding.scale = 2.0
    assert [float(hiding.step(ONE)) for _ in range(6)] == [2.0] * 6
    expected = r"nothing has changed that it is known to depend on: 2.0 where 1.0 was used before; pass what it depends"
    with pytest.warns(rt.errors.PlaybackWarning, match=expected):
        assert float(hiding.step(ONE)) == 3.0
    assert [float(hiding.step(ONE)) for _ in range(3)] == [3.0] * 3


def test_it_can_be_switched_off():
    hiding = Hiding(audit=False)
    hiding.step(ONE)
    hiding.blind()
    hiding.scale = 2.0
    assert [float(hiding.step(ONE)) for _ in range(70)] == [2.0] * 70


def test_nothing_runs_twice_and_recordings_stay():
    w = tf.Variable(0.0)
    step = rt.compile(lambda x: w.assign_add(x) * 1.0, strict=True)
    assert [float(step(ONE)) for _ in range(70)] == [float(n) for n in range(1, 71)]
    assert plays(step) == [67]  # the first was recorded, the 8th and the 64th of the others were audits


def test_many_steps_in_one_call_are_audited_too():
    hiding = Hiding()
    hiding.step(ONE)
    hiding.blind()
    hiding.scale = 2.0
    with pytest.warns(rt.errors.PlaybackWarning, match=r"2.0 where 1.0 was used before"):
        found = hiding.step.run([(ONE,)] * 12, steps=4, progress=False)
    assert found.numpy().tolist()[-4:] == [3.0] * 4


def test_the_tape_of_an_audited_call():
    w = tf.Variable(3.0)
    step = rt.compile(lambda x: w * x)
    for _ in range(9):
        y = step(ONE)
    assert float(step.tape.gradient(y, w)) == 1.0


def test_many_steps_that_run_no_op():
    step = rt.compile(lambda x: x * 1.0)
    assert step.run([(ONE,)] * 6, steps=3, progress=False).numpy().tolist() == [1.0] * 6
