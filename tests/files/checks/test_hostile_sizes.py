"""A small file that asks for a lot: it is refused, and nothing grows on its behalf."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest

import retrotape as rt
from files.checks.forging import forge
from files.checks.hostile_programs import BOMBS, F4, HUGE, I8
from retrotape.errors import RetrotapeError, UnsafeTapeError
from retrotape.files import store


@pytest.mark.parametrize("name", BOMBS)
def test_small_files_that_ask_for_a_lot(name, tmp_path):
    program, given = BOMBS[name]
    types = [line.split(" : ")[1].split("[")[0] for line in program.splitlines() if " = " not in line]
    values = {var: np.asarray(value, dtype) for var, (value, dtype) in enumerate(zip(given, types, strict=True))}
    last = len(program.splitlines()) - 1
    path = forge(tmp_path / "a.tape", program, values, {"y": last})
    assert os.path.getsize(path) < 2**21
    loaded = rt.load(path)
    began, before = time.monotonic(), _peak()
    with pytest.raises(
        RetrotapeError,
        match=r"would make .* where the tape says|is longer than|with the live values, more than|fails with",
    ):
        loaded["y"]
    assert _peak() - before < 2**28
    assert time.monotonic() - began < 20.0


def _peak() -> int:
    """Return how much memory this process has had at most, in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_program_that_owns_up_to_a_lot(tmp_path):
    program = f"%0 : int64[1]\n%1 : {F4}[]\n%2 : {F4}[{HUGE}] = Fill{{T={F4}, index_type={I8}}}(%0, %1) @0"
    path = forge(tmp_path / "a.tape", program, {0: np.array([HUGE]), 1: np.float32(0)}, {"y": 2})
    with pytest.raises(UnsafeTapeError, match=r"%2, float32\[1099511627776\], has 4,398,046,511,104 bytes, more than"):
        rt.load(path)
    program = f"%0 : int64[1]\n%1 : {F4}[]\n%2 : {F4}[1000] = Fill{{T={F4}, index_type={I8}}}(%0, %1) @0"
    path = forge(tmp_path / "a.tape", program, {0: np.array([1000]), 1: np.float32(0)}, {"y": 2})
    assert rt.load(path)["y"].shape == [1000]
    with pytest.raises(UnsafeTapeError, match=r"has 4,000 bytes, more than 2,000. .*Limits\(total_bytes=4000\)"):
        rt.load(path, limits=store.Limits(total_bytes=2000))
    program = "%0 : string[]\n%1 : int64[1]\n%2 : string[99999999999] = Fill{T=string, index_type=int64}(%1, %0) @0"
    path = forge(tmp_path / "a.tape", program, {0: "x", 1: np.array([HUGE])}, {"y": 2})
    with pytest.raises(UnsafeTapeError, match="bytes, more than"):
        rt.load(path)


def test_a_bomb_inside_of_a_function(honest, tmp_path):
    """What a custom gradient does in the backward pass is watched too."""
    meta, functions = json.loads(json.dumps(honest.meta)), honest.functions()
    key = meta["backward_functions"][0]["function"]
    inner, outer = functions[key]["program"].count(" : "), honest.program().count(" : ")  # the next free vars
    (grad,) = functions[key]["cotangents"]
    bomb = f"%{inner} : int64[1]\n%{inner + 1} : float32[3] = Tile{{T=float32, Tmultiples=int64}}(%{grad}, %{inner}) @0"
    functions[key]["program"] = functions[key]["program"].replace("@0 = ", f"{bomb}\n@0 = ")
    functions[key]["captures"].append(inner)
    functions[key]["results"][0] = [inner + 1]
    meta["backward_functions"][0]["captures"].append(outer)
    forged = honest._replace(meta=meta).with_functions(functions)
    forged = forged.with_program(f"%{outer} : int64[1]\n{forged.program()}")
    forged.tensors.append(store.Stored(f"v/{outer}", "int64", (1,), np.array([HUGE]).tobytes()))
    loaded = rt.load(forged.write(tmp_path / "a.tape"))
    with pytest.raises(
        UnsafeTapeError, match=r"op Tile would make 13,194,139,533,312 bytes, .* with the live values, more than [\d,]+"
    ):
        loaded.gradient("y", "x", through_updates=True)
