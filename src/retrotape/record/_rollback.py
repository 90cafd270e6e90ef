"""Taking back what was written down for one answer only."""

from __future__ import annotations

from retrotape.record._recording import Recording


def mark(recording: Recording) -> tuple[int, int, int]:
    """Return how far the program goes."""
    return len(recording.builder.types), len(recording.builder.eqns), len(recording.looks)


def rollback(recording: Recording, to: tuple[int, int, int]) -> None:
    """Forget what was written down since `mark`."""
    count, length, looks = to
    del recording.looks[looks:]
    recording.builder.truncate(count, length)
    del recording.stamps[length:]
    for var in [var for var in recording.values if var >= count]:
        del recording.values[var]
    if recording.segments is not None:
        recording.segments.forget_from(count, length)
    recording.forget_from(count)
    recording.know_values()
    recording.backwards = {index: back for index, back in recording.backwards.items() if index < length}
    recording.recomputed = {index for index in recording.recomputed if index < length}
    recording.calls = {index: call for index, call in recording.calls.items() if index < length}
    recording.inlined = {
        outputs: found
        for outputs, found in recording.inlined.items()
        if found.span[1] <= length and max(found.outputs, default=0) < count
    }
    for known in (recording.inert, recording.ends, recording.assigned, recording.opaque, recording.gaps):
        known.difference_update([var for var in known if var >= count])
    recording.cell_of = {var: cell for var, cell in recording.cell_of.items() if var < count}
    recording.cells = {identity: cell for identity, cell in recording.cells.items() if cell.forget(count)}
