"""`save(wait=False)`: the file is that of the moment of the call, whatever happens while it is written."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, TimeoutError
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from files.recorded import record
from retrotape.errors import BackgroundSaveWarning, NotPersistableError, NotRecordedError, TapeWriteError
from retrotape.files import background

SOON = 60.0  # seconds after which a test gives up


@contextmanager
def held_back() -> Iterator[None]:
    """Let nothing be saved in the background before the block ends."""
    go = Event()
    gate = background.submit("(gate)", lambda: int(go.wait(SOON)))
    try:
        yield
    finally:
        go.set()
        assert gate.result(SOON) == 1


def small(at: float = 3.0) -> tuple[rt.Tape, tf.Tensor, tf.Tensor]:
    x = tf.constant(at)
    with rt.Tape() as tape:
        y = x * x
    return tape, x, y


# ------------------------------------------------------------------ the same file


@pytest.mark.parametrize("values", ["leaves", "needed", "all"])
def test_the_same_bytes_as_a_save_that_waits(tmp_path: Path, values: str):
    """With functions, custom gradients, updates, host reads and strings."""
    tape, names = record()
    size = tape.save(tmp_path / "waits.tape", names, values=values)
    with held_back():
        saving = tape.save(tmp_path / "later.tape", names, values=values, wait=False)
        assert isinstance(saving, Future)
        assert not saving.done()
        assert not (tmp_path / "later.tape").exists()
        names.clear()
        tape.reset()
        del tape
        gc.collect()
    assert saving.result(SOON) == size
    assert (tmp_path / "later.tape").read_bytes() == (tmp_path / "waits.tape").read_bytes()


def trained() -> tuple[keras.Model, keras.Optimizer, np.ndarray]:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    data = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    model(data)
    return model, keras.optimizers.Adam(0.1), data


@pytest.mark.parametrize("keep", ["needed", "all", "leaves", "segments", "disk"])
def test_training_goes_on(tmp_path: Path, keep: str):
    model, optimizer, data = trained()
    tape = rt.Tape(keep=keep)
    with tape:
        loss = tf.reduce_mean(model(data, training=True) ** 2)
        tape.backward(loss).apply(optimizer)
    tape.save(tmp_path / "waits.tape", loss=loss)
    with held_back():
        saving = tape.save(tmp_path / "later.tape", loss=loss, wait=False)
        for _ in range(3):  # on the same tape, which grows
            with tape:
                tape.backward(tf.reduce_mean(model(data, training=True) ** 2)).apply(optimizer)
        for variable in model.variables:
            variable.assign(tf.zeros_like(variable))
        model.layers[0].trainable = False
    saving.result(SOON)
    assert (tmp_path / "later.tape").read_bytes() == (tmp_path / "waits.tape").read_bytes()


def test_rows_of_a_variable_that_change_in_place(tmp_path: Path):
    table = tf.Variable(tf.ones([4, 2]), name="table")
    with rt.Tape() as tape:
        table.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), [1]))
        loss = tf.reduce_sum(tf.gather(table, [1, 2]) ** 2)
    tape.save(tmp_path / "waits.tape", loss=loss, values="all")
    with held_back():
        saving = tape.save(tmp_path / "later.tape", loss=loss, values="all", wait=False)
        for _ in range(3):
            table.scatter_add(tf.IndexedSlices(tf.ones([2, 2]), [1, 2]))
    saving.result(SOON)
    assert (tmp_path / "later.tape").read_bytes() == (tmp_path / "waits.tape").read_bytes()


def test_loaded_joined_and_replayed_tapes(tmp_path: Path):
    tape, x, y = small()
    tape.save(tmp_path / "first.tape", x=x, y=y)
    loaded = rt.load(tmp_path / "first.tape")
    again = loaded.replay({"x": 5.0})
    joined = rt.join(*[part for part, _, _ in (small(1.0), small(2.0))])
    for number, one in enumerate((loaded, again, joined)):
        one.save(tmp_path / f"waits{number}.tape")
        one.save(tmp_path / f"later{number}.tape", wait=False).result(SOON)
        assert (tmp_path / f"later{number}.tape").read_bytes() == (tmp_path / f"waits{number}.tape").read_bytes()


def test_a_folder_with_a_store(tmp_path: Path):
    tape, x, y = small()
    tape.save(tmp_path / "folder", x=x, y=y, store=tmp_path / "store", wait=False).result(SOON)
    assert float(rt.load(tmp_path / "folder").gradient("y", "x")) == 6.0


def test_users_backward_functions_run_at_once_on_the_thread_of_the_call(tmp_path: Path):
    """They are Python code, which may see other values later."""
    factor = [2.0]

    @tf.custom_gradient
    def scaled(a: tf.Tensor):
        return a * factor[0], lambda dy: dy * factor[0]

    x = tf.constant(1.0)
    with rt.Tape() as tape:
        y = tf.function(lambda a: scaled(a) * 3.0)(scaled(x))
    with held_back():
        saving = tape.save(tmp_path / "a.tape", x=x, y=y, wait=False)
        factor[0] = 1000.0
    saving.result(SOON)
    assert float(rt.load(tmp_path / "a.tape").gradient("y", "x")) == 12.0


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tape, x, y = small()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with held_back():
        saving = tape.save("a.tape", x=x, y=y, wait=False)
        monkeypatch.chdir("elsewhere")
    saving.result(SOON)
    assert (tmp_path / "a.tape").exists()


# ------------------------------------------------------------------ the order


def test_several_are_saved_in_order_and_the_last_one_stays(tmp_path: Path):
    done: list[int] = []
    with held_back():
        for number in range(5):
            tape, x, y = small(float(number))
            saving = tape.save(tmp_path / "a.tape", x=x, y=y, wait=False)
            saving.add_done_callback(lambda _, number=number: done.append(number))
    saving.result(SOON)
    assert done == [0, 1, 2, 3, 4]
    assert float(rt.load(tmp_path / "a.tape").value("x")) == 4.0


def test_a_save_that_waits_is_not_replaced_by_an_earlier_one(tmp_path: Path):
    go = Event()
    background.submit("(gate)", lambda: int(go.wait(SOON)))
    old, x, y = small(1.0)
    saving = old.save(tmp_path / "a.tape", x=x, y=y, wait=False)
    new, x, y = small(2.0)
    thread = Thread(target=new.save, args=(tmp_path / "a.tape", {"x": x, "y": y}))
    thread.start()
    go.set()
    thread.join(SOON)
    assert saving.done()
    assert float(rt.load(tmp_path / "a.tape").value("x")) == 2.0


def test_load_waits_for_what_is_being_saved(tmp_path: Path):
    tape, x, y = small()
    tape.save(tmp_path / "a.tape", x=x, y=y, wait=False)
    assert float(rt.load(os.path.join(tmp_path, ".", "a.tape")).gradient("y", "x")) == 6.0


def test_one_that_has_not_begun_can_be_cancelled(tmp_path: Path):
    tape, x, y = small()
    with held_back():
        saving = tape.save(tmp_path / "a.tape", x=x, y=y, wait=False)
        assert saving.cancel()
    with pytest.raises(CancelledError):
        saving.result(SOON)
    background.finish(lambda: os.path.realpath(tmp_path / "a.tape"))
    assert not (tmp_path / "a.tape").exists()


def test_nothing_that_it_computes_is_recorded(tmp_path: Path):
    tape, names = record()
    with held_back():
        saving = tape.save(tmp_path / "a.tape", names, values="all", wait=False)
    x = tf.constant(2.0)
    with rt.Tape() as other, tf.GradientTape() as stock:
        stock.watch(x)
        y = x * x
        saving.result(SOON)
        z = y * 3.0
    assert len(other.program.eqns) == 2
    assert float(stock.gradient(z, x)) == float(other.gradient(z, x)) == 12.0


# ------------------------------------------------------------------ errors


def test_what_is_wrong_with_the_call_raises_at_once(tmp_path: Path):
    tape, x, y = small()
    with held_back():
        with pytest.raises(NotRecordedError, match=r"'z'.* it was not used in what was recorded"):
            tape.save(tmp_path / "a.tape", z=tf.constant(1.0), wait=False)
        with pytest.raises(ValueError, match="values must be one of"):
            tape.save(tmp_path / "a.tape", values="some", wait=False)
        with pytest.raises(ValueError, match=r"redact names \['z'\]"):
            tape.save(tmp_path / "a.tape", x=x, redact=["z"], wait=False)
        with pytest.raises(TapeWriteError, match="there is no directory"):
            tape.save(tmp_path / "missing" / "a.tape", y=y, wait=False)
        (tmp_path / "there.tape").touch()
        with pytest.raises(TapeWriteError, match="exists already"):
            tape.save(tmp_path / "there.tape", y=y, overwrite=False, wait=False)
    assert os.listdir(tmp_path) == ["there.tape"]


def test_a_directory_that_vanishes(tmp_path: Path):
    tape, x, y = small()
    (tmp_path / "folder").mkdir()
    with held_back():
        saving = tape.save(tmp_path / "folder" / "a.tape", x=x, y=y, wait=False)
        with pytest.raises(TimeoutError):
            saving.result(0.0)
        (tmp_path / "folder").rmdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TapeWriteError, match=r"there is no directory .* `os\.makedirs"):
            saving.result(SOON)
        del saving
        gc.collect()


def unsaveable() -> rt.Tape:
    drawing = tf.function(lambda a: a * tf.random.uniform([]))
    with rt.Tape() as tape:
        drawing(tf.constant(1.0))
    return tape


def test_an_op_that_cannot_be_saved(tmp_path: Path):
    saving = unsaveable().save(tmp_path / "a.tape", wait=False)
    assert isinstance(saving.exception(SOON), NotPersistableError)
    assert not (tmp_path / "a.tape").exists()


@pytest.mark.filterwarnings("always::retrotape.errors.BackgroundSaveWarning")
def test_an_error_that_nobody_asks_for_is_a_warning(tmp_path: Path):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with held_back():
            unsaveable().save(tmp_path / "lost.tape", wait=False)
        background.finish(lambda: os.path.realpath(tmp_path / "lost.tape"))
        background.submit("(after)", lambda: 0).result(SOON)  # by now the thread has dropped it
        gc.collect()
    (warning,) = [one for one in found if issubclass(one.category, BackgroundSaveWarning)]
    assert "lost.tape was not saved in the background. NotPersistableError: " in str(warning.message)
    assert "`tape.save(path, wait=False).result()`" in str(warning.message)


# ------------------------------------------------------------------ meanwhile


def test_a_tape_that_is_used_while_it_is_saved(tmp_path: Path):
    """Recorded on, queried, reset and saved again, as fast as it goes, while thirty saves are written."""
    v = tf.Variable([0.5, 1.5], name="v")
    step = tf.function(lambda a: v.assign_add(0.1 * tf.sin(a * v)))
    tape = rt.Tape()
    savings, wanted = [], []
    for number in range(30):
        with tape:
            v.assign([0.5, 1.5])
            x = tf.constant([1.0, float(number)])
            y = tf.reduce_sum(tf.nn.silu(x) * step(x))
        wanted.append(tape.gradient(y, x, through_updates=True).numpy())
        savings.append(tape.save(tmp_path / f"{number}.tape", x=x, y=y, wait=False))
        tape.hvp(y, x, tf.ones(2), through_updates=True)
        if number % 7 == 6:
            tape.reset()
    for number, (saving, want) in enumerate(zip(savings, wanted, strict=True)):
        saving.result(SOON)
        found = rt.load(tmp_path / f"{number}.tape").gradient("y", "x", through_updates=True)
        np.testing.assert_allclose(found, want, rtol=1e-5)


def test_several_threads_save_at_once(tmp_path: Path):
    def work(thread: int) -> None:
        for number in range(8):
            at = float(10 * thread + number)
            tape, x, y = small(at)
            savings.append((tape.save(tmp_path / f"{at}.tape", x=x, y=y, wait=False), at))

    savings: list[tuple[Future[int], float]] = []
    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert len(savings) == 32
    for saving, at in savings:
        saving.result(SOON)
        assert float(rt.load(tmp_path / f"{at}.tape").gradient("y", "x")) == 2 * at
