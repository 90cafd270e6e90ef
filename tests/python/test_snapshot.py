"""Many values are compared at once, by identity, and no code of the user runs."""

from __future__ import annotations

import collections
import gc
from typing import Any

import numpy as np
import pytest

from retrotape.python import Entry, NewObjects, Snapshot, _observer, base_of, read_content, read_item, same


class Loud:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("it was compared")

    __hash__ = object.__hash__


class LoudList(list):
    def __iter__(self):
        raise AssertionError("it was iterated over")

    def __len__(self):
        raise AssertionError("it was asked")


def snapshot(value: Any) -> Snapshot:
    base = base_of(type(value))
    return Snapshot([Entry(read_content, value, base, read_content(value, base), value, "it")])


CHANGES = {
    "an element": ([1, 2], lambda value: value.__setitem__(0, 3)),
    "one more": ([1], lambda value: value.append(1)),
    "a value": ({"a": 1}, lambda value: value.update(a=2)),
    "a key": ({"a": 1}, lambda value: (value.pop("a"), value.update(b=1))),
    "the order of keys": ({"a": 1, "b": 2}, lambda value: value.update(a=value.pop("a"))),
    "the order of a set": ({0, 8}, lambda value: (value.clear(), value.add(8), value.add(0))),
    "a type": ([1], lambda value: value.__setitem__(0, True)),
    "a sign": ([0.0], lambda value: value.__setitem__(0, -0.0)),
    "a queue": (collections.deque([1]), lambda value: value.rotate(0) or value.append(2)),
    "an ordered one": (collections.OrderedDict(a=1, b=2), lambda value: value.move_to_end("a")),
    "a list with its own methods": (LoudList([1]), lambda value: value.__setitem__(0, 2)),
    "an object": ([Loud()], lambda value: value.__setitem__(0, Loud())),
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_tells_what_has_changed(name):
    value, change = CHANGES[name]
    compared = snapshot(value)
    assert compared.changed() is None
    assert compared.changed() is None
    change(value)
    assert compared.changed() == "what it contains"


def test_equal_numbers_are_the_same():
    value = [float("1.5"), "text", (1, 2)]
    compared = snapshot(value)
    assert compared.changed() is None
    value[:] = [float("1.5"), "".join(("te", "xt")), tuple(iter((1, 2)))]
    assert compared.changed() is None


def test_a_name_that_is_missing():
    space: dict[str, Any] = {}
    compared = Snapshot([Entry(read_item, space, "rate", read_item(space, "rate"), None, "the rate")])
    assert compared.changed() is None
    assert compared.changed() is None
    space["rate"] = 1
    assert compared.changed() == "the rate"


def test_what_is_interchangeable():
    assert same(float("nan"), float("nan"))
    assert same(np.float32(1), np.float32(1))
    assert same(range(3), range(3))
    assert not same(range(3), range(0, 3, 3))
    assert not same(np.float32(1), np.float64(1))
    assert not same([1], [1])
    assert not same((0, 1), (False, 1))


@pytest.mark.parametrize(
    "function",
    [lambda: (_ for _ in ()).throw(KeyboardInterrupt), lambda: gc.collect() and None],
    ids=["raises", "runs"],
)
def test_an_interrupt_leaves_the_collector_as_it_was(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(_observer, "_ids_of_objects", interrupted)
    before = gc.get_freeze_count()
    with pytest.raises(KeyboardInterrupt):
        NewObjects().during(function)
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, before)
