from __future__ import annotations

import copy

import pytest

from retrotape.report import Report


def test_the_same_again(report):
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("title",), 3),
        (("title",), None),
        (("ops",), "text"),
        (("ops", 0, "place"), 1.5),
        (("ops", 0, "place"), True),
        (("ops", 0), {"name": "Add"}),
        (("versions", "retrotape"), 1),
        (("versions",), []),
        (("drawings", 0, "edges"), [[1, 2, 3]]),
        (("losses", 0, "value"), "3"),
        (("losses", 0, "line"), {"file": "a.py"}),
    ],
    ids=str,
)
def test_anything_else_is_refused(report, path, value):
    data = copy.deepcopy(report.to_json())
    at = data
    for step in path[:-1]:
        if isinstance(at[step], tuple):
            at[step] = list(at[step])
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(TypeError, match=r"a report has \w+ where \w+ is expected"):
        Report.from_json(data)


def test_fields_that_it_does_not_know_are_refused(report):
    with pytest.raises(TypeError, match="a report has dict where Report is expected"):
        Report.from_json({**report.to_json(), "more": 1})
