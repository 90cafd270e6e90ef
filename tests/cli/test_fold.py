from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrotape.cli import _listing
from retrotape.cli._fold import LEAST, Fold, fold


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("", []),
        ("aaaa", [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)]),  # too little to be gained
        ("a" * 9, [(0, 1, 9)]),
        ("x" + "abc" * 4 + "y", [(0, 1, 1), (1, 3, 4), (13, 1, 1)]),
        ("aab" * 5, [(0, 3, 5)]),
        (("a" * 8 + "b") * 3, [(0, 9, 3)]),  # the whole rather than a part
    ],
)
def test_runs(keys, expected):
    assert list(fold(keys)) == [Fold(*run) for run in expected]


def test_loops_in_loops():
    shown = list(_listing._folded(list("pq" + ("c" + ("a" * 9 + "b") * 3) * 4), 0))
    assert [item for item in shown if isinstance(item, int)] == [0, 1, 2, 3, 12]
    told = [item for item in shown if isinstance(item, str)]
    assert told == [
        "# ... the last 1 equation 8 more times, on other values: equations 4 to 11",
        "# ... the last 10 equations 2 more times, on other values: equations 13 to 32",
        "# ... the last 31 equations 3 more times, on other values: equations 33 to 125",
    ]


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 5))
def test_unfolding_gives_back_everything(keys, times):
    keys = keys * times
    unfolded = []
    for start, length, repeated in fold(keys):
        assert repeated == 1 or length * (repeated - 1) >= LEAST
        unfolded += keys[start : start + length] * repeated
    assert unfolded == keys
