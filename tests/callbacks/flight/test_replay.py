"""A log is replayed without the model, only if a replay leads from one snapshot to the next."""

from __future__ import annotations

import numpy as np
import pytest

from callbacks.flight.logs import XS, after, recorded, template
from retrotape.callbacks.flight._folder import Layout, Recording
from retrotape.callbacks.flight._replay import Steps


@pytest.fixture
def recording(tmp_path):
    """A recording that is left behind, as by a process that was killed."""
    found = Recording(str(tmp_path), 3)
    yield found
    found.close()


def test_the_first_step_that_is_not_finite(recording):
    found = Steps(recorded(recording, XS, [0, 3]).path).search()
    assert (found.step, found.is_bad, found.remarks) == (5, True, [])
    assert float(found.tape["x"]) == 0.0
    state = [np.float32(1.0), np.int32(0), np.float32(0.0)]
    for x in XS[:5]:
        state = after(state, x)
    assert float(found.tape.versions("w")[0].value) == pytest.approx(float(state[0]), rel=1e-6)
    assert int(found.tape.versions("count")[0].value) == 5


def test_the_last_step_if_all_are_finite(recording):
    found = Steps(recorded(recording, XS[:5], [0, 3]).path).search()
    assert (found.step, found.is_bad, found.remarks) == (4, False, [])


def test_metrics_may_be_reset_between_two_snapshots(recording):
    found = Steps(recorded(recording, XS, [0, 3], change=lambda s: [s[0], s[1], np.float32(50.0)]).path).search()
    assert (found.step, found.is_bad) == (5, True)


@pytest.mark.parametrize(
    "change",
    [lambda s: [np.float32(s[0] * 1.5), *s[1:]], lambda s: [s[0], np.int32(s[1] + 1), s[2]]],
    ids=["w", "count"],
)
def test_a_replay_that_does_not_lead_to_the_next_snapshot_gives_no_tape(recording, change):
    found = Steps(recorded(recording, XS, [0, 3], change=change).path).search()
    assert (found.step, found.tape, found.is_bad) == (None, None, False)
    assert "Replaying steps 0 to 2 does not lead from one snapshot to the next" in found.remarks[0]


def test_one_snapshot_cannot_be_checked_and_that_is_said(recording):
    found = Steps(recorded(recording, XS, [0]).path).search()
    assert found.step == 5
    assert found.remarks == ["There was no second snapshot to check that a replay gives what the run had."]


def test_numbers_without_a_seed_give_no_tape(recording):
    found = Steps(recorded(recording, XS, [0, 3], random=True).path).search()
    assert found.tape is None
    assert "Step 3 cannot be replayed: RandomStandardNormal at " in found.remarks[-1]


def test_without_a_recorded_step_there_is_no_tape(recording):
    found = Steps(recorded(recording, XS, [0], lost=["template"]).path).search()
    assert found.tape is None
    assert "Step 0 cannot be replayed: no step was recorded for batches of its shape" in found.remarks[-1]


def test_a_variable_that_the_snapshot_lacks_is_not_taken_from_the_recorded_step(recording):
    found = recording
    layout = found.layout("state", Layout(("w", "count"), ("float32", "int32"), ((), ())))
    batch = found.layout("batch", Layout(("x",), ("float32",), ((),)))
    template(found.template(batch))
    found.log.snapshot(0, layout, [np.float32(1.0), np.int32(0)])
    found.log.batch(0, batch, [np.float32(2.0)])
    outcome = Steps(found.path).search()
    assert outcome.tape is None
    assert "the snapshot has no value of " in outcome.remarks[-1]
    assert "metric/total, which the recorded step reads" in outcome.remarks[-1]
