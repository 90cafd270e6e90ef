"""Which tensors share a buffer, and that none is read unseen while buffers are hidden."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import numpy as np
import pytest
import tensorflow as tf

from retrotape.tf import buffers
from retrotape.tf.buffers import arrays_by_method, memory_of, share_buffer
from retrotape.tf.core import EagerTensorBase

PAIR = tf.constant([1.0, 2.0])


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = EagerTensorBase.__array__
    yield
    assert EagerTensorBase.__array__ is before
    assert memoryview(PAIR).tolist() == [1.0, 2.0]


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_a_hidden_tensor_is_read_by_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    assert buffers.is_supported()
    seen = []
    read = EagerTensorBase._numpy
    monkeypatch.setattr(EagerTensorBase, "_numpy", lambda self: seen.append(self) or read(self))
    target = np.zeros([2, 2], np.float32)
    reads: list[Callable[[], object]] = [
        lambda: np.asarray(PAIR),
        lambda: np.array(PAIR, np.float64),
        lambda: np.add(target, PAIR),
        lambda: np.sum(PAIR),
        lambda: target.__setitem__(0, PAIR),
        lambda: np.copyto(target[1], PAIR),
        lambda: np.stack([PAIR, PAIR]),
        lambda: np.float64(PAIR),
    ]
    for number, one in enumerate(reads):
        seen.clear()
        with arrays_by_method():
            one()
        assert seen, f"read {number} was not seen"
        assert all(tensor is PAIR for tensor in seen)
    np.testing.assert_array_equal(target, [[1.0, 2.0], [1.0, 2.0]])
    with arrays_by_method(), pytest.raises(TypeError):
        memoryview(PAIR)


DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint16", "int32", "int64", "bool", "complex64"]


@pytest.mark.parametrize("shape", [[], [3], [2, 2]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sharing_is_known_of_hidden_buffers_too(dtype: str, shape: list[int]) -> None:
    variable = tf.Variable(tf.cast(tf.ones(shape), dtype))
    for block in (arrays_by_method, arrays_by_method.__mro__[1]):
        with block():
            left, right = variable.read_value(), variable.read_value()
            assert share_buffer(left, right)
            assert not share_buffer(left, tf.cast(tf.ones(shape), dtype))
            variable.assign(left)
            assert memory_of(left).tobytes() == left.numpy().tobytes()
        variable.assign(tf.cast(tf.zeros(shape), dtype))
        with block():
            assert not share_buffer(left, variable.read_value())


@pytest.mark.parametrize("make", [lambda: tf.constant("text"), lambda: tf.bitcast(tf.constant(1, tf.int8), tf.qint8)])
def test_what_dlpack_lacks_is_not_known_to_be_shared_while_hidden(make: Callable[[], tf.Tensor]) -> None:
    value = make()
    with arrays_by_method():
        assert not share_buffer(value, tf.identity(value))


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("shape", [[], [2]])
def test_one_thread_does_not_show_what_another_hides(shape: list[int]) -> None:
    variable, done = tf.Variable(tf.ones(shape)), Event()

    def compare() -> int:
        count = 0
        while not done.is_set():
            assert share_buffer(variable.read_value(), variable.read_value())
            memory_of(PAIR)
            count += 1
        return count

    def look() -> int:
        shown = 0
        with arrays_by_method():
            started.wait()
            for _ in range(30_000):
                try:
                    memoryview(PAIR)
                except TypeError:
                    continue
                shown += 1
        done.set()
        return shown

    started = Barrier(1)
    with ThreadPoolExecutor(3) as pool:
        comparing = [pool.submit(compare) for _ in range(2)]
        looking = pool.submit(look)
    assert looking.result() == 0
    assert all(one.result() for one in comparing)


# NumPy says so where a block ends on another thread after it found no buffer, and before it calls the method.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("times", [2_000, pytest.param(125_000, marks=pytest.mark.slow)])
def test_hiding_on_eight_threads(times: int) -> None:
    tensors = [tf.fill([size], float(size)) for size in range(1, 9)]
    ready = Barrier(8)

    def run(tensor: tf.Tensor) -> list[float]:
        size, found = len(tensor), []
        ready.wait()
        for _ in range(times):
            with arrays_by_method():
                found.append(np.asarray(tensor).sum())
            found.append(np.array(tensor).sum())
            if found != [size**2] * 2:
                break
            found.clear()
        return found

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, tensors)) == [[]] * 8


def test_nothing_is_written_where_python_finds_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert buffers.is_supported()
    monkeypatch.setattr(buffers, "_supported", None)
    monkeypatch.setattr(buffers, "_type_slot", lambda kind, slot: 16)
    monkeypatch.setattr(buffers, "_try", lambda: pytest.fail("it was tried"))
    assert not buffers.is_supported()
    with arrays_by_method():
        assert memoryview(PAIR).tolist() == [1.0, 2.0]
