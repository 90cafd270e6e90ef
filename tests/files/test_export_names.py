"""Exported models keep every name apart, whatever letters it has."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


@tf.custom_gradient
def bent(x):
    return tf.sin(x), lambda upstream: upstream * tf.tile(tf.cos(x)[:1], [3])


@pytest.fixture(scope="module")
def recorded():
    x, w = tf.constant([0.5, 1.0, 2.0]), tf.Variable([1.0, 2.0, 3.0], name="größe/w")
    other = tf.Variable(2.0, name="größe_w")
    with rt.Tape() as tape:
        h = bent(x) * w
        loss = tf.reduce_sum(h**2) * other
        wave = tf.reduce_sum(tf.complex(h, h))
    return tape, {"a/b": h, "a_b": loss, "/x": x, "weight": w, "wave": wave}


@pytest.mark.parametrize("way", ["live", "loaded"])
def test_no_name_takes_the_place_of_another(way, recorded, tmp_path):
    tape, names = recorded
    asked = tape.gradient(names["a_b"], [names["/x"], names["weight"]])
    if way == "loaded":
        tape.save(tmp_path / "a.tape", names)
        tape, names = rt.load(tmp_path / "a.tape"), None
    tape.export_saved_model(tmp_path / "model", names)
    model = tf.saved_model.load(str(tmp_path / "model"))
    found = model.signatures["serving_default"](n_x=recorded[1]["/x"])
    np.testing.assert_allclose(found["a_b"], recorded[1]["a_b"], rtol=1e-6)
    np.testing.assert_allclose(found["a_b_1"], recorded[1]["a/b"], rtol=1e-6)
    np.testing.assert_allclose(found["wave"], recorded[1]["wave"], rtol=1e-6)
    assert set(model.signatures) == {"serving_default", "gradient_of_a_b"}  # "wave" is complex, and "a/b" no scalar
    grads = model.signatures["gradient_of_a_b"](n_x=recorded[1]["/x"])
    assert set(grads) == {"n_x", "weight", "gr__e_w", "gr__e_w_1"}
    np.testing.assert_allclose(grads["n_x"], asked[0], rtol=1e-6)
    for name in ("weight", "gr__e_w"):  # two names of one variable
        np.testing.assert_allclose(grads[name], asked[1], rtol=1e-6)
