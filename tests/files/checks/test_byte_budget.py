"""No op of a file makes more than was counted before: what is counted covers what kernels really make."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from retrotape.errors import UnsafeTapeError
from retrotape.files.checks._guard import Guard
from retrotape.ir import DType, Eqn, TensorType
from retrotape.tf import core

FLOAT, INT32, INT64, VARIANT = 1, 3, 9, 21


def run(guard: Guard, op: str, inputs: list[Any], made: list[TensorType], **attrs: Any) -> list[Any]:
    kinds = [TensorType(core.eager_dtype(tensor), tensor._shape_tuple()) for tensor in inputs]
    count = len(kinds)
    outputs = tuple(range(count, count + len(made)))
    eqn = Eqn(op, tuple(range(count)), outputs, tuple(sorted(attrs.items())), 0)
    return guard.run(eqn, inputs, [*kinds, *made])


def sparse_rows(guard: Guard) -> None:
    inputs = [tf.ones([1, 1000]), tf.range(1000), tf.zeros([1000], tf.int32), tf.constant(1000)]
    made = [TensorType(FLOAT, (5, 1000)), TensorType(INT32, (5,))]
    kinds = {"T": DType(FLOAT), "Tidx": DType(INT32), "Tsegmentids": DType(INT32)}
    run(guard, "SparseSegmentSumGradV2", inputs, made, **kinds)


def ragged_rows(guard: Guard) -> None:
    splits = tf.constant([0] + [1000] * 1000, tf.int64)
    inputs = [tf.constant(-1, tf.int64), tf.ones([1000]), tf.constant(0.0), splits]
    kinds = {"T": DType(FLOAT), "Tindex": DType(INT64), "Tshape": DType(INT64)}
    partition = {"num_row_partition_tensors": 1, "row_partition_types": (b"ROW_SPLITS",)}
    run(guard, "RaggedTensorToTensor", inputs, [TensorType(FLOAT, (5, 5))], **kinds, **partition)


def full_list(guard: Guard) -> Any:
    """Return a list of which all items are one tensor."""
    kinds = {"element_dtype": DType(FLOAT), "shape_type": DType(INT32)}
    made = [TensorType(VARIANT, ())]
    (held,) = run(guard, "EmptyTensorList", [tf.constant(-1), tf.constant(-1)], made, **kinds)
    item = tf.ones([10_000])
    for _ in range(100):
        (held,) = run(guard, "TensorListPushBack", [held, item], made, element_dtype=DType(FLOAT))
    return held


def zeros_in_a_list(guard: Guard) -> None:
    run(guard, "ZerosLike", [full_list(guard)], [TensorType(VARIANT, ())], T=DType(VARIANT))


def zeros_of_a_gradient(guard: Guard) -> None:
    guard.check_zeros(full_list(guard))


@pytest.mark.parametrize("attempt", [sparse_rows, ragged_rows, zeros_in_a_list, zeros_of_a_gradient])
def test_what_would_be_made_is_counted(attempt):
    with pytest.raises(
        UnsafeTapeError, match=r"would make [\d,]+ bytes, [\d,]+ with the live values, more than 1,048,576"
    ):
        attempt(Guard("a.tape", (), 2**20))
    guard = Guard("a.tape", (), 2**30)
    if attempt is zeros_in_a_list:
        attempt(guard)  # there it fits
