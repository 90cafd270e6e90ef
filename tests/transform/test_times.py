"""The calls of layers inside functions, from the chains of the equations that were inlined."""

from __future__ import annotations

from retrotape.ir import GrowingFacts, LayerCall
from retrotape.transform._times import order_times

A, B = (("a", 0),), (("a", 0), ("b", 1))


def calls(times, chains, layer_calls=()) -> list[tuple[str, list[int]]]:
    """Return each call of a layer, with the equations that it has."""
    facts = GrowingFacts(times=list(times), layer_calls={call.begin: call for call in layer_calls})
    order_times(facts, list(times), chains)
    assert facts.times == sorted(set(facts.times))
    found = sorted(facts.layer_calls.values(), key=lambda call: call.begin)
    return [(call.path, [n for n, time in enumerate(facts.times) if call.begin < time < call.end]) for call in found]


def test_one_call_of_a_function():
    assert calls([5] * 4, [A, B, B, A]) == [("a", [0, 1, 2, 3]), ("a/b", [1, 2])]


def test_two_calls_of_the_same_function_are_two_calls_of_its_layers():
    assert calls([5, 5, 7, 7], [A, A, A, A]) == [("a", [0, 1]), ("a", [2, 3])]


def test_an_op_in_between_belongs_to_the_layer_around_it():
    assert calls([5] * 3, [B, (), A]) == [("a", [0, 1, 2]), ("a/b", [0])]
    assert calls([5, 6, 7], [A, (), A]) == [("a", [0]), ("a", [2])]  # not one function


def test_a_function_inside_a_function_runs_in_the_layer_that_calls_it():
    assert calls([5] * 3, [B, None, A]) == [("a", [0, 1, 2]), ("a/b", [0, 1])]
    assert calls([5, 7, 7], [A, None, A]) == [("a", [0]), ("a", [2])]  # not in that of an earlier call


def test_inside_a_layer_outside_of_functions():
    outer = LayerCall("outer", 4, 6, 0)
    assert calls([3, 5, 5, 7], [(), A, A, A], [outer]) == [("outer", [1, 2]), ("outer/a", [1, 2]), ("a", [3])]
