"""A file that is whole, and whose functions and fields say what no tape says, by hand and at random."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import pytest

import retrotape as rt
from files.checks.forging import attempt
from files.mutations import mutate, seeds
from helpers.trips import finish, start
from retrotape.errors import CorruptTapeError, RetrotapeError


def test_taken_apart_and_put_together_it_is_the_same(honest, honest_file, tmp_path):
    assert honest.write(tmp_path / "a.tape").read_bytes() == honest_file.read_bytes()


def test_functions_that_contain_themselves(honest, tmp_path):
    functions = honest.functions()
    for key, function in functions.items():
        for back in function["backward_functions"]:
            back["function"] = key
    assert any(function["backward_functions"] for function in functions.values())
    with pytest.raises(CorruptTapeError, match=r"function \w+ contains itself"):
        rt.load(honest.with_functions(functions).write(tmp_path / "a.tape"))


WRONG: tuple[Any, ...] = (
    None,
    True,
    1,
    -1,
    1.5,
    "x",
    [],
    {},
    [None],
    ["x"],
    [[]],
    [{}],
    {"x": 1},
    [True],
    [2**70],
    [-1],
)
FIELD_NAMES = (
    "names",
    "redacted",
    "variables",
    "assigned",
    "unrecorded_updates",
    "moments",
    "host_reads",
    "backward_functions",
)


@pytest.mark.parametrize("field", FIELD_NAMES)
def test_fields_of_every_wrong_kind(field, honest, tmp_path):
    right = type(honest.meta[field])
    for wrong in WRONG:
        path = honest._replace(meta={**honest.meta, field: wrong}).write(tmp_path / "a.tape")
        if (wrong == right() and field not in ("variables", "backward_functions", "names")) or (field, wrong) == (
            "redacted",
            ["x"],
        ):
            rt.load(path)  # nothing of that kind is something that a tape can have
            continue
        with pytest.raises(RetrotapeError):
            rt.load(path)["y"]
    missing = {name: value for name, value in honest.meta.items() if name != field}
    with pytest.raises(CorruptTapeError):
        rt.load(honest._replace(meta=missing).write(tmp_path / "a.tape"))


@pytest.mark.parametrize(
    ("field", "change", "text"),
    [
        ("names", {"x": {"var": 10**6}}, r"names holds 1000000, which is not from 0 to"),
        ("names", {"x": {"variable": 5}}, r"names holds 5"),
        ("names", {"x": {"tensor": 0}}, "refers to 'tensor', which is neither a var nor a variable"),
        ("names", {"x": {"var": 0, "variable": 0}}, "the name 'x' refers to nothing"),
        ("redacted", ["nobody"], "'nobody' is redacted, and nothing has that name"),
        ("host_reads", [{"var": 0, "before": 999, "frame": 0, "method": "x"}], "host_reads holds 999"),
        ("host_reads", [{"var": 0, "before": 0, "frame": 999, "method": "x"}], "host_reads holds 999"),
        ("assigned", [0, -1], "assigned holds -1"),
        ("python_constants", [[0]], "python_constants is not a list of pairs"),
        ("python_constants", [[0, 999]], "python_constants holds 999"),
    ],
)
def test_fields_that_point_to_nothing(field, change, text, honest, tmp_path):
    with pytest.raises(CorruptTapeError, match=text):
        rt.load(honest._replace(meta={**honest.meta, field: change}).write(tmp_path / "a.tape"))


@pytest.mark.parametrize("part", ["equation", "function", "inputs", "outputs", "captures"])
def test_ways_back_that_do_not_fit(part, honest, tmp_path):
    for wrong in (None, [], [0], 0, 10**9, "x", [10**9], [0] * 40):
        meta = json.loads(json.dumps(honest.meta))
        if meta["backward_functions"][0][part] == wrong:
            continue
        meta["backward_functions"][0][part] = wrong
        with pytest.raises(CorruptTapeError):
            rt.load(honest._replace(meta=meta).write(tmp_path / "a.tape"))


# ------------------------------------------------------------------ at random


@pytest.mark.filterwarnings("ignore::retrotape.errors.NotDifferentiableWarning")  # a target may have become an integer
def test_changed_at_random(honest, tmp_path, monkeypatch):
    """Only our own errors come out, whatever a file says; not every change is a fault."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # nobody needs these files tomorrow
    outcomes: Counter[str] = Counter()
    for seed in seeds():
        what, parts = mutate(honest, seed)
        try:
            error = attempt(parts, tmp_path / "a.tape")
        except Exception as other:
            pytest.fail(f"mutation {seed} of {what}: {type(other).__name__}: {other}")
        if error is not None:
            assert len(str(error)) < 2000, f"mutation {seed}"
        outcomes["fine" if error is None else type(error).__name__] += 1
    assert outcomes["fine"] < 0.5 * outcomes.total()
    assert {"CorruptTapeError", "UnsafeTapeError"} <= outcomes.keys()


@pytest.mark.slow
def test_changed_at_random_for_longer(honest_file, tmp_path):
    """In a process of its own: what ends the process would end the tests."""
    code = (
        "import sys; from pathlib import Path; from files.checks.forging import attempt; "
        "from files.mutations import mutate, take_apart\n"
        "honest = take_apart(Path(sys.argv[1]))\n"
        "for seed in range(int(sys.argv[3]), int(sys.argv[4])):\n"
        "    print(seed, flush=True); attempt(mutate(honest, seed)[1], Path(sys.argv[2]))\n"
    )
    halves = [start(code, honest_file, tmp_path / f"{first}.tape", first, first + 3000) for first in (10_000, 20_000)]
    for process in halves:
        finish(process)
