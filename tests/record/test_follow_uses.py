"""Whatever can be done with a tape can be done with one that followed an earlier program, and gives the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.warm import forgetful
from record.following import has_followed

W = tf.Variable([1.0, -2.0, 3.0], name="w")
V = tf.Variable([0.5, 0.25, -1.0], name="v")
FROZEN = tf.Variable([1.0, 1.0, 1.0], name="frozen", trainable=False)
X = tf.constant([0.5, -1.5, 2.0])


@pytest.fixture(autouse=True)
def _begins_without_programs() -> Iterator[None]:
    with forgetful():
        yield


@tf.custom_gradient
def cubed(a):
    return a**3, lambda dy: dy * 3.0 * a**2


def record() -> dict[str, Any]:
    """Record a program with reads, updates, a custom gradient, and paths that end."""
    W.assign([1.0, -2.0, 3.0])
    V.assign([0.5, 0.25, -1.0])
    with rt.Tape() as tape:
        y = tf.sin(W * X) * FROZEN
        rounded = tf.round(y) * V
        V.assign_sub(0.1 * y)
        loss = tf.reduce_sum(cubed(y) * V)
        zero = tf.reduce_sum(tf.math.log(y - y))
    return {"tape": tape, "y": y, "rounded": rounded, "loss": loss, "zero": zero}


def plain(found: Any) -> Any:
    """Return a result as data that can be compared; names of variables stand for them."""
    if isinstance(found, (tf.Tensor, np.ndarray)):
        return np.asarray(found).tolist()
    if isinstance(found, rt.Gradients):
        return {key.name: plain(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)) and not hasattr(found, "_fields"):
        return [plain(item) for item in found]
    return re.sub(r"0x[0-9a-f]+", "", str(found))


def saved(tape, loss, y, **_):
    path = Path(PATHS[0]) / f"{len(list(Path(PATHS[0]).iterdir()))}.tape"
    tape.save(path, {"loss": loss, "y": y, "w": W, "v": V})
    loaded = rt.load(path)
    return [
        loaded.gradient("loss", ["w", "v"]),
        loaded.gradient("loss", ["w", "v"], through_updates=True),
        re.sub(r" +@\d+|@\d+ =", "", str(loaded.program)),
    ]


def joined(tape, loss, **_):
    with rt.Tape() as more:
        end = loss * 3.0
    whole = rt.join(tape, more)
    return [whole.gradient(end, [W, V]), whole.gradient(end, [W, V], through_updates=True)]


def replayed(tape, loss, **_):
    again = tape.replay([(X, X * 2.0)])
    other = tape.replay([(W, W * 2.0)])
    return [again.gradient(loss, [W, V]), again.value(loss), other.gradient(loss, [W, V]), other.value(loss)]


PATHS: list[str] = []
USES: dict[str, Any] = {
    "gradient": lambda tape, loss, **_: tape.gradient(loss, [W, V, X]),
    "through updates": lambda tape, loss, **_: tape.gradient(loss, [W, V, X], through_updates=True),
    "since": lambda tape, loss, **_: tape.gradient(loss, [V], through_updates=True, since=1),
    "at": lambda tape, loss, **_: [tape.gradient(loss, tape.at(V, number)) for number in (0, 1)],
    "versions": lambda tape, **_: [version.numpy() for version in tape.versions(V)],
    "default sources": lambda tape, loss, **_: tape.backward(loss),
    "missing": lambda tape, rounded, **_: [str(tape.backward(rounded, [W, V, FROZEN]))],
    "backward_each": lambda tape, loss, zero, **_: tape.backward_each([loss, zero], [W, V]),
    "stream": lambda tape, loss, **_: [(source.name, plain(grad)) for source, grad in tape.stream(loss)],
    "jacobian": lambda tape, y, **_: tape.jacobian(y, [W, X]),
    "hessian": lambda tape, loss, **_: tape.hessian(loss, W),
    "hvp": lambda tape, loss, **_: tape.hvp(loss, [W, V], [tf.ones(3)] * 2),
    "jvp": lambda tape, y, **_: tape.jvp(y, [W], [tf.ones(3)]),
    "twice": lambda tape, loss, **_: tape.gradient(tape.gradient(loss, W), [W, V]),
    "of a variable": lambda tape, **_: tape.gradient(V, [W], through_updates=True),
    "watched variables": lambda tape, **_: [variable.name for variable in tape.watched_variables()],
    "why": lambda tape, loss, rounded, **_: [
        tape.why(loss, W),
        tape.why(rounded, W),
        tape.why(rounded, FROZEN),
        tape.why(loss, V),
        tape.why(rounded, X),
    ],
    "why through updates": lambda tape, loss, **_: [tape.why(loss, V, through_updates=True)],
    "first_nonfinite": lambda tape, zero, **_: [tape.first_nonfinite(zero), tape.first_nonfinite()],
    "summary": lambda tape, **_: [[row._replace(kept=0, bytes=0) for row in tape.summary().rows]],
    "tensors": lambda tape, **_: list(tape.tensors()),
    "value": lambda tape, y, loss, **_: [tape.value(y), tape.value(loss), tape.value(W), tape.value(V)],
    "saved": saved,
    "joined": joined,
    "replayed": replayed,
}


@pytest.mark.parametrize("queried", [False, True], ids=["never queried before", "queried before"])
@pytest.mark.parametrize("name", list(USES))
def test_it_gives_what_a_recorded_tape_gives(name: str, queried: bool, tmp_path: Path):
    PATHS[:] = [str(tmp_path)]
    for _ in range(4):
        made = record()
        if queried:
            made["tape"].gradient(made["loss"], [W, V])
    assert has_followed(made["tape"])
    ours = plain(USES[name](**made))
    with rt.config(compile=False):
        cold = record()
        theirs = plain(USES[name](**cold))
    np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize("name", list(USES))
def test_it_gives_so_each_time(name: str, tmp_path: Path):
    PATHS[:] = [str(tmp_path)]
    with rt.config(compile=False):
        theirs = plain(USES[name](**record()))
    for _ in range(5):
        np.testing.assert_equal(plain(USES[name](**record())), theirs)
