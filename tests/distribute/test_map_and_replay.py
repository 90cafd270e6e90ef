"""`rt.farm.map` and `rt.farm.replay`: results by other routes, functions and inputs that are refused."""

from __future__ import annotations

import functools
import pickle
import threading
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from distribute import dying
from distribute.conftest import CHUNK
from distribute.making import dense, record
from retrotape.distribute import _inputs, _question, _worker, farm
from retrotape.distribute._paths import stamp
from retrotape.errors import FarmError, NoTapesError, ShapeMismatchError


class Pair(NamedTuple):
    left: object
    right: object


def test_results_come_in_order_as_they_were(tapes):
    def question(tape: rt.LoadedTape) -> dict:
        loss = tape["loss"]
        return {
            "loss": loss,
            "both": [tape.gradient("loss", "w"), (1, 2.5, 1j, True, None, "text", b"bytes")],
            "pair": Pair(np.float64(2.0), np.arange(3)),
            "grads": tape.backward("loss", ["b", "hidden"]),
            7: tape["w"],
        }

    found = rt.farm.map(tapes, question, chunk=CHUNK)
    assert len(found) == 18
    for path, result in zip(tapes, found, strict=True):
        tape = rt.load(path)
        assert result["loss"] == tape["loss"].numpy()
        assert result["loss"].dtype == np.float32
        np.testing.assert_array_equal(result["both"][0], tape.gradient("loss", "w"))
        assert result["both"][1] == (1, 2.5, 1j, True, None, "text", b"bytes")
        assert result["pair"][0] == 2.0
        assert result["pair"][1].tolist() == [0, 1, 2]
        assert result["grads"].keys() == ["b", "hidden"]
        np.testing.assert_array_equal(result["grads"]["hidden"], tape.gradient("loss", "hidden"))
        np.testing.assert_array_equal(result[7], tape["w"].numpy())


def test_what_cannot_be_stored_is_the_failure_of_that_tape(tapes):
    for wrong, told in ((object(), "Got object"), (np.array(["a"]), "Got an array of dtype <U1")):
        with pytest.raises(FarmError) as raised:
            rt.farm.map(tapes[:1], lambda tape, wrong=wrong: {"a": [wrong]})
        assert (
            f"failed: TypeError: question= returned something that cannot be stored. {told}; expected tensors, arrays, "
            "numbers, text, `Gradients`, and lists, tuples and dictionaries of them."
        ) in str(raised.value)


def test_an_error_of_the_question_shows_its_line(tapes):
    def question(tape: rt.LoadedTape) -> float:
        return 1 / 0

    with pytest.raises(FarmError, match=r"0000.tape failed: ZeroDivisionError: division by zero") as raised:
        rt.farm.map(tapes, question)
    assert "return 1 / 0" in str(raised.value.__cause__)


def test_a_question_that_is_no_function(tapes):
    for call in (lambda: rt.farm.map(tapes, "loss"), lambda: rt.farm.replay(tapes[0], [], "loss")):
        with pytest.raises(TypeError) as raised:
            call()
        assert str(raised.value) == (
            'question= takes a function of a tape, got str: `lambda tape: tape.gradient("loss", "x")`.'
        )


# ------------------------------------------------------------------ functions that travel


@pytest.mark.parametrize("has_cloudpickle", [False, True])
def test_a_function_that_cannot_be_pickled_says_so(tapes, monkeypatch, has_cloudpickle):
    if has_cloudpickle:
        pytest.importorskip("cloudpickle", reason="comes with Dask")
    else:
        monkeypatch.setattr(_question, "_cloudpickle", lambda: None)
    lock = threading.Lock()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, pytest.raises(TypeError) as raised:
        rt.farm.map(tapes, lambda tape: lock, executor=pool)
    assert str(raised.value).startswith("question= cannot be sent to another process: ")
    remedy = "Define it with `def` at the top level of a module, or `pip install cloudpickle`"
    if has_cloudpickle:
        remedy = "Let it use nothing but its argument and what can be pickled"
    assert str(raised.value).endswith(f". {remedy}; in this process, `executor=None`, any function will do.")


