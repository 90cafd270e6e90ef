"""Upper bounds on the number of elements of a result, where TensorFlow's shape functions do not know it.

Each line of a table justifies its bound. An op without a bound does not run in this process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from retrotape.files.checks._call import Call
from retrotape.files.checks._lists import LIST_ELEMENTS

Bound = Callable[[Call], int]


def _all(call: Call) -> int:
    return call.elements()


def _first(call: Call) -> int:
    return call.size(0)


def _twice(call: Call) -> int:
    return 2 * call.elements()


def _stitched(call: Call) -> int:
    count = len(call.kinds) // 2
    row = call.shape(count)[call.rank(0) :]
    return max((call.highest(position) + 1 for position in range(count)), default=0) * math.prod(row)


def _segments(call: Call) -> int:
    return (call.highest(-1) + 1) * math.prod(call.shape(0)[1:])


def _used_rows(call: Call) -> int:
    return max(call.size(1) * math.prod(call.shape(0)[1:]), call.elements())


def _reduced(call: Call) -> int:
    shape, axes = call.numbers(2), call.numbers(3)
    gone = {axis % max(1, len(shape)) for axis in axes}
    return math.prod(max(0, size) for axis, size in enumerate(shape) if axis not in gone)


def _ranges(call: Call) -> int:
    starts, limits, deltas = (np.asarray(call.value(position), np.float64) for position in range(3))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = np.ceil((limits - starts) / deltas)
    return int(np.nan_to_num(steps, nan=0.0, posinf=2.0**60).clip(0).sum())


def _filled_rows(call: Call) -> int:
    rows = max(call.numbers(2)[:1], default=0)
    return (call.size(1) + max(0, rows)) * max(1, call.size(2))


def _suppressed(call: Call) -> int:
    return max(call.highest(2) if call.attrs.get("pad_to_max_output_size") else 0, call.size(0))


def _letters(call: Call) -> int:
    return 2 * (sum(map(len, call.value(0).reshape(-1))) + call.size(0))


def _padded_rows(call: Call) -> int:
    """Bound a dense tensor made from ragged rows: by `shape`, else no dimension exceeds the number of its rows."""
    count = int(call.attrs["num_row_partition_tensors"])
    declared = call.numbers(0)
    rows = [max(1, call.highest(3 + position), call.size(3 + position)) for position in range(count)]
    longest = max(rows, default=1)
    sides = [size if size >= 0 else longest for size in declared] if call.rank(0) else [longest] * (count + 1)
    return math.prod(max(1, side) for side in sides) * max(1, math.prod(call.shape(1)[1:]))


def _gathered_rows(call: Call) -> int:
    return call.size(-1) * max(call.size(position) for position in range(len(call.kinds) - 1))


# op → the largest number of elements that any result can have
BOUNDS: Mapping[str, Bound] = {
    "Where": lambda call: call.size(0) * max(1, call.rank(0)),  # the place of every element
    **dict.fromkeys(("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"), _first),  # if all differ
    "ListDiff": _first,  # if nothing is removed
    "DynamicPartition": _first,  # if everything goes to one part
    **dict.fromkeys(("DynamicStitch", "ParallelDynamicStitch"), _stitched),  # up to the highest index
    "BroadcastGradientArgs": _twice,  # at most every dimension of either shape, for each of them
    "BroadcastArgs": _all,  # as many dimensions as the longer shape has
    **dict.fromkeys(("Range", "RaggedRange"), _ranges),  # the steps that fit
    "NonMaxSuppression": _first,  # every box at most
    **{f"NonMaxSuppressionV{n}": _suppressed for n in (2, 3, 4, 5)},  # every box, or padded to the requested number
    **{f"Segment{how}": _segments for how in ("Max", "Mean", "Min", "Prod", "Sum")},  # up to the highest segment
    **{f"SparseSegment{how}": _segments for how in ("Mean", "SqrtN", "Sum")},
    **{f"SparseSegment{how}GradV2": _used_rows for how in ("Mean", "SqrtN", "Sum")},  # one row for each used row
    "SparseFillEmptyRows": _filled_rows,  # one element more for each row
    "SparseFillEmptyRowsGrad": _all,  # of the original values
    **dict.fromkeys(("SparseReduceMax", "SparseReduceSum"), _reduced),  # the dimensions that are left
    **dict.fromkeys(("SparseAdd", "SparseConcat", "SparseSparseMaximum", "SparseSparseMinimum"), _all),  # all of all
    **dict.fromkeys(("SparseSlice", "SparseSplit"), _all),  # parts of the input
    **dict.fromkeys(("StringSplit", "StringSplitV2"), _letters),  # every letter a word, and where it stands
    "RaggedTensorToTensor": _padded_rows,
    "RaggedTensorToSparse": lambda call: call.elements() * (len(call.kinds) + call.rank(-1) + 1),  # places of values
    "RaggedGather": _gathered_rows,  # the longest row, every time
    "FusedBatchNormV3": _first,  # its last result is reserved for the gradient: empty on a CPU
    "ComputeAccidentalHits": lambda call: call.size(0) * call.size(1),  # all pairs
    "OptionalGetValue": lambda call: 0,  # returns an existing tensor
    **LIST_ELEMENTS,
}


def _joined(call: Call) -> int:
    longest = sum(longest_text(call, position) for position in range(len(call.kinds)))
    return longest + len(call.attrs["separator"]) * len(call.kinds)


def _reduced_text(call: Call) -> int:
    return (longest_text(call, 0) + len(call.attrs["separator"])) * max(1, call.size(0))


def _digits(call: Call) -> int:
    return 64 + max(0, int(call.attrs["width"])) + 400 + max(0, int(call.attrs["precision"]))


def _rewritten(call: Call) -> int:
    """Bound a text in which every match, including empty ones, is replaced by a text that may repeat it."""
    text = longest_text(call, 0)
    rewrite = call.attrs["rewrite"] if "rewrite" in call.attrs else max(call.value(2).reshape(-1), key=len, default=b"")
    return (text + 1) * (len(rewrite) + 1) + text * (1 + rewrite.count(b"\\"))


def _formatted(call: Call) -> int:
    template, holes = call.attrs["template"], max(1, len(call.kinds))
    shown = (2 * max(0, int(call.attrs["summarize"])) + 4) ** 2 * 64
    texts = sum(longest_text(call, position) * call.size(position) for position in range(len(call.kinds)))
    return len(template) + holes * shown + 4 * texts


# op → the longest text that a result can have; all other ops return texts of their inputs
TEXTS: Mapping[str, Bound] = {
    "AsString": _digits,
    "StringJoin": _joined,
    "ReduceJoin": _reduced_text,  # all of one row
    "UnsortedSegmentJoin": _reduced_text,
    **dict.fromkeys(("StringLower", "StringUpper"), lambda call: 3 * longest_text(call, 0)),  # ß becomes SS
    **dict.fromkeys(("RegexReplace", "StaticRegexReplace"), _rewritten),
    "StringFormat": _formatted,
}


def longest_text(call: Call, position: int) -> int:
    """Return how many bytes the longest text of an input has."""
    if call.kinds[position].dtype != 7:
        return 0
    return max(map(len, call.value(position).reshape(-1)), default=0)


def longest_given(call: Call) -> int:
    """Return how many bytes the longest text among the inputs has."""
    return max((longest_text(call, position) for position in range(len(call.kinds))), default=0)
