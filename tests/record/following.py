"""A tape as data, to compare one that followed an earlier program with one that was recorded op by op."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt
from retrotape.execute import Values
from retrotape.record import RESOURCE, Trace

SETS = ("assigned", "opaque", "discrete", "nondifferentiable", "uninitialized", "foreign", "recomputed")
Block = Callable[..., rt.Tape]


def trace_of(tape: rt.Tape) -> Trace:
    return tape._recorded().trace


def has_followed(tape: rt.Tape) -> bool:
    """Return whether a tape equals one that the same line recorded before."""
    return trace_of(tape).followed() is not None


def without_lines(text: str) -> str:
    """Return the text of a program without its lines, whose numbers depend on what else was read; see `frames`."""
    return re.sub(r"(^| )@\d+( = .*)?$", "", text, flags=re.MULTILINE).strip()


def described(tape: rt.Tape) -> dict[str, Any]:
    """Return what a tape has recorded, without what is different each time: identities and times."""
    trace = trace_of(tape)
    program, facts, tensors = trace.program, trace.facts, trace.tensors

    def ops_before(time: int) -> int:
        return sum(earlier < time for earlier in facts.times)

    return {
        "program": without_lines(str(program)),
        "snapshot": without_lines(str(trace.snapshot())),
        "frames": [str(trace.frames[eqn.frame]) for eqn in program.eqns],
        "histories": [(trace.name_of(h), tuple(h.versions), tuple(h.made_by)) for h in facts.histories.values()],
        "history_of": {var: trace.name_of(history) for var, history in facts.history_of.items()},
        "sets": [sorted(getattr(facts, name)) for name in SETS],
        "times": [later > earlier for earlier, later in pairwise(facts.times)],
        "backward": {at: (back.inputs, back.outputs) for at, back in facts.backward_functions.items()},
        "host reads": [
            (tensors.get(read.identity), ops_before(read.time), str(trace.frames[read.frame]), read.method)
            for read in facts.host_reads
        ],
        "layer calls": [
            (call.path, ops_before(call.begin), ops_before(call.end), tensors.get(call.returned))
            for call in facts.layer_calls.values()
        ],
        "moments": sorted(trace.stopped_by_moments()),
        "variables": [variable.name for variable in trace.variables.values()],
        "summary": [row._replace(kept=0, bytes=0) for row in tape.summary().rows],
        "tensors": repr(tape.tensors()),
    }


def values(tape: rt.Tape) -> list[Any]:
    """Return the value of every var, recomputed where it was not kept."""
    trace = trace_of(tape)
    load, found = Values(trace), []
    for var, kind in enumerate(trace.program.types):
        if kind.dtype not in (RESOURCE, tf.variant.as_datatype_enum):
            found.append(load(var).numpy())
    return found


def assert_like(warm: rt.Tape, cold: rt.Tape) -> None:
    """Check that two tapes have recorded the same, to the last fact and bit."""
    one, other = described(warm), described(cold)
    for part in one:
        assert one[part] == other[part], part
    for left, right in zip(values(warm), values(cold), strict=True):
        np.testing.assert_array_equal(left, right)


def check(block: Block, *cases: Any, followed: bool | None = True) -> None:
    """Run a block for each case, and then with the last case once more, beside a recording op by op."""
    for case in cases[:-1]:
        block(case)
    warm = block(cases[-1])
    if followed is not None:
        assert has_followed(warm) == followed
    with rt.config(compile=False):
        cold = block(cases[-1])
    assert not has_followed(cold)
    assert_like(warm, cold)
