"""What code can look up, by the names and constants in it."""

from __future__ import annotations

import pytest

from retrotape.python import line_storing, names_in

LOOKUPS = {
    "a constant": (lambda model: getattr(model, "rate"), False),  # noqa: B009
    "with a default": (lambda model: getattr(model.head, "rate", None), False),
    "whether there is one": (lambda model: hasattr(model, "rate"), False),
    "a name": (lambda model, name: getattr(model, name), True),
    "a computed name": (lambda model, k: getattr(model, "rate" + str(k)), True),
    "after a constant one": (lambda model, name: getattr(getattr(model, "a"), name), True),  # noqa: B009
    "held": (lambda model: list(map(getattr, [model], ["rate"])), True),
    "the dictionary": (lambda model: vars(model), True),
    "by a comprehension": (lambda models, name: [getattr(one, name) for one in models], True),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_whether_unnamed_attributes_may_be_looked_up(name):
    function, expected = LOOKUPS[name]
    assert names_in(function.__code__).sees_all == expected


def test_match_sees_the_fields_of_a_class():
    def step(config):
        match config:
            case complex(real):
                return real

    assert names_in(step.__code__).sees_all


def test_globals_by_a_constant():
    found = names_in((lambda: globals().get("RATE", 1.0)).__code__)
    assert "RATE" in found.globals
    assert not found.sees_globals
    assert names_in((lambda name: globals()[name]).__code__).sees_globals


def test_strings_may_be_names():
    assert {"model", "rate"} <= names_in((lambda: "model.rate").__code__).attributes


def test_where_a_name_is_assigned():
    def step(owner):
        owner.count = 1

    place = line_storing([step.__code__], "count")
    assert place == f" at {__file__}:{step.__code__.co_firstlineno + 1}"
