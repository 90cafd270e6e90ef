"""The same program gives the same bytes, in every process and on every trip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from files.recorded import record
from helpers.trips import assert_same, finish, start, trip


def test_two_processes_write_the_same_file(tmp_path):
    code = "import sys; from files.recorded import save; save(sys.argv[1], sys.argv[2])"
    paths = [tmp_path / f"{number}.tape" for number in (1, 2)]
    processes = [start(code, path, "all") for path in paths]
    for process in processes:
        finish(process)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    loaded = rt.load(paths[0])
    assert np.isfinite(loaded.gradient("final", "rate", through_updates=True))


@pytest.mark.parametrize("values", ["leaves", "all"])
def test_two_saves_of_one_tape(values, tmp_path):
    tape, names = record()
    for number in (1, 2):
        tape.save(tmp_path / f"{number}.tape", names, values=values)
    assert (tmp_path / "1.tape").read_bytes() == (tmp_path / "2.tape").read_bytes()


def test_a_loaded_tape_that_is_saved_loses_nothing(tmp_path):
    tape, names = record()
    path = trip(tape, names, tmp_path, values="all").path
    for _ in range(2):
        before = path.read_bytes()
        loaded = rt.load(path)
        path = tmp_path / f"again{len(str(path))}.tape"
        loaded.save(path, values="all")
        assert _without_order(path) == _without_order_of(before, tmp_path)
    again = rt.load(path)
    assert again.names == rt.load(tmp_path / "a.tape").names
    for name in again.names:
        np.testing.assert_array_equal(again.value(name), tape.value(_live(names, name, tape)))
    for target, source in (("final", "x"), ("look", "x"), ("final", "w")):
        wanted = tape.gradient(names[target], _live(names, source, tape), through_updates=True)
        assert_same(again.gradient(target, source, through_updates=True), wanted)
    with pytest.raises(rt.errors.ReplayError, match=r"recorded\.py:\d+"):
        again.replay({"x": [-5.0, -5.0, -5.0]})
    trip(tape, names, tmp_path, redact=["x"]).loaded.save(tmp_path / "hidden.tape")
    with pytest.raises(rt.errors.LostValueError, match="'x' was left out"):
        rt.load(tmp_path / "hidden.tape").gradient("final", "w")


def _live(names: dict, name: str, tape: rt.Tape) -> object:
    return names[name] if name in names else next(v for v in tape._session.variables() if _path(v) == name)


def _path(variable: tf.Variable) -> str:
    return variable.name.removesuffix(":0")


def _without_order(path: Path) -> tuple:
    """Return what a file says, but for the numbers of vars: leaves may come in another order."""
    loaded = rt.load(path)
    ops = sorted((eqn.op, eqn.attrs, loaded.program.frame_of(eqn)) for eqn in loaded.program.eqns)
    held = loaded._session.trace
    values = sorted(repr(np.asarray(held.value(var)).tolist()) for var in held.values)
    looks = [(look.method, str(loaded.program.frames[look.frame])) for look in held.facts.host_reads]
    versions = {variable.name: len(loaded.versions(variable)) for variable in loaded.variables}
    sets = [
        len(part)
        for part in (
            held.facts.assigned,
            held.facts.opaque,
            held.facts.unrecorded_updates,
            held.facts.moments,
            held.facts.backward_functions,
        )
    ]
    return loaded.names, ops, values, looks, versions, sets


def _without_order_of(data: bytes, folder: Path) -> tuple:
    (folder / "before.tape").write_bytes(data)
    return _without_order(folder / "before.tape")
