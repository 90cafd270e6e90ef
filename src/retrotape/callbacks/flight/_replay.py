"""The steps of a log, replayed on recorded steps: for processes that were killed, and for custom loops."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from retrotape.callbacks.flight._folder import Segment, reason_of, segments, template_path
from retrotape.callbacks.flight._search import CAUSES
from retrotape.callbacks.flight._template import feeds, state_after
from retrotape.errors import ReplayError, RetrotapeError
from retrotape.record import is_deterministic
from retrotape.tape.loaded import LoadedTape, load
from retrotape.tf.core import tf
from retrotape.tf.nests import is_variable

_SAME = 0.02  # the share of what steps have changed up to which a replay of them counts as the same


class Replayed(NamedTuple):
    """What replaying has found.

    Attributes:
      step: The step that the tape is of: the first that is not finite, else the last; None if there is no tape.
      tape: Its tape.
      is_bad: Whether it is the one that was looked for.
      remarks: What the reader has to know, each a sentence.
      is_complete: Whether all steps were replayed, and none of them is the one.
    """

    step: int | None
    tape: LoadedTape | None
    is_bad: bool
    remarks: list[str]
    is_complete: bool = False


class _Stopped(Exception):
    """A step cannot be replayed; the text says why."""


class Steps:
    """The steps of a recording.

    Args:
      folder: The folder of the recording.
      compare: Takes a step and its replayed tape, and returns how it differs from the run: "" if it does not, None if
        nothing is known about that step. Without it, a replay is compared with the next snapshot.
    """

    def __init__(self, folder: str, compare: Callable[[int, LoadedTape], str | None] | None = None) -> None:
        self._folder, self._compare = folder, compare
        self._templates: dict[int, LoadedTape] = {}
        self._branch = ""  # a remark, if a step may have taken another branch

    @cached_property
    def segments(self) -> list[Segment]:
        """The newest snapshot with the batches since, and the one before."""
        found = segments(self._folder)
        return found[1:] if len(found) > 1 and not found[0].batches else found

    def search(self, wanted: Callable[[LoadedTape], bool] | None = None) -> Replayed:
        """Replay the newest steps up to the first that is `wanted`, by default one that is not finite; or else all."""
        if not self.segments or not self.segments[0].batches:
            what = "batch" if self.segments else "whole snapshot"
            return Replayed(None, None, False, [f"There is no {what} yet, so that nothing can be replayed."])
        remarks = []
        if self._compare is None:
            whole = segments(self._folder)
            lost = not_finite(whole[0])
            if lost:
                return self._search_before(whole, lost, wanted)
            is_same, text = self._verify()
            if not is_same:
                return Replayed(None, None, False, [text])
            remarks = [text] if text else []
        return self._run(self.segments[0], wanted, remarks)

    def _search_before(
        self, whole: Sequence[Segment], lost: Sequence[str], wanted: Callable[[LoadedTape], bool] | None
    ) -> Replayed:
        """Search the steps before the newest snapshot, which is not finite: only there can the first bad one be."""
        step = whole[0].step
        known = f"The snapshot before step {step} is already not finite ({', '.join(lost[:3])})"
        if len(whole) < 2 or whole[1].end != step or not_finite(whole[1]):
            text = f"{known}, and there is none before it that is: it went wrong in a step that was not recorded."
            return Replayed(None, None, False, [text])
        found = self._run(whole[1], wanted, [f"{known}, so that nothing could be checked against it."])
        if found.is_bad or not found.is_complete:
            return found
        steps = f"steps {whole[1].step} to {step - 1}"
        return Replayed(None, None, False, [f"{known}, and in a replay of {steps} everything is finite. {CAUSES}"])

    def _run(self, segment: Segment, wanted: Callable[[LoadedTape], bool] | None, remarks: Sequence[str]) -> Replayed:
        state, tape = dict(segment.state), None
        for step, (layout, batch) in enumerate(segment.batches, segment.step):
            try:
                now = self._replay(layout, state, batch)
            except _Stopped as stopped:
                stop = f"Step {step} cannot be replayed: {stopped}"
                return Replayed(None if tape is None else step - 1, tape, False, [*remarks, stop])
            difference = None if self._compare is None else self._compare(step, now)
            if difference:
                return Replayed(None, None, False, [*remarks, f"{difference}. {CAUSES}"])
            branches = [self._branch] if self._branch and difference is None else []
            self._branch = ""
            after = state if branches else state_after(now, state)  # it may not be the update that ran
            found = _is_bad(now, state, after) if wanted is None else wanted(now)
            if found or branches:
                return Replayed(step, now, found, [*remarks, *branches])
            state, tape = after, now
        return Replayed(None if tape is None else segment.end - 1, tape, False, list(remarks), is_complete=True)

    def _replay(self, layout: int, state: Mapping[str, Any], batch: Mapping[str, Any]) -> LoadedTape:
        template = self._template(layout)
        values = {**feeds(template.names, state), **feeds(template.names, batch)}
        variables = {name: id(template[name]) for name in template.names if is_variable(template[name])}
        replaced = {variables.get(name) for name in values}  # a variable may have a second name, its own
        unknown = [name for name, variable in variables.items() if variable not in replaced]
        if unknown:
            raise _Stopped(f"the snapshot has no value of {', '.join(unknown[:3])}, which the recorded step reads")
        try:
            return template.replay(values)
        except ReplayError as error:
            self._branch = (
                f"What ran after {error.where} may have been another branch than the one on the tape, as Python read a "
                "value there that was different when the tape was recorded. Later steps were not replayed."
            )
            return template.replay(values, trust=True)
        except (RetrotapeError, tf.errors.OpError, ValueError) as error:
            raise _Stopped(str(error)) from error

    def _template(self, layout: int) -> LoadedTape:
        if layout not in self._templates:
            path = template_path(self._folder, layout)
            if not os.path.exists(path):
                raise _Stopped(reason_of(self._folder, layout))
            self._templates[layout] = load(path)
        template = self._templates[layout]
        drawn = next((eqn for eqn in template.program.eqns if not is_deterministic(eqn.op)), None)
        if drawn is not None:  # also in a loop: to run it would change what later steps draw
            place = f"{drawn.op} at {template.program.frame_of(drawn)}"
            raise _Stopped(f"{place} gives something else each time, so that a replay is not what ran")
        return template

    def _verify(self) -> tuple[bool, str]:
        """Return whether the steps between two snapshots lead from one to the other, and a remark."""
        whole = segments(self._folder)
        if len(whole) < 2:
            return True, "There was no second snapshot to check that a replay gives what the run had."
        older, unsure = whole[1], "Whether a replay gives what the run had could not be checked"
        if older.end != whole[0].step:
            return True, f"{unsure}: batches between the two snapshots are missing."
        newer = {name: value for name, value in whole[0].state.items() if name not in whole[0].reset}
        state = dict(older.state)
        for step, (layout, batch) in enumerate(older.batches, older.step):
            try:
                state = state_after(self._replay(layout, state, batch), state)
            except _Stopped as stopped:
                return True, f"{unsure}: step {step} cannot be replayed, since {stopped}."
            if self._branch:
                self._branch = ""
                return True, f"{unsure}: step {step} may have taken another branch than the recorded one."
        share = unexplained(older.state, newer, state)
        if share <= _SAME:
            return True, ""
        steps = f"Replaying steps {older.step} to {older.end - 1} does not lead from one snapshot to the next"
        return False, f"{steps}: {share:.0%} of the change is another. {CAUSES}"


def not_finite(segment: Segment) -> list[str]:
    """Return the names of variables in a snapshot that are no longer finite, apart from those of metrics."""
    excused = {*segment.reset, *segment.exempt}
    return [name for name, value in segment.state.items() if name not in excused and not _is_finite(value)]


def unexplained(before: Mapping[str, Any], after: Mapping[str, Any], replayed: Mapping[str, Any]) -> float:
    """Return which share of a change a replay has not reproduced; counters have to be exactly the same.

    The third quartile over variables: the gradient of some is nothing but rounding errors, and an optimizer that
    normalizes its steps makes a change of them.

    >>> unexplained({"w": np.zeros(2)}, {"w": np.array([3.0, 4.0])}, {"w": np.array([3.0, 3.9])})
    0.02
    """
    shares = []
    for name in before.keys() & after.keys() & replayed.keys():
        values = [np.asarray(found[name]) for found in (before, after, replayed)]
        if not _is_floating(values[0]):
            if not np.array_equal(values[1], values[2]):
                return 1.0
            continue
        old, new, other = (value.astype(np.float64) for value in values)
        change = float(np.linalg.norm(new - old))
        if change > 0.0:
            shares.append(float(np.linalg.norm(new - other)) / change)
    return round(float(np.quantile(shares, 0.75)), 4) if shares else 0.0


def _is_bad(tape: LoadedTape, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    if "loss" in tape.names and not bool(tf.reduce_all(tf.math.is_finite(tape.value("loss")))):
        return True
    return any(_is_finite(before[name]) and not _is_finite(after[name]) for name in before)


def _is_finite(value: Any) -> bool:
    array = np.asarray(value)
    return not _is_floating(array) or bool(
        np.isfinite(array.astype(np.complex128 if array.dtype.kind == "c" else None)).all()
    )


def _is_floating(array: Any) -> bool:
    return bool(tf.as_dtype(array.dtype).is_floating or tf.as_dtype(array.dtype).is_complex)
