"""A tape that is opened inside a `tf.function`, around the replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import retrotape as rt
from record.replicas.cases_around import _dense, _reduced_back, _slices, _slices_slope
from record.replicas.setting import Setting, all_gather, all_reduce, case, merged_sum, twice_back


def _inside(s: Setting, body: Callable, op: str = "SUM", order: int = 1) -> Any:
    @tf.function
    def step() -> Any:
        with rt.Tape() as tape:
            y = s.total(body, op)
        return tape.gradient(y, s.w) if order == 1 else tape.hessian(y, s.w)

    return step()


@case()
def around_in_a_graph(s: Setting) -> Any:
    return _inside(s, lambda x: x * s.w * s.w), 6 * s.sum


@case()
def around_a_collective_in_a_graph(s: Setting) -> Any:
    found = [_inside(s, lambda x, op=op: all_reduce(op, x * s.w) ** 2) for op in ("SUM", "MEAN")]
    return found, [s.count * 6 * s.sum**2, 6 * s.sum**2 / s.count]


@case()
def second_derivative_in_a_graph(s: Setting) -> Any:
    return _inside(s, lambda x: all_reduce("SUM", x * s.w * s.w) ** 2, order=2), s.count * s.sum**2 * 108


@case()
def mean_of_the_replicas_in_a_graph(s: Setting) -> Any:
    return _inside(s, lambda x: twice_back(merged_sum(x * s.w)) ** 2, "MEAN"), 12 * s.sum**2


@case()
def gather_in_a_graph(s: Setting) -> Any:
    places = tf.range(1.0, s.count + 1.0)
    want = 6 * float((s.given_in_order**2 * places.numpy()).sum())
    return _inside(s, lambda x: tf.reduce_sum(all_gather(x * s.w) ** 2 * places)), s.count * want


@case()
def slices_in_a_graph(s: Setting) -> Any:
    found = [_inside(s, lambda x, op=op: _dense(all_reduce(op, _slices(x, x * s.w)))) for op in ("SUM", "MEAN")]
    return found, [s.count * _slices_slope(s, mean) for mean in (False, True)]


@case("ReplicaError: The path from the source to the target passes a custom gradient", "mirrored", "central")
def reduction_in_a_custom_gradient_in_a_graph(s: Setting) -> Any:
    return _inside(s, lambda x: _reduced_back(x * s.w)), s.count * s.sum
