"""Preconditions of kernels, and of the kernels of gradients, that TensorFlow does not check itself.

Each guard returns what is wrong with a call, and has a comment on what the kernel would do. The op fuzzer
(`tests/files/checks/op_fuzz.py`) finds such kernels; each of these crashed the process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from retrotape.files.checks._call import Call
from retrotape.files.checks._lists import TAKES_LIST
from retrotape.ir import DTYPE_NUMBERS
from retrotape.tf.core import tf

_VARIANT = DTYPE_NUMBERS["variant"]
_SIZES = (DTYPE_NUMBERS["int32"], DTYPE_NUMBERS["int64"])
Guard = Callable[[Call], str | None]


def _fft_length(call: Call) -> str | None:
    # A length of 0 fails a CHECK on the shape of the result.
    return "a length that is not above 0" if min(call.numbers(1), default=1) <= 0 else None


def _channels(call: Call) -> str | None:
    # The kernel reads the last dimension before it checks that there is one.
    if call.rank(-3) < 1:
        return "a scalar, which has no channels"
    return None


def _one_list(call: Call) -> str | None:
    # Kernels read the list from the first element and a number from the only one; negative indices are out of bounds.
    if call.kinds[0].dtype == _VARIANT and call.rank(0):
        return "a tensor of lists, where it takes one list"
    for position, rank in _LIST_NUMBERS.get(call.op, {}).items():
        if call.rank(position) != rank:
            return f"numbers of rank {call.rank(position)}, where it takes rank {rank}"
        lowest = -1 if rank == 0 and call.op in ("EmptyTensorList", "TensorListScatterV2") else 0  # -1 for any number
        if min(call.numbers(position), default=0) < lowest:
            return "an index below 0"
    return None


# Where a list op takes numbers, and of which rank.
_LIST_NUMBERS: Mapping[str, Mapping[int, int]] = {
    "EmptyTensorList": {1: 0},
    "TensorListConcatV2": {2: 1},
    "TensorListGather": {1: 1},
    "TensorListGetItem": {1: 0},
    "TensorListReserve": {1: 0},
    "TensorListResize": {1: 0},
    "TensorListScatter": {1: 1},
    "TensorListScatterIntoExistingList": {2: 1},
    "TensorListScatterV2": {1: 1, 3: 0},
    "TensorListSetItem": {1: 0},
    "TensorListSplit": {2: 1},
}


def _batch_dims(call: Call) -> str | None:
    # The shape function takes a rank minus this number, and CHECKs that it is not negative.
    count, rank = int(call.attrs["batch_dims"]), call.rank(1)
    if not -rank <= count <= rank:
        return f"{count} batch dimensions of indices of rank {rank}"
    return "an axis that is no scalar" if call.rank(2) else None


def _split_sizes(call: Call) -> str | None:
    # The shape function assumes that the sizes are a vector of one of two dtypes.
    if call.rank(1) != 1 or call.rank(2) != 0:
        return "sizes that are no vector, or an axis that is no scalar"
    return None if call.kinds[1].dtype in _SIZES else "sizes that are neither int32 nor int64"


def _finite(*positions: int) -> Guard:
    # Rejection sampling never ends where a parameter is NaN.
    def guard(call: Call) -> str | None:
        values = (np.asarray(call.value(position), np.float64) for position in positions)
        return None if all(np.isfinite(value).all() for value in values) else "a parameter that is not finite"

    return guard


def _rates(position: int) -> Guard:
    # As above, and where the dtype of the result cannot hold the sample.
    def guard(call: Call) -> str | None:
        value = np.asarray(call.value(position), np.float64)
        most = min(2.0**24, float(tf.as_dtype(call.attrs["dtype"].number).max) / 4)
        return None if (value <= most).all() else f"a rate that is not at most {most:g}"

    return guard


def _hue(call: Call) -> str | None:
    # The hue is brought back into its range in steps of one.
    return "a hue that is not within 1000" if not abs(float(call.value(1).reshape(-1)[0])) <= 1000 else None


def _histogram(call: Call) -> str | None:
    # NaN goes to a bin that does not exist.
    low, high = np.asarray(call.value(1), np.float64).reshape(-1)[:2] if call.size(1) > 1 else (0.0, 0.0)
    if not (np.isfinite([low, high]).all() and low < high):
        return "a range that is not finite, or empty"
    return "values that are no numbers" if np.isnan(np.asarray(call.value(0), np.float64)).any() else None


def _labels(call: Call) -> str | None:
    # Labels index a row of scores, and rows of labels index the batch; few indices are checked.
    times, batch, classes = call.shape(0) if call.rank(0) == 3 else (0, 0, 0)
    at, labels, lengths = (np.asarray(call.value(position)) for position in (1, 2, 3))
    if at.ndim != 2 or at.shape[-1] != 2 or labels.shape != at.shape[:1] or lengths.shape != (batch,):
        return "labels that do not fit the batch"
    if at.size and (
        at.min() < 0 or at[:, 0].max() >= batch or at[:, 1].max() >= 2**20 or (np.diff(at[:, 0]) < 0).any()
    ):
        return "rows of labels that are not in the batch"
    if labels.size and (labels.min() < 0 or labels.max() >= classes - 1):
        return "labels of classes that there are not"
    return "lengths beyond the input" if lengths.size and (lengths.min() < 0 or lengths.max() > times) else None


def _boxes(position: int) -> Guard:
    # Corners become indices into the image, unchecked for NaN.
    def guard(call: Call) -> str | None:
        value = np.asarray(call.value(position), np.float64)
        return None if (np.abs(value) <= 2.0**20).all() else "boxes that are not finite, or far away"

    return guard


def _row_splits(call: Call) -> str | None:
    # The gradient function allocates as many values as the last split says.
    count = len(call.kinds) - 2
    for at in range(count):
        splits = call.value(at)
        below = call.size(at + 1) - 1 if at + 1 < count else call.shape(count)[0] if call.rank(count) else 0
        if splits.ndim != 1 or not splits.size or splits[0] or (np.diff(splits) < 0).any() or splits[-1] > below:
            return "rows that are out of order"
    return None


def _argmax(call: Call) -> str | None:
    # The kernel CHECKs each index when it writes there.
    size, argmax = math.prod(call.shape(0)[1:]), call.value(2)
    if argmax.ndim == 0 or argmax.shape[0] > call.shape(0)[0]:
        return "places for more images than there are"
    first = np.arange(argmax.shape[0]).reshape(-1, *[1] * (argmax.ndim - 1))
    first = first * (size if call.attrs["include_batch_in_index"] else 0)
    return None if ((argmax >= first) & (argmax < first + size)).all() else "places that are not in the image"


def _dense_shape(position: int) -> Guard:
    # The gradient function makes a dense tensor of that shape, without its last dimension.
    def guard(call: Call) -> str | None:
        sizes = call.numbers(position)
        return "a dense shape that is too large" if math.prod(max(1, size) for size in sizes[:-1]) > 2**24 else None

    return guard


def _sparse_shapes(*positions: int) -> Guard:
    # A size below 0 is unknown to the shape function, and fails a CHECK in the kernel or in that of the gradient.
    def guard(call: Call) -> str | None:
        for position in positions:
            sizes = call.numbers(position)
            if min(sizes, default=0) < 0 or math.prod(max(1, size) for size in sizes) >= 2**62:
                return "a dense shape that is negative, or more than can be counted"
        return None

    return guard


def _all_of(*guards: Guard) -> Guard:
    return lambda call: next((wrong for guard in guards if (wrong := guard(call))), None)


def _rows(call: Call) -> str | None:
    # The kernel uses row partitions as indices into the result, and checks few of them.
    kinds, values = call.attrs["row_partition_types"], [call.value(3 + at) for at in range(len(call.kinds) - 3)]
    count: int | None = None
    for kind, rows in zip(kinds, values, strict=True):
        steps = np.diff(rows) if rows.ndim == 1 else np.array([-1])
        if kind == b"FIRST_DIM_SIZE" and rows.ndim == 0:
            count = int(rows)
            if not 0 <= count <= 2**22:  # it allocates that many
                return f"{count} rows"
            continue
        if (steps < 0).any() or (rows.size and rows[0] < 0):
            return "rows that are out of order"
        if kind == b"ROW_SPLITS":
            if not rows.size or rows[0] or (count is not None and count != rows.size - 1):
                return "rows that do not follow each other"
            count = int(rows[-1])
        elif kind == b"VALUE_ROWIDS":
            if count is not None and rows.size and rows[-1] >= count:
                return "more rows than there are"
            count = rows.size
        else:
            return "rows of an unknown kind"
    if not call.rank(1) or count != call.shape(1)[0] or (call.rank(2) and call.shape(2) != call.shape(1)[1:]):
        return "a number of values that does not fit its rows"
    return None


GUARDS: Mapping[str, Guard] = {
    **dict.fromkeys((f"{i}RFFT{n}" for i in ("", "I") for n in ("", "2D", "3D")), _fft_length),
    "FakeQuantWithMinMaxVarsPerChannel": _channels,
    "FakeQuantWithMinMaxVarsPerChannelGradient": _channels,
    **dict.fromkeys((*sorted(TAKES_LIST), *_LIST_NUMBERS), _one_list),
    "GatherV2": _batch_dims,
    "CTCLoss": _labels,
    "HistogramFixedWidth": _histogram,
    "RaggedGather": _row_splits,
    "RaggedTensorToTensor": _rows,
    **dict.fromkeys(("SparseAdd", "SparseSparseMaximum", "SparseSparseMinimum"), _sparse_shapes(2, 5)),
    **dict.fromkeys((f"SparseDenseCwise{how}" for how in ("Add", "Div", "Mul")), _sparse_shapes(2)),
    **dict.fromkeys(("SparseFillEmptyRows", "SparseReduceMax", "SparseReduceSum", "SparseReorder"), _sparse_shapes(2)),
    **dict.fromkeys(("SparseSlice", "SparseTensorDenseAdd", "SparseTensorDenseMatMul"), _sparse_shapes(2)),
    **dict.fromkeys(("SparseReshape", "SparseToDense"), _sparse_shapes(1)),
    "SparseSoftmax": _all_of(_sparse_shapes(2), _dense_shape(2)),
    "AdjustHue": _hue,
    "CropAndResize": _boxes(1),
    "CropAndResizeGradImage": _boxes(1),
    "CropAndResizeGradBoxes": _boxes(2),
    "MaxPoolGradWithArgmax": _argmax,
    "SplitV": _split_sizes,
    "RandomPoissonV2": _rates(1),
    "StatelessRandomPoisson": _rates(2),
    "StatelessRandomBinomial": _finite(2, 3),
    "RandomGamma": _finite(1),
    "StatelessRandomGammaV2": _finite(2),
    "StatelessRandomGammaV3": _finite(4),
}

# Ops whose gradient functions rely on their outputs, or on the list that these came from. A file may hold other
# outputs, so stored outputs of these ops are not used: they are recomputed.
RECOMPUTED = frozenset(
    (
        *("MaxPoolWithArgmax", "OptionalGetValue", "TensorListConcatV2", "TensorListGather", "TensorListGetItem"),
        *("TensorListPopBack", "TensorListStack"),
    )
)
