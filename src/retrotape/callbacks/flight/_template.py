"""A step that was recorded while all went well: with other values it is any other step, without the model's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrotape.ir import LEAF
from retrotape.record import EagerSession
from retrotape.tape.live import Tape
from retrotape.tf.nests import is_variable, unwrap


def is_complete(tape: Tape, names: Mapping[str, Any]) -> bool:
    """Return whether every named variable was there before the recorded step: one that it made cannot be replaced."""
    session = tape._recorded()
    assert isinstance(session, EagerSession)
    variables = [part for part in map(unwrap, names.values()) if is_variable(part)]
    histories = [history for variable in variables for history in session.histories_of(variable)]
    return all(session.trace.program.producers[history.versions[0]] == LEAF for history in histories)


def feeds(names: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by names on a tape: the copies of a mirrored variable are one there.

    >>> feeds(("w", "b/replica_0", "b/replica_1"), {"w/replica_0": 1, "w/replica_1": 1, "b/replica_0": 2, "z": 3})
    {'b/replica_0': 2, 'w': 1}
    """
    found = {name: value for name, value in values.items() if name in names}
    for name, value in values.items():
        whole, _, number = name.rpartition("/replica_")
        if whole in names and number == "0":
            found[whole] = value
    return found


def state_after(tape: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of variables after a replayed step, by the names that they have in a snapshot."""
    found = dict(before)
    for name in before:
        whole = name.rpartition("/replica_")[0]
        for candidate in (name, whole):
            if candidate in tape.names:
                found[name] = tape.value(candidate).numpy()
                break
    return found
