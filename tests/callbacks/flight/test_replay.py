"""A log is replayed without the model, only if a replay leads from one snapshot to the next."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from callbacks.flight.logs import XS, after, recorded, template
from retrotape.callbacks.flight._folder import Layout, Recording, Segment, segments
from retrotape.callbacks.flight._replay import Steps, not_finite
from retrotape.callbacks.flight._variables import Variables
from retrotape.callbacks.flight.recover import recover


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


# ------------------------------------------------------------------ a snapshot that is not finite


def test_a_snapshot_that_is_not_finite_was_not_the_beginning(recording):
    found = Steps(recorded(recording, [*XS, 3.0], [0, 6]).path).search()
    assert (found.step, found.is_bad) == (5, True)
    assert float(found.tape["x"]) == 0.0
    assert found.remarks == [
        "The snapshot before step 6 is already not finite (w), so that nothing could be checked against it."
    ]


def test_without_a_finite_snapshot_no_step_is_named(recording):
    found = Steps(recorded(recording, [2.0, 0.0, 2.0, 3.0, 2.0, 1.5], [0, 2, 4]).path).search()
    assert (found.step, found.tape, found.is_bad) == (None, None, False)
    assert found.remarks == [
        "The snapshot before step 4 is already not finite (w), and there is none before it that is: it went wrong in "
        "a step that was not recorded."
    ]


def test_nor_if_something_else_than_a_step_made_it_not_finite(recording):
    change = lambda state: [np.float32(np.nan), *state[1:]]  # noqa: E731
    found = Steps(recorded(recording, XS[:5], [0, 3], change=change).path).search()
    assert (found.step, found.tape, found.is_bad) == (None, None, False)
    assert (
        "is already not finite (w), and in a replay of steps 0 to 2 everything is finite. The likeliest"
        in (found.remarks[0])
    )


def test_what_was_never_finite_does_not_count(recording):
    variables = Variables({"w": tf.Variable(1.0), "bound": tf.Variable(np.inf), "total": tf.Variable(0.0)}, ["total"])
    values, is_finite = variables.read()
    layout = variables.layout(values)
    assert is_finite
    assert (layout.reset, layout.exempt) == (("total",), ("bound",))
    state = {"w": np.float32(1.0), "bound": np.float32(np.inf), "total": np.float32(np.nan)}
    assert not_finite(Segment(0, state, [], layout.reset, layout.exempt)) == []
    assert not_finite(Segment(0, state, [])) == ["bound", "total"]
    recording.log.snapshot(0, recording.layout("state", layout), [value.numpy() for value in values])
    assert tuple(segments(recording.path)[0].exempt) == ("bound",)


# ------------------------------------------------------------------ what could not be checked


def test_batches_that_are_missing_between_snapshots_are_the_reason(recording):
    found = recorded(recording, XS[:2], [0])
    layout = recording.layout("state", Layout(("w", "count"), ("float32", "int32"), ((), ())))
    found.log.snapshot(3, layout, [np.float32(1.0), np.int32(3)])
    outcome = Steps(found.path).search()
    assert outcome.remarks == [
        "Whether a replay gives what the run had could not be checked: batches between the two snapshots are missing."
    ]


def test_a_step_that_cannot_be_replayed_is_the_reason(recording):
    outcome = Steps(recorded(recording, XS, [0, 3], random=True).path).search()
    assert outcome.remarks[0].startswith(
        "Whether a replay gives what the run had could not be checked: step 0 cannot be replayed, since "
        "RandomStandardNormal at "
    )


def test_that_all_was_finite_is_said_of_the_replay_only(tmp_path, monkeypatch):
    left = recorded(Recording(str(tmp_path), 3), XS[:5], [0, 3])
    left.log.close()
    left._lock.close()
    monkeypatch.setattr("retrotape.callbacks.flight._folder._own", set())
    (found,) = recover(str(tmp_path))
    assert "was killed in step 4 or after it; in the replay everything is finite up to step 4" in found.crash.message
