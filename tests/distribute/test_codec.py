"""Values as bytes: byte order, dtypes, tensors that stay tensors, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from retrotape.distribute._codec import decode, encode


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i4", ">u2", ">c8", "<f8", "bool", "float16"])
def test_byte_order_does_not_change_a_value(dtype):
    array = np.array([[1, 0, 3], [4, 5, 100]], dtype)
    back = decode(encode({"all": array, "transposed": array.T, "one": array[1, 2]}))
    assert back["all"].dtype.isnative
    np.testing.assert_array_equal(back["all"], array)
    np.testing.assert_array_equal(back["transposed"], array.T)
    assert back["one"] == array[1, 2]


def test_small_floats_of_tensorflow_are_kept():
    value = tf.constant([1.5, -2.0], tf.bfloat16)
    assert decode(encode(value)).tobytes() == value.numpy().tobytes()
    assert decode(encode(value)).dtype == value.numpy().dtype


def test_tensors_come_back_as_arrays_or_as_tensors():
    given = [tf.constant([1, 2]), tf.Variable(2.0), np.float64(3.0), np.ones(2), 4.0]
    assert not any(tf.is_tensor(item) for item in decode(encode(given)))
    kept = decode(encode(given, keep_tensors=True))
    assert [tf.is_tensor(item) for item in kept] == [True, True, False, False, False]
    assert (kept[0].dtype, kept[1].dtype) == (tf.int32, tf.float32)
    assert (kept[0].numpy().tolist(), float(kept[1])) == ([1, 2], 2.0)


def test_a_masked_array_is_refused():
    with pytest.raises(TypeError) as raised:
        encode([np.ma.array([1.0, 2.0], mask=[False, True])])
    assert str(raised.value) == (
        "Got a masked array, whose mask would be lost; give the values, `array.filled(0.0)`, and the mask, "
        "`np.ma.getmaskarray(array)`."
    )


@pytest.mark.parametrize("value", [np.void(b"abcd"), np.zeros(2, "V4"), np.zeros(2, [("a", "f4")])], ids=repr)
def test_raw_and_structured_arrays_are_refused(value):
    with pytest.raises(TypeError, match=r"^Got an array of dtype .*; expected tensors, arrays, numbers, text"):
        encode(value)
