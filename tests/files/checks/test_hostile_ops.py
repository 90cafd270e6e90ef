"""Small files whose ops would end the process, or fill its memory, when they run: each is refused before."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from files.checks.forging import forge
from files.mutations import take_apart
from files.recorded import bent
from retrotape.errors import RetrotapeError, UnsafeTapeError
from retrotape.files import store
from retrotape.files.checks import _bounds

F4 = np.float32


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, F4)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


LIST = "{element_dtype=float32, shape_type=int32}"
# name → the program, whose last var is asked for; its values; what the error says
REFUSED_AT_LOAD: dict[str, tuple[str, dict[int, Any], str]] = {
    "a size that is open": (
        "%0 : int64[1]\n%1 : float32[]\n%2 : float32[?] = Fill{T=float32, index_type=int64}(%0, %1) @0",
        {0: np.array([2**29]), 1: F4(0)},
        r"%2 is float32\[\?\]; every recorded value has a known size",
    ),
    "a rank that is open": (
        "%0 : float32[]\n%1 : float32[1]\n%2 : float32[...] = FakeQuantWithMinMaxVarsPerChannel(%0, %1, %1) @0",
        {0: F4(1), 1: ones(1)},
        r"%2 is float32\[\.\.\.\]; every recorded value has a known size",
    ),
    "a leaf of open size": ("%0 : float32[?]\n%1 : float32[] = Sum{T=float32}(%0, %0) @0", {}, r"%0 is float32\[\?\]"),
    "fused cells": (
        "%0 : float32[1]\n"
        + ", ".join(f"%{i} : float32[1]" for i in range(1, 8))
        + " = LSTMBlockCell{T=float32}("
        + ", ".join(["%0"] * 8)
        + ") @0",
        {0: ones(1)},
        "it names the op LSTMBlockCell, which is not on the list",
    ),
    "no elements, and more than can be counted": (
        "%0 : float32[0,4611686018427387904,4611686018427387904]\n%1 : float32[3] = Neg{T=float32}(%0) @0",
        {},
        "more than TensorFlow can count",
    ),
    "many leaves without values": (
        "\n".join(f"%{i} : float32[25000000]" for i in range(4)) + "\n%4 : float32[25000000] = Neg{T=float32}(%0) @0",
        {},
        r"the leaves of its program have 400,000,000 bytes, more than [\d,]+",
    ),
    "a window of negative size": (
        "%0 : float32[1,2,2,1]\n%1 : float32[1,2,2,1] = MaxPool{T=float32, ksize=(1, -2147483648, 1, 1), "
        "padding=b'SAME', strides=(1, 1, 1, 1)}(%0) @0",
        {0: ones(1, 2, 2, 1)},
        "attribute 'ksize' of op MaxPool is not from 1 to 65536",
    ),
    "a list of another type, behind one that is right": (
        "%0 : float32[1,2,2,1]\n%1 : float32[1,2,2,1] = MaxPool{T=float32, ksize=(1, 1, 1, 1), padding=b'SAME', "
        "strides=(1, 1, 1, 1)}(%0) @0\n%2 : float32[1,2,2,1] = MaxPool{T=float32, ksize=(b'a', b'b'), padding=b'SAME', "
        "strides=(1, 1, 1, 1)}(%1) @0",
        {0: ones(1, 2, 2, 1)},
        "attribute 'ksize' of op MaxPool is not of type list",
    ),
}


@pytest.mark.parametrize("name", REFUSED_AT_LOAD)
def test_refused_when_it_is_loaded(name, tmp_path):
    program, values, text = REFUSED_AT_LOAD[name]
    with pytest.raises(UnsafeTapeError, match=text):
        rt.load(forge(tmp_path / "a.tape", program, values, {"y": 0}))


REFUSED_WHEN_RUN: dict[str, tuple[str, dict[int, Any], str]] = {
    "a transform of length 0": (
        "%0 : float32[3]\n%1 : int32[1]\n%2 : complex64[3] = RFFT{Tcomplex=complex64}(%0, %1) @0",
        {0: ones(3), 1: np.zeros(1, "i4")},
        "op RFFT would get a length that is not above 0",
    ),
    "channels of a scalar": (
        "%0 : float32[]\n%1 : float32[1]\n%2 : float32[] = FakeQuantWithMinMaxVarsPerChannel(%0, %1, %1) @0",
        {0: F4(1), 1: ones(1)},
        "would get a scalar, which has no channels",
    ),
    "an update by indices that do not fit": (
        "%0 : float32[2]\n%1 : int32[2,3,3]\n%2 : float32[2]\n"
        "%3 : float32[2] = ResourceScatterNdAdd{T=float32, Tindices=int32}(%0, %1, %2) @0",
        {0: ones(2), 1: np.zeros((2, 3, 3), "i4"), 2: ones(2)},
        r"ResourceScatterNdAdd with indices of shape \[2, 3, 3\] into shape \[2\]",
    ),
    "an update of another shape": (
        "%0 : float32[2]\n%1 : float32[3,1]\n%2 : float32[2] = AssignAddVariableOp{dtype=float32}(%0, %1) @0",
        {0: ones(2), 1: ones(3, 1)},
        r"AssignAddVariableOp with shape \[3, 1\] where \[2\] is needed",
    ),
    "a step of an optimizer with a matrix as its rate": (
        "%0 : float32[2]\n%1 : float32[2,2]\n%2 : float32[2] = ResourceApplyGradientDescent{T=float32}(%0, %1, %0) @0",
        {0: ones(2), 1: ones(2, 2)},
        r"with alpha of shape \[2, 2\], which is not a scalar",
    ),
    "an update that compares all rows with all": (
        "%0 : float32[10,1]\n%1 : int32[20000]\n%2 : float32[20000,1]\n"
        "%3 : float32[10,1] = ResourceScatterUpdate{Tindices=int32, dtype=float32}(%0, %1, %2) @0",
        {0: ones(10, 1), 1: np.zeros(20_000, "i4"), 2: ones(20_000, 1)},
        r"op ResourceScatterUpdate would make 6,8\d\d,\d+,\d+ bytes",
    ),
    "a list that reaches to an index": (
        f"%0 : float32[1]\n%1 : int32[1]\n%2 : int32[]\n%3 : variant[] = TensorListScatter{LIST}(%0, %1, %2) @0\n"
        "%4 : int32[] = TensorListLength(%3) @0",
        {0: ones(1), 1: np.array([2**30], "i4"), 2: np.int32(-1)},
        "a list of 1073741825 tensors is longer than 16777216",
    ),
    "lists of some length each": (
        "%0 : int32[]\n%1 : int32[]\n"
        + "\n".join(f"%{i} : variant[] = TensorListReserve{LIST}(%0, %1) @0" for i in range(2, 7))
        + "\n%7 : variant[] = OptionalFromValue{Toutput_types=(variant, variant, variant, variant, variant)}"
        "(%2, %3, %4, %5, %6) @0\n%8 : bool[] = OptionalHasValue(%7) @0",
        {0: np.int32(-1), 1: np.int32(2**20)},
        "op TensorListReserve would make 67,108,928 bytes, .* with the live values, more than",
    ),
    "an index of a list that is no scalar": (
        f"%0 : int32[]\n%1 : int32[]\n%2 : int32[2]\n%3 : variant[] = TensorListReserve{LIST}(%0, %1) @0\n"
        "%4 : float32[2] = TensorListGetItem{element_dtype=float32}(%3, %2, %0) @0",
        {0: np.int32(-1), 1: np.int32(3), 2: np.zeros(2, "i4")},
        "would get numbers of rank 1, where it takes rank 0",
    ),
    "values that double": (
        "%0 : float32[1024]\n%1 : int32[]\n"
        + "\n".join(
            f"%{i} : float32[{1024 << (i - 1)}] = ConcatV2{{N=2, T=float32, Tidx=int32}}(%{p}, %{p}, %1) @0"
            for i, p in [(2, 0), *((i, i - 1) for i in range(3, 17))]
        )
        + "\n%17 : float32[33554432] = Neg{T=float32}(%16) @0\n%18 : float32[33554432] = Mul{T=float32}(%16, %17) @0",
        {0: ones(1024), 1: np.int32(0)},
        r"with the live values, more than [\d,]+",
    ),
    "text that doubles": (
        "%0 : string[]\n"
        + "\n".join(f"%{i} : string[] = StringJoin{{N=2}}(%{i - 1}, %{i - 1}) @0" for i in range(1, 40)),
        {0: "abcdefgh"},
        "op StringJoin would make .* bytes",
    ),
    "a text many times": (
        "%0 : string[]\n%1 : int32[1]\n%2 : string[2000000] = Fill{T=string}(%1, %0) @0",
        {0: "x" * 1000, 1: np.array([2_000_000], "i4")},
        "op Fill would make 2,048,000,000 bytes",
    ),
    "as many batch dimensions as nothing has": (
        "%0 : float32[3]\n%1 : int32[2]\n%2 : int32[]\n%3 : float32[2] = GatherV2{Taxis=int32, Tindices=int32, "
        "Tparams=float32, batch_dims=-2147483648}(%0, %1, %2) @0",
        {0: ones(3), 1: np.zeros(2, "i4"), 2: np.int32(0)},
        "would get -2147483648 batch dimensions of indices of rank 1",
    ),
    "a gradient that is smaller than what a pool gives": (
        "%0 : int32[4]\n%1 : float32[1,1,1,9]\n%2 : float32[1,64,64,1] = AvgPoolGrad{T=float32, ksize=(1, 2, 2, 1), "
        "padding=b'SAME', strides=(1, 2, 2, 1)}(%0, %1) @0",
        {0: np.array([1, 64, 64, 1], "i4"), 1: ones(1, 1, 1, 9)},
        r"would get a gradient of shape \[1, 1, 1, 9\] where AvgPool has \(1, 32, 32, 1\)",
    ),
    "a gradient that is smaller than what a pool in three dimensions gives": (
        "%0 : int32[5]\n%1 : float32[1,1,1,1,9]\n%2 : float32[1,8,64,64,1] = AvgPool3DGrad{T=float32, "
        "data_format=b'NDHWC', ksize=(1, 2, 2, 2, 1), padding=b'SAME', strides=(1, 2, 2, 2, 1)}(%0, %1) @0",
        {0: np.array([1, 8, 64, 64, 1], "i4"), 1: ones(1, 1, 1, 1, 9)},
        r"would get a gradient of shape \[1, 1, 1, 1, 9\] where AvgPool3D has \(1, 4, 32, 32, 1\)",
    ),
    "places that are not in the image": (
        "%0 : float32[1,2,2,1]\n%1 : float32[1,1,1,1]\n%2 : int64[1,1,1,1]\n%3 : float32[1,2,2,1] = "
        "MaxPoolGradWithArgmax{T=float32, Targmax=int64, ksize=(1, 2, 2, 1), padding=b'SAME', strides=(1, 2, 2, 1)}"
        "(%0, %1, %2) @0",
        {0: ones(1, 2, 2, 1), 1: ones(1, 1, 1, 1), 2: np.full((1, 1, 1, 1), 4)},
        "would get places that are not in the image",
    ),
    "boxes that are no numbers": (
        "%0 : float32[1,6,6,1]\n%1 : float32[1,4]\n%2 : int32[1]\n%3 : int32[2]\n"
        "%4 : float32[1,3,3,1] = CropAndResize{T=float32}(%0, %1, %2, %3) @0",
        {0: ones(1, 6, 6, 1), 1: np.full((1, 4), np.nan, F4), 2: np.zeros(1, "i4"), 3: np.full(2, 3, "i4")},
        "would get boxes that are not finite, or far away",
    ),
    "a hue without end": (
        "%0 : float32[2,2,3]\n%1 : float32[]\n%2 : float32[2,2,3] = AdjustHue{T=float32}(%0, %1) @0",
        {0: ones(2, 2, 3), 1: F4(np.inf)},
        "would get a hue that is not within 1000",
    ),
    "nothing, in four billion rows": (
        "%0 : float32[2,6,0,3]\n%1 : int32[2]\n%2 : int32[2,2]\n%3 : float32[2,6,0,3] = SpaceToBatchND{T=float32}"
        "(%0, %1, %2) @0",
        {0: ones(2, 6, 0, 3), 1: np.array([1, 2**31 - 1], "i4"), 2: np.zeros((2, 2), "i4")},
        r"would make float32\[4294967294,6,0,3\]",
    ),
    "an item before a list": (
        "%0 : int32[]\n%1 : int32[]\n%2 : int32[]\n%3 : float32[2]\n"
        f"%4 : variant[] = TensorListReserve{LIST}(%0, %1) @0\n"
        "%5 : variant[] = TensorListSetItem{element_dtype=float32, resize_if_index_out_of_bounds=True}(%4, %2, %3) @0\n"
        "%6 : int32[] = TensorListLength(%5) @0",
        {0: np.int32(-1), 1: np.int32(3), 2: np.int32(-7), 3: ones(2)},
        "op TensorListSetItem would get an index below 0",
    ),
    "rows that are out of order": (
        "%0 : int64[2]\n%1 : float32[3]\n%2 : float32[]\n%3 : int64[]\n%4 : int64[3]\n%5 : float32[3,2] = "
        "RaggedTensorToTensor{T=float32, Tindex=int64, Tshape=int64, num_row_partition_tensors=2, "
        "row_partition_types=(b'FIRST_DIM_SIZE', b'VALUE_ROWIDS')}(%0, %1, %2, %3, %4) @0",
        {0: np.array([3, 2]), 1: ones(3), 2: F4(0), 3: np.int64(3), 4: np.array([2, 0, 10**9])},
        "would get rows that are out of order",
    ),
    "labels of classes that there are not": (
        "%0 : float32[5,1,4]\n%1 : int64[1,2]\n%2 : int32[1]\n%3 : int32[1]\n%4 : float32[1], %5 : float32[5,1,4] = "
        "CTCLoss{T=float32}(%0, %1, %2, %3) @0",
        {0: ones(5, 1, 4), 1: np.zeros((1, 2), "i8"), 2: np.array([65536], "i4"), 3: np.array([5], "i4")},
        "would get labels of classes that there are not",
    ),
    "bins without end": (
        "%0 : float32[2]\n%1 : float32[2]\n%2 : int32[]\n%3 : int32[8] = HistogramFixedWidth{T=float32}(%0, %1, %2) @0",
        {0: ones(2), 1: np.array([-np.inf, -1], F4), 2: np.int32(8)},
        "would get a range that is not finite, or empty",
    ),
    "draws at no rate": (
        "%0 : int32[1]\n%1 : int32[2]\n%2 : float32[1]\n%3 : float32[1] = "
        "StatelessRandomPoisson{Rtype=float32, T=int32, Tseed=int32, dtype=float32}(%0, %1, %2) @0",
        {0: np.ones(1, "i4"), 1: np.ones(2, "i4"), 2: np.array([np.nan], F4)},
        "would get a rate that is not at most",
    ),
}


@pytest.mark.parametrize("name", REFUSED_WHEN_RUN)
def test_refused_when_it_runs(name, tmp_path):
    program, values, text = REFUSED_WHEN_RUN[name]
    last = program.count(" : ") - 1
    loaded = rt.load(forge(tmp_path / "a.tape", program, values, {"y": last}))
    before = peak()
    with pytest.raises(RetrotapeError, match=text):
        loaded.value("y")
    assert peak() - before < 2**30


def test_a_result_that_lies_in_the_file_is_checked_before_a_gradient(tmp_path):
    """The op does not run, but its gradient function would, with shapes that do not fit together."""
    program = "%0 : float32[2,3]\n%1 : float32[3,4]\n%2 : float32[5,5] = MatMul{T=float32}(%0, %1) @0"
    values = {0: ones(2, 3), 1: ones(3, 4), 2: ones(5, 5)}
    loaded = rt.load(forge(tmp_path / "a.tape", program, values, {"x": 0, "y": 2}))
    assert loaded.value("y").shape == (5, 5)
    with pytest.raises(
        UnsafeTapeError, match=r"op MatMul would make float32\[2,4\] where the tape says float32\[5,5\]"
    ):
        loaded.gradient("y", "x")


def test_what_an_attribute_allows_is_checked_before_a_gradient(tmp_path):
    program = "%0 : float32[]\n%1 : float32[1]\n%2 : float32[] = FakeQuantWithMinMaxVarsPerChannel(%0, %1, %1) @0"
    values = {0: F4(1), 1: ones(1), 2: F4(1)}
    loaded = rt.load(forge(tmp_path / "a.tape", program, values, {"x": 0, "y": 2}))
    with pytest.raises(UnsafeTapeError, match="which has no channels"):
        loaded.gradient("y", "x")


def test_a_result_that_a_gradient_relies_on_is_computed_again(tmp_path):
    """Whatever the file says: the places of the largest elements say where the gradient goes."""
    program = (
        "%0 : float32[1,2,2,1]\n%1 : float32[1,1,1,1], %2 : int64[1,1,1,1] = MaxPoolWithArgmax{T=float32, "
        "Targmax=int64, ksize=(1, 2, 2, 1), padding=b'SAME', strides=(1, 2, 2, 1)}(%0) @0"
    )
    image = np.arange(4, dtype=F4).reshape(1, 2, 2, 1)
    values = {0: image, 1: ones(1, 1, 1, 1), 2: np.full((1, 1, 1, 1), 2**40)}
    loaded = rt.load(forge(tmp_path / "a.tape", program, values, {"x": 0, "y": 1}))
    np.testing.assert_array_equal(loaded.value("y").numpy().reshape(-1), [3.0])
    np.testing.assert_array_equal(loaded.gradient("y", "x").numpy().reshape(-1), [0.0, 0.0, 0.0, 1.0])


def custom_tape(tmp_path: Any, lines: str, results: int = 1) -> Any:
    """Return a loaded tape of a custom gradient behind a square; its backward function ends with other lines."""
    x = tf.constant([0.3, -1.2, 2.0])
    with rt.Tape() as tape:
        y = bent(tf.square(x))
    tape.save(tmp_path / "honest.tape", {"x": x, "y": y})
    parts = take_apart(tmp_path / "honest.tape")
    functions = parts.functions()
    function = functions[parts.meta["backward_functions"][0]["function"]]
    (grad,), fresh = function["cotangents"], function["program"].count(" : ")
    for number in range(9):
        lines = lines.replace(f"%{number}", f"%new{fresh + number}")
    lines = lines.replace("%grad", f"%{grad}").replace("%new", "%")
    function["program"] = function["program"].replace("@0 = ", f"{lines}\n@0 = ")
    count = lines.count(" : ")
    function["results"][0] = list(range(fresh + count - results, fresh + count))
    return rt.load(parts.with_functions(functions).write(tmp_path / "a.tape"))


def test_a_custom_gradient_of_another_shape(tmp_path):
    loaded = custom_tape(tmp_path, "%0 : int32[] = Rank{T=float32}(%grad) @0")
    with pytest.raises(
        UnsafeTapeError, match=r"a gradient at op Square is int32\(\), and the value that it belongs to is float32\[3\]"
    ):
        loaded.gradient("y", "x")


def test_rows_of_a_whole_that_is_too_large(tmp_path):
    """The shape of the whole comes from the file, and making it dense would fill the memory."""
    squares = [f"%{i + 1} : int32[1] = Mul{{T=int32}}(%{i}, %{i}) @0" for i in range(4)]
    lines = [
        "%0 : int32[1] = Shape{T=float32}(%grad) @0",
        *squares,
        "%5 : float32[3] = Neg{T=float32}(%grad) @0",
        "%6 : int32[3] = Cast{DstT=int32, SrcT=float32}(%grad) @0",
        "%7 : int32[1] = Mul{T=int32}(%4, %1) @0",
    ]
    with pytest.raises(
        UnsafeTapeError, match=r"a gradient at op custom_gradient is rows of \[387420489\], and the value"
    ):
        custom_tape(tmp_path, "\n".join(lines), results=3).gradient("y", "x")


def test_an_op_of_which_nobody_can_tell_how_much_it_makes(tmp_path, monkeypatch):
    monkeypatch.delitem(_bounds.BOUNDS, "Where")
    program = "%0 : bool[3]\n%1 : int64[2,1] = Where{T=bool}(%0) @0"
    path = forge(tmp_path / "a.tape", program, {0: np.array([True, False, True])})
    with pytest.raises(
        UnsafeTapeError,
        match=r"the output size of op Where is not known before it runs, so it does not run in this process\. "
        r".*`rt\.load\(path, isolate=True\)`; or, if you trust it: `rt\.load\(path, allow_ops=\{'Where'\}\)`",
    ):
        rt.load(path).value("y")
    assert rt.load(path, allow_ops={"Where"}).value("y").numpy().tolist() == [[0], [2]]
    from retrotape.tape.loaded import load_here

    assert load_here(path, isolated=True).value("y").numpy().tolist() == [[0], [2]]


def test_what_is_dropped_is_not_counted(tmp_path):
    """A long program may make more than the limit as long as it holds less at a time."""
    lines = ["%0 : float32[1000]"] + [f"%{i} : float32[1000] = Neg{{T=float32}}(%{i - 1}) @0" for i in range(1, 50)]
    path = forge(tmp_path / "a.tape", "\n".join(lines), {0: ones(1000)}, {"y": 49})
    loaded = rt.load(path, limits=store.Limits(total_bytes=250_000))
    np.testing.assert_array_equal(loaded.value("y"), -ones(1000))
    for _ in range(3):
        rt.load(path, limits=store.Limits(total_bytes=250_000)).value("y")
    with pytest.raises(
        UnsafeTapeError, match=r"op Neg would make 4,000 bytes, 12,000 with the live values, more than 8,000"
    ):
        rt.load(path, limits=store.Limits(total_bytes=8_000)).value("y")


def test_an_honest_tape_of_everything_stays_honest(tmp_path):
    """What depends on data, lists and text is known well enough to run."""
    x, words = tf.constant([3.0, -1.0, 2.0, 3.0]), tf.constant(["a b", "c"])
    with rt.Tape() as tape:
        kept = tf.boolean_mask(x, x > 0.0)
        found, at = tf.unique(x)
        pairs = tf.dynamic_partition(x, [0, 1, 0, 1], 2)
        array = tf.TensorArray(tf.float32, 3, dynamic_size=True, infer_shape=False)
        for number in range(5):
            array = array.write(number, x[:2] * float(number))
        text = tf.strings.join([words, tf.strings.upper(words)], "-")
        sizes = tf.cast(tf.strings.length(text), tf.float32)
        total = (
            tf.reduce_sum(kept) + tf.reduce_sum(tf.gather(tf.stop_gradient(found), at)) + tf.reduce_sum(pairs[0] * 2.0)
        )
        y = total + tf.reduce_sum(array.stack()) * tf.reduce_sum(sizes)
    tape.save(tmp_path / "a.tape", {"x": x, "y": y, "text": text})
    loaded = rt.load(tmp_path / "a.tape")
    np.testing.assert_allclose(loaded.value("y"), y)
    assert loaded.value("text").numpy().tolist() == [b"a b-A B", b"c-C"]
    np.testing.assert_allclose(loaded.gradient("y", "x"), tape.gradient(y, x))
