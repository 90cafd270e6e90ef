"""Messages between the two processes are data, and one that lies is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tensorflow as tf

from retrotape.files.isolated import _wire
from retrotape.files.isolated._references import HeldObjects, RemoteObjects


def there_and_back(message, **how):
    stream = io.BytesIO()
    _wire.send(stream, message)
    stream.seek(0)
    return _wire.receive(stream, 2**20, **how)


def test_messages_are_data():
    message = {"a": [1, None, "text", True, 2.5], "b": {"c": tf.constant([[1, 2]], tf.int64)}, "d": tf.constant(3.0)}
    found = there_and_back({**message, "e": b"\0\xff"})
    assert found["a"] == message["a"]
    np.testing.assert_array_equal(found["b"]["c"], [[1, 2]])
    assert found["d"].shape == ()
    assert found["e"] == b"\0\xff"


FLOATS = b'{"tensor":"float32","shape":[2],"unused":12}'


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ((2**40).to_bytes(8, "little"), ValueError),
        (b"\x02", EOFError),
        ((44).to_bytes(8, "little") + FLOATS + (2**40).to_bytes(8, "little"), ValueError),
        ((44).to_bytes(8, "little") + FLOATS + (4).to_bytes(8, "little") + b"abcd", ValueError),
        ((29).to_bytes(8, "little") + b'{"object":"frame","fields":1}', ValueError),
    ],
)
def test_messages_that_lie_are_refused(raw, error, tmp_path):
    (tmp_path / "raw").write_bytes(raw)
    with open(tmp_path / "raw", "rb") as source, pytest.raises(error):
        _wire.receive(source, 2**20)


def written(header: bytes, *parts: bytes) -> io.BytesIO:
    return io.BytesIO(b"".join(len(one).to_bytes(8, "little") + one for one in (header, *parts)))


@pytest.mark.parametrize("item", [b"[]", b"{}", b"0", b'""'])
def test_a_header_has_so_many_items(item, monkeypatch):
    """A few bytes of text become a hundred of objects: it is refused before it is parsed."""
    header = b"[" + b",".join([item] * 4_200_000) + b"]"
    monkeypatch.setattr(_wire.json, "loads", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(ValueError, match=r"a message begins with \d+ items"):
        _wire.receive(written(header), 2**40)


def test_what_is_read_too_late_is_not_built():
    late = iter([False, False, True])
    with pytest.raises(EOFError):
        _wire.receive(written(b"[[],[],[]]"), 2**20, is_over=lambda: next(late))


def test_a_boolean_is_true_or_false():
    header = b'{"tensor":"bool","shape":[3]}'
    assert _wire.receive(written(header, b"\0\1\1"), 2**20).numpy().tolist() == [False, True, True]
    for byte in (b"\2", b"\x07", b"\xff"):
        with pytest.raises(ValueError, match=r"a tensor bool\[3\] has other bytes than 0 and 1"):
            _wire.receive(written(header, b"\0\1" + byte), 2**20)


def test_a_message_has_so_many_bytes_in_all():
    with pytest.raises(ValueError, match="comes with 400000 bytes"):
        there_and_back([np.zeros(100_000, np.float32)] * 3)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (tf.Variable(1.0), "Got ResourceVariable, which cannot be sent to another process: give names"),
        (object(), "Got object, which cannot be sent"),
        (
            tf.raw_ops.EmptyTensorList(
                element_shape=tf.constant([], tf.int32), max_num_elements=1, element_dtype=tf.float32
            ),
            "a tensor variant",
        ),
    ],
)
def test_what_cannot_be_sent(what, text):
    with pytest.raises(_wire.UnsendableError, match=text):
        there_and_back([1, what])


def test_objects_stay_as_long_as_the_other_side_has_them():
    held, remote = HeldObjects(lambda _: None), RemoteObjects()
    tensor = tf.constant(2.0)

    def sent():
        kind, (plain, number) = held.pack(tensor)
        return remote.unpack(None, kind, [tf.identity(plain.tensor), number]), number

    first, number = sent()
    again, same = sent()
    assert again is first
    assert same == number
    assert remote.pack(first) == ("reference", number)
    assert remote.pack(tf.constant(2.0)) is None
    assert remote.unused() == []
    assert held.unpack("reference", number) is tensor
    del first, again
    later, _ = sent()  # before the other side knows that the first one is gone
    ((dropped, times),) = remote.unused()
    held.drop(dropped, times)
    assert held[number] is tensor
    assert remote.pack(later) == ("reference", number)
    del later
    held.drop(*remote.unused()[0])
    with pytest.raises(KeyError):
        held[number]


def test_only_results_have_objects():
    with pytest.raises(ValueError, match="a message has program, which only results have"):
        HeldObjects(lambda _: None).unpack("program", [b"x"])