def test_a_function_that_was_damaged_on_the_way(tmp_path):
    path, checksum = _question.save(dying.norm_of_x, str(tmp_path))
    assert _question.load(path, checksum) is dying.norm_of_x
    _question.load.cache_clear()
    Path(path).write_bytes(b"other")
    with pytest.raises(FarmError, match=r"\.pkl' was changed or damaged\. Call again: it is written anew\."):
        _question.load(path, checksum)


def test_a_function_that_the_worker_does_not_have(tmp_path):
    data = b"cno_such_module_anywhere\nquestion\n."
    path = tmp_path / "question.pkl"
    path.write_bytes(data)
    with pytest.raises(FarmError, match=r"cannot be found in the worker: No module named .* `pip install cloudpickle`"):
        _question.load(str(path), _question.hashlib.sha256(data).hexdigest())


def test_another_function_does_not_use_what_is_there(tapes, tmp_path, monkeypatch):
    def scaled(factor: float):
        return lambda tape: factor * tape["loss"]

    rt.farm.map(tapes[:4], scaled(1.0), work=tmp_path)
    paths = dying.loaded(monkeypatch)
    same = rt.farm.map(tapes[:4], scaled(1.0), work=tmp_path)
    assert paths == []
    other = rt.farm.map(tapes[:4], scaled(2.0), work=tmp_path)
    assert len(paths) == 4
    np.testing.assert_allclose(list(other), [2 * value for value in same])
    rt.farm.map(tapes[:4], lambda tape: 2.0 + tape["loss"], work=tmp_path)
    assert len(paths) == 8
    part = functools.partial(dying.norm_of_x)
    rt.farm.map(tapes[:4], part, work=tmp_path)
    assert list(rt.farm.map(tapes[:4], part, work=tmp_path)) == [dying.norm_of_x(rt.load(path)) for path in tapes[:4]]
    assert len(paths) >= 12


SCALE = 1.0


def helper(tape: rt.LoadedTape) -> tf.Tensor:
    return SCALE * tape["loss"]


def test_a_global_that_has_changed_is_noticed_also_in_a_helper(tapes, tmp_path, monkeypatch):
    def question(tape: rt.LoadedTape) -> tf.Tensor:
        return helper(tape)

    first = rt.farm.map(tapes[:2], question, work=tmp_path)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert rt.farm.map(tapes[:2], question, work=tmp_path)[0] == np.float32(3.0) * first[0]


