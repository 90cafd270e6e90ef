"""Tapes whose values do not fit their ops: whatever is asked of them, no error of TensorFlow comes out raw."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.files import store

NOTHING = ("redacted", "variables", "assigned", "unrecorded_updates", "moments", "host_reads", "backward_functions")


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


# The program, the values that are in the file, and the var of the target. The source is the first var.
CASES: dict[str, tuple[str, dict[int, np.ndarray], int]] = {
    "segments": (
        "%0 : float32[2,2]\n%1 : int32[2]\n%2 : int32[]\n"
        "%3 : float32[2,2] = UnsortedSegmentSum{T=float32, Tindices=int32, Tnumsegments=int32}(%0, %1, %2) @0",
        {0: ones(2, 2), 1: integers(0, 7), 2: np.array(2, np.int32)},
        3,
    ),
    "permutation": (
        "%0 : float32[2,3]\n%1 : int32[2]\n%2 : float32[3,2] = Transpose{T=float32, Tperm=int32}(%0, %1) @0",
        {0: ones(2, 3), 1: integers(1, 1)},
        2,
    ),
    "axis": (
        "%0 : float32[3]\n%1 : int32[]\n"
        "%2 : float32[3] = Cumprod{T=float32, Tidx=int32, exclusive=False, reverse=False}(%0, %1) @0",
        {0: ones(3), 1: np.array(9, np.int32)},
        2,
    ),
    "indices": (
        "%0 : float32[3]\n%1 : int32[2]\n%2 : int32[]\n"
        "%3 : float32[2] = GatherV2{Taxis=int32, Tindices=int32, Tparams=float32, batch_dims=0}(%0, %1, %2) @0",
        {0: ones(3), 1: integers(0, -5), 2: np.array(4, np.int32)},
        3,
    ),
}

ASKED: dict[str, Callable[[Any, Path], Any]] = {
    "gradient": lambda tape, _: tape.gradient("y", "x"),
    "gradient of missing": lambda tape, _: tape.gradient("y", "x", none="raise"),
    "backward": lambda tape, _: tape.backward("y", ["x"]),
    "vjp": lambda tape, _: tape.vjp("y", "x", tf.ones_like(tape["y"])),
    "jvp": lambda tape, _: tape.jvp("y", "x", tf.ones_like(tape["x"])),
    "jacobian": lambda tape, _: tape.jacobian("y", "x"),
    "batch_jacobian": lambda tape, _: tape.batch_jacobian("y", "x"),
    "hvp": lambda tape, _: tape.hvp("y", "x", tf.ones_like(tape["x"])),
    "stream": lambda tape, _: list(tape.stream("y", "x")),
    "backward_each": lambda tape, _: list(tape.backward_each(["y", "y"], ["x"])),
    "gramian": lambda tape, _: tape.gramian(["y", "y"], ["x"]),
    "why": lambda tape, _: tape.why("y", "x"),
    "value": lambda tape, _: tape.value("y"),
    "tensors": lambda tape, _: [one.value for one in tape.tensors()],
    "summary": lambda tape, _: str(tape.summary()),
    "first_nonfinite": lambda tape, _: tape.first_nonfinite(),
    "replay": lambda tape, _: tape.replay({"x": tape["x"] * 2.0}).gradient("y", "x"),
    "report": lambda tape, _: tape.report(losses="y"),
    "save": lambda tape, folder: tape.save(folder / "again.tape"),
}


def load(folder: Path, case: str) -> Any:
    program, values, target = CASES[case]
    path = str(folder / "a.tape")
    stored = [store.Stored(f"v/{var}", str(one.dtype), one.shape, one.tobytes()) for var, one in values.items()]
    texts = {
        "program.txt": (program + '\n@0 = "a.py":1 in "f"').encode(),
        "functions.json": b"{}",
        "opdefs.pb": b"",
    }
    names = {"x": {"var": 0}, "y": {"var": target}}
    store.write(path, texts, stored, {**dict.fromkeys(NOTHING, ()), "names": names})
    return rt.load(path)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("case", CASES)
def test_an_answer_or_an_error_of_ours(case, asked, tmp_path):
    tape = load(tmp_path, case)
    with suppress(rt.errors.RetrotapeError):
        ASKED[asked](tape, tmp_path)


@pytest.mark.parametrize("asked", ["why", "stream"])
def test_the_error_names_the_file_and_says_what_failed(asked, tmp_path):
    with pytest.raises(rt.errors.CorruptTapeError) as raised:
        ASKED[asked](load(tmp_path, "segments"), tmp_path)
    text = str(raised.value)
    assert text.startswith(f"Cannot read the tape {tmp_path / 'a.tape'}: a query on its values fails with Invalid")
    assert text.endswith("If the tape that was recorded gives a result, the file was changed: save it again.")
