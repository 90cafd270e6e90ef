"""Paths that were cut on purpose."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import retrotape as rt
from golden.why.registry import Asked, program, weights


@program
def target_network() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        wanted = tf.stop_gradient(w * 2.0)  # here
        loss = tf.reduce_mean((wanted - 1.0) ** 2)
    return tape, loss, w


@program
def stopped_in_a_function() -> Asked:
    w = weights()

    @tf.function
    def wanted(x: Any) -> Any:
        return tf.stop_gradient(x * 2.0)  # here

    with rt.Tape() as tape:
        loss = tf.reduce_sum(wanted(w) ** 2)
    return tape, loss, w


@program
def rounded_in_a_function() -> Asked:
    w = weights()

    @tf.function
    def quantized(x: Any) -> Any:
        return tf.cast(tf.cast(x * 10.0, tf.int32), tf.float32)  # here

    with rt.Tape() as tape:
        loss = tf.reduce_sum(quantized(w))
    return tape, loss, w


@program
def noise_in_a_function() -> Asked:
    w = weights()

    @tf.function
    def noisy(x: Any) -> Any:
        return tf.round(x + tf.random.uniform([3]))

    with rt.Tape() as tape:
        loss = tf.reduce_sum(noisy(w))  # here
    return tape, loss, w


@program
def stopped_beside_noise_in_a_function() -> Asked:
    w = weights()

    @tf.function
    def noisy(x: Any) -> Any:
        return tf.stop_gradient(x) + tf.random.uniform([3])  # here

    with rt.Tape() as tape:
        loss = tf.reduce_sum(noisy(w))
    return tape, loss, w


@program
def cut_on_every_route() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        wanted = tf.stop_gradient(w)  # here
        hits = tf.cast(w > 0.0, tf.float32)
        loss = tf.reduce_sum(wanted * hits + tf.round(w))
    return tape, loss, w


@program
def custom_gradient_that_returns_none() -> Asked:
    w = weights()

    @tf.custom_gradient
    def straight(x: Any) -> Any:
        def grad(upstream: Any) -> Any:
            upstream * 1.0

        return tf.round(x), grad

    with rt.Tape() as tape:
        loss = tf.reduce_sum(straight(w))  # here
    return tape, loss, w