# ------------------------------------------------------------------ one tape, many inputs


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A regression on one example."""
    rng = np.random.default_rng(0)
    w, b = tf.Variable(rng.normal(size=(3, 2)), name="w"), tf.Variable(rng.normal(size=2), name="b")
    x, y = tf.constant(rng.normal(size=(1, 3))), tf.constant(rng.normal(size=(1, 2)))
    with rt.Tape() as tape:
        loss = tf.reduce_mean((tf.tanh(x @ w + b) - y) ** 2)
    path = str(tmp_path_factory.mktemp("model") / "model.tape")
    tape.save(path, x=x, y=y, loss=loss)
    return path


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(11, 1, 3)), rng.normal(size=(11, 1, 2))


def per_example(model: str, data) -> list[list[np.ndarray]]:
    """Return the gradients of each example by the stock tape."""
    w, b = (tf.Variable(rt.load(model)[name].numpy()) for name in ("w", "b"))
    found = []
    for x, y in zip(*data, strict=True):
        with tf.GradientTape() as stock:
            loss = tf.reduce_mean((tf.tanh(x @ w + b) - y) ** 2)
        found.append([grad.numpy() for grad in stock.gradient(loss, [w, b])])
    return found


def gradient(tape: rt.LoadedTape) -> rt.Gradients:
    return tape.backward("loss")


@pytest.mark.parametrize("kind", ["list", "generator", "dataset", "threads", "loaded"])
def test_per_example_gradients_are_those_of_the_stock_tape(model, data, kind):
    elements = [{"x": x, "y": y} for x, y in zip(*data, strict=True)]
    dataset = {
        "generator": (element for element in elements),
        "dataset": tf.data.Dataset.from_tensor_slices({"x": data[0], "y": data[1]}),
    }.get(kind, elements)
    tape = rt.load(model) if kind == "loaded" else model
    with ThreadPoolExecutor(2) as threads:
        executor = threads if kind == "threads" else None
        found = rt.farm.replay(tape, dataset, gradient, chunk=CHUNK, executor=executor)
    assert found.names == [f"element {number}" for number in range(11)]
    for grads, (w, b) in zip(found, per_example(model, data), strict=True):
        np.testing.assert_allclose(grads["w"], w, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(grads["b"], b, rtol=1e-12, atol=1e-15)


def test_other_processes_give_the_same_also_for_a_loaded_tape(model, data, tmp_path):
    elements = [{"x": x, "y": y} for x, y in zip(*data, strict=True)]
    here = rt.farm.replay(model, elements, gradient, chunk=CHUNK)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for tape, work in ((model, None), (rt.load(model), tmp_path)):
            there = rt.farm.replay(tape, elements, dying.flat_gradient, chunk=CHUNK, executor=pool, work=work)
            for grads, flat in zip(here, there, strict=True):
                np.testing.assert_array_equal(grads.flatten(), flat)


def test_a_replay_is_continued_and_other_inputs_are_not_taken_for_these(model, data, tmp_path, monkeypatch):
    asked = []

    def question(tape: rt.LoadedTape) -> tf.Tensor:
        asked.append(1)
        return tape.gradient("loss", "b")

    monkeypatch.setattr(farm, "fingerprint", lambda function: "the same")  # `asked` changes
    elements = [{"x": x, "y": y} for x, y in zip(*data, strict=True)]
    first = list(rt.farm.replay(model, elements, question, chunk=CHUNK, work=tmp_path))
    assert len(asked) == 11
    again = list(rt.farm.replay(model, elements, question, chunk=CHUNK, work=tmp_path))
    assert len(asked) == 11
    np.testing.assert_array_equal(first, again)
    elements[5] = {"x": data[0][0], "y": data[1][0]}
    changed = list(rt.farm.replay(model, elements, question, chunk=CHUNK, work=tmp_path))
    assert len(asked) == 11 + CHUNK
    np.testing.assert_array_equal(changed[5], first[0])


def test_elements_that_fail(model, data):
    elements = [{"x": data[0][0]}, {"x": np.zeros((2, 3))}, {"z": 1.0}, {"x": data[0][1]}]
    with pytest.raises(
        FarmError, match=r"element 1 failed: ShapeMismatchError: Got a new value of shape \(2, 3\)"
    ) as raised:
        rt.farm.replay(model, elements, gradient)
    assert str(raised.value).endswith("To leave out elements that fail, and have them listed in `failed`: "
                                      '`on_error="continue"`.')  # fmt: skip
    found = rt.farm.replay(model, elements, gradient, on_error="continue")
    assert list(found.failed) == ["element 1", "element 2"]
    assert found.failed["element 2"].startswith("UnknownNameError: This tape has nothing named 'z'")
    np.testing.assert_array_equal(dense(found[0]["b"]), dense(rt.load(model).replay(elements[0]).gradient("loss", "b")))


def test_trust_is_handed_on(tmp_path):
    x = tf.constant(1.0)
    with rt.Tape() as tape:
        y = x * 2.0 if x > 0 else x * 3.0
    tape.save(tmp_path / "branch.tape", x=x, y=y)
    path, minus = tmp_path / "branch.tape", [{"x": -1.0}]
    with pytest.raises(FarmError, match="element 0 failed: ReplayError: "):
        rt.farm.replay(path, minus, lambda tape: tape.gradient("y", "x"))
    assert rt.farm.replay(path, minus, lambda tape: tape.gradient("y", "x"), trust=True)[0] == 2.0


def test_inputs_that_are_refused(model):
    example = '`[{"x": x0}, {"x": x1}]`'
    with pytest.raises(TypeError) as raised:
        rt.farm.replay(model, [{"x": 1.0}, (1.0, 2.0)], gradient)
    assert str(raised.value) == (
        "Element 1 of the dataset is a tuple; expected a mapping from names on the tape to values: "
        f'{example}, or `dataset.map(lambda x, y: {{"x": x, "y": y}})`.'
    )
    for wrong in (3, {"x": [1.0]}):
        with pytest.raises(TypeError) as raised:
            rt.farm.replay(model, wrong, gradient)
        assert str(raised.value) == (
            f"Got {type(wrong).__name__} as dataset; expected many mappings from names on the tape to values: "
            f"{example}, or a `tf.data.Dataset` of dictionaries."
        )
    with pytest.raises(NoTapesError, match=r"The dataset has no elements\. Give at least one mapping"):
        rt.farm.replay(model, [], gradient)


def test_tapes_that_are_refused(model, tmp_path):
    tape, _ = record(0)
    with pytest.raises(TypeError) as raised:
        rt.farm.replay(tape, [{"x": 1.0}], gradient)
    assert str(raised.value) == (
        "Got Tape as tape; expected a path, or a loaded tape. Save it with names for its inputs: "
        "`tape.save(path, x=x, loss=loss)`, and give the path."
    )
    with pytest.raises(NoTapesError, match=r"There is no '.*none.tape'\. Give what `tape.save` wrote\."):
        rt.farm.replay(tmp_path / "none.tape", [{"x": 1.0}], gradient)
    with pytest.raises(ValueError, match=r"load= applies to a tape that is loaded from a path"):
        rt.farm.replay(rt.load(model), [{"x": 1.0}], gradient, load={"mmap": True})


def test_a_worker_keeps_the_tape_of_a_replay(model, monkeypatch):
    _worker._kept_tape.cache_clear()
    paths = dying.loaded(monkeypatch)
    item = _worker.Item(model, model, stamp(model))
    job = _worker.Job(replayed=item)
    assert _worker._replayed(job) is _worker._replayed(job)
    assert len(paths) == 1
    _worker._kept_tape.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bfloat16"])
def test_a_tensor_of_another_dtype_fails_as_in_a_replay_of_one(model, dtype):
    element = {"x": tf.cast([[1.0, 2.0, 3.0]], dtype)}
    with pytest.raises(ShapeMismatchError) as one:
        rt.load(model).replay(element)
    found = rt.farm.replay(model, [{}, element], gradient, on_error="continue")
    assert found.failed == {"element 1": f"ShapeMismatchError: {one.value}"}


def test_inputs_in_another_byte_order(model, data):
    swapped = data[0][0].astype(">f8")
    found = rt.farm.replay(model, [{"x": swapped}, {"x": data[0][0]}], gradient)
    np.testing.assert_array_equal(dense(found[0]["w"]), dense(found[1]["w"]))
    np.testing.assert_array_equal(
        dense(found[0]["w"]), dense(rt.load(model).replay({"x": swapped}).gradient("loss", "w"))
    )


@pytest.mark.parametrize("damage", ["failed", "result", "inputs"])
def test_a_replay_elsewhere_goes_on_after_a_failure_or_damage(model, data, tmp_path, damage):
    """The pool is one of threads that is taken for one of processes, so inputs travel in files."""
    elements = [{"x": x} for x in data[0][:6]] + [{"z": 1.0}] * (damage == "failed")
    options = {"on_error": "continue", "chunk": CHUNK, "work": tmp_path}
    with Elsewhere(1) as pool:
        first = rt.farm.replay(model, elements, dying.flat_gradient, executor=pool, **options)
        assert list(first.failed) == ["element 6"] * (damage == "failed")
        left = list(tmp_path.glob("inputs-*"))
        assert len(left) == (damage == "failed")  # what failed is tried again
        if damage != "failed":
            for path in tmp_path.glob("*.part"):
                path.write_bytes(b"x")
                if damage == "inputs":
                    path.with_name(f"inputs-{path.name}").write_bytes(b"x")
        again = rt.farm.replay(model, elements, dying.flat_gradient, executor=pool, **options)
    assert again.failed == first.failed
    here = rt.farm.replay(model, elements[:6], dying.flat_gradient)
    for one, other in zip(again[:6], here, strict=True):
        np.testing.assert_array_equal(one, other)


class Elsewhere(Executor):
    """Runs tasks here, pickled, as if in other processes."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers)

    def submit(self, function, task):
        return self._threads.submit(function, pickle.loads(pickle.dumps(task)))

    def shutdown(self, wait=True, *, cancel_futures=False):
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


def test_inputs_that_vanish_are_an_error_that_says_so(model, data, tmp_path, monkeypatch):
    monkeypatch.setattr(_inputs.partial, "write", lambda path, content: None)
    with Elsewhere(1) as pool, pytest.raises(FarmError) as raised:
        rt.farm.replay(model, [{"x": data[0][0]}], dying.flat_gradient, executor=pool, work=tmp_path)
    assert "were removed or damaged. Call again: they are written anew. The traceback is above." in str(raised.value)
