"""What has to hold before the kernel of an op, or of its gradient, runs: where TensorFlow checks too little.

Each entry says for which ops, what is wrong where a call has it, and in a comment what the kernel does then. The op
fuzz (`tests/saving/op_fuzz.py`) finds such kernels; each of these ended the process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from retrotape._tf import tf
from retrotape.ir import DTYPE_NUMBERS
from retrotape.saving._call import Call
from retrotape.saving._lists import TAKES_LIST

_VARIANT = DTYPE_NUMBERS["variant"]
_SIZES = (DTYPE_NUMBERS["int32"], DTYPE_NUMBERS["int64"])
Guard = Callable[[Call], str | None]


def _fft_length(call: Call) -> str | None:
    # A length of 0 fails a CHECK on the shape of the result.
    return "a length that is not above 0" if min(call.numbers(1), default=1) <= 0 else None


def _channels(call: Call) -> str | None:
    # The kernel looks at the last dimension before it asks whether there is one.
    if call.rank(-3) < 1:
        return "a scalar, which has no channels"
    return None


def _one_list(call: Call) -> str | None:
    # A list is looked for in the first element, and an index in the only one.
    if call.kinds[0].dtype == _VARIANT and call.rank(0):
        return "a tensor of lists, where it takes one list"
    at = _LIST_NUMBERS.get(call.op)
    return "an index that is no scalar" if at is not None and call.rank(at) else None


# Where a list op takes one number.
_LIST_NUMBERS = {
    "EmptyTensorList": 1,
    "TensorListGetItem": 1,
    "TensorListReserve": 1,
    "TensorListResize": 1,
    "TensorListScatterV2": 3,
    "TensorListSetItem": 1,
}


def _batch_dims(call: Call) -> str | None:
    # The shape function takes a rank minus this number, and CHECKs that it is not negative.
    count, rank = int(call.attrs["batch_dims"]), call.rank(1)
    if not -rank <= count <= rank:
        return f"{count} batch dimensions of indices of rank {rank}"
    return "an axis that is no scalar" if call.rank(2) else None


def _split_sizes(call: Call) -> str | None:
    # The shape function takes the sizes for a vector of one of two dtypes, whatever they are.
    if call.rank(1) != 1 or call.rank(2) != 0:
        return "sizes that are no vector, or an axis that is no scalar"
    return None if call.kinds[1].dtype in _SIZES else "sizes that are neither int32 nor int64"


def _finite(*positions: int) -> Guard:
    # Draws are repeated until one is taken, which none is where a parameter is no number.
    def guard(call: Call) -> str | None:
        values = (np.asarray(call.value(position), np.float64) for position in positions)
        return None if all(np.isfinite(value).all() for value in values) else "a parameter that is not finite"

    return guard


def _rates(position: int) -> Guard:
    # As above, and for a draw that the dtype of the result cannot hold.
    def guard(call: Call) -> str | None:
        value = np.asarray(call.value(position), np.float64)
        most = min(2.0**24, float(tf.as_dtype(call.attrs["dtype"].number).max) / 4)
        return None if (value <= most).all() else f"a rate that is not at most {most:g}"

    return guard


def _hue(call: Call) -> str | None:
    # The hue is brought back into its range in steps of one.
    return "a hue that is not within 1000" if not abs(float(call.value(1).reshape(-1)[0])) <= 1000 else None


def _boxes(position: int) -> Guard:
    # Corners become places in the image, unchecked where they are no numbers.
    def guard(call: Call) -> str | None:
        value = np.asarray(call.value(position), np.float64)
        return None if (np.abs(value) <= 2.0**20).all() else "boxes that are not finite, or far away"

    return guard


def _within_images(shape: tuple[int, ...], argmax: np.ndarray, batch_in_index: bool) -> str | None:
    # The kernel CHECKs each place when it writes there.
    size = math.prod(shape[1:])
    first = np.arange(argmax.shape[0]).reshape(-1, *[1] * (argmax.ndim - 1)) * (size if batch_in_index else 0)
    inside = (argmax >= first) & (argmax < first + size)
    return None if inside.all() else "places that are not in the image"


def _argmax(call: Call) -> str | None:
    if call.rank(2) == 0 or call.shape(2)[0] > call.shape(0)[0]:
        return "places that are not in the image"
    return _within_images(call.shape(0), call.value(2), call.attrs["include_batch_in_index"])


GUARDS: Mapping[str, Guard] = {
    **dict.fromkeys((f"{i}RFFT{n}" for i in ("", "I") for n in ("", "2D", "3D")), _fft_length),
    "FakeQuantWithMinMaxVarsPerChannel": _channels,
    "FakeQuantWithMinMaxVarsPerChannelGradient": _channels,
    **dict.fromkeys((*sorted(TAKES_LIST), *_LIST_NUMBERS), _one_list),
    "GatherV2": _batch_dims,
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

# Of what an op gave, as its gradient function takes it: a file may say that it gave something else.
RESULT_GUARDS: Mapping[str, Callable[[Call, Callable[[int], np.ndarray]], str | None]] = {
    "MaxPoolWithArgmax": lambda call, result: _within_images(
        call.shape(0), result(1), call.attrs["include_batch_in_index"]
    ),
}
