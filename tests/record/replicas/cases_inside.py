"""A tape inside of a replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import retrotape as rt
from record.replicas.setting import Setting, all_reduce, case, merged_sum


@case()
def inside(s: Setting) -> Any:
    def body(x: Any) -> Any:
        with rt.Tape() as tape:
            y = x * s.w * s.w
        return tape.gradient(y, s.w)

    return [s.each(body), s.total(tf.function(body))], [6 * s.given, 6 * s.sum]


@case()
def inside_through_a_reduction(s: Setting) -> Any:
    def body(x: Any) -> Any:
        with rt.Tape() as tape:
            y = all_reduce("SUM", x * s.w) ** 2
        return tape.gradient(y, s.w)

    want = s.count * 6 * s.sum**2
    return [s.total(body), tf.function(lambda: s.total(body))()], [want, want]


@case("ReplicaError: The path from the source to the target passes a merge_call", "mirrored", "central")
def inside_through_a_merge(s: Setting) -> Any:
    def body(x: Any) -> Any:
        with rt.Tape() as tape:
            y = merged_sum(x * s.w)
        return tape.gradient(y, s.w, none="zero")

    return s.total(body), s.count * s.sum


@case("ReplicaError: The path from the source to the target passes ", "mirrored", "central")
def inside_through_a_merge_in_a_graph(s: Setting) -> Any:
    return tf.function(lambda: inside_through_a_merge(s)[0])(), s.count * s.sum


def _recorded_inside(s: Setting, body: Callable) -> list[tuple[Any, Any]]:
    found = []

    def replica(x: Any) -> None:
        with rt.Tape() as tape:
            y = body(x)
        found.append((tape, y))

    s.strategy.run(replica, (s.x,))
    return found


@case()
def asked_afterwards(s: Setting) -> Any:
    return [tape.gradient(y, s.w) for tape, y in _recorded_inside(s, lambda x: x * s.w)], s.given


@case("ReplicaError: The path from the source to the target passes an all_reduce", "mirrored", "central")
def reduction_asked_afterwards(s: Setting) -> Any:
    found = _recorded_inside(s, lambda x: all_reduce("SUM", x * s.w))
    return [tape.gradient(y, s.w) for tape, y in found], s.given


@case()
def only_its_own_replica(s: Setting) -> Any:
    found = _recorded_inside(s, lambda x: merged_sum(x * s.w))
    return [sum(eqn.op == "Mul" for eqn in tape.program.eqns) for tape, _ in found], [1] * s.count


@case()
def joined(s: Setting) -> Any:
    found = _recorded_inside(s, lambda x: x * s.w)
    return rt.join(*(tape for tape, _ in found)).gradient([y for _, y in found], s.w), s.sum


@case("UnseenUpdateError: The target depends on a value of 'Variable:0'", "mirrored")
def update_by_a_merge(s: Setting) -> Any:
    with s.strategy.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)

    def body(x: Any) -> Any:
        with rt.Tape() as tape:
            v.assign(v * x)  # all replicas together
            y = v * 1.0
        return tape.gradient(y, v, through_updates=True)

    return s.total(body), 0
