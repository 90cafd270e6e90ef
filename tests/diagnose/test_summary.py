"""`tape.summary()`: what ran by layer and line."""

from __future__ import annotations

import inspect
import io
import json

import keras
import pytest
import tensorflow as tf
from rich.console import Console

import retrotape as rt


def line_of(function, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


@pytest.fixture(scope="module")
def model() -> keras.Model:
    layers = [
        keras.layers.Input([8, 8, 1]),
        keras.layers.Conv2D(2, 3, activation="relu", name="edges"),
        keras.layers.MaxPool2D(name="pool"),
        keras.layers.Flatten(name="flat"),
        keras.layers.Dense(3, name="head"),
    ]
    return keras.Sequential(layers, name="net")


def recorded(model: keras.Model, **options) -> tuple[rt.Tape, tf.Tensor]:
    x = tf.ones([2, 8, 8, 1])
    with rt.Tape(**options) as tape:
        y = model(x)
        loss = tf.reduce_sum(y * y)
    return tape, loss


def test_a_model_by_layer_and_line(model):
    tape, _ = recorded(model)
    rows = tape.summary().rows
    assert [(row.layer, row.frame.line) for row in rows] == [
        ("net/edges", line_of(recorded, "y = model(x)")),
        ("net/pool", line_of(recorded, "y = model(x)")),
        ("net/flat", line_of(recorded, "y = model(x)")),
        ("net/head", line_of(recorded, "y = model(x)")),
        ("", line_of(recorded, "loss = ")),
    ]
    outputs = ["float32[2,6,6,2]", "float32[2,3,3,2]", "float32[2,18]", "float32[2,3]", "float32[]"]
    assert [row.output for row in rows] == outputs
    assert rows[0].ops["Relu"] == rows[1].ops["MaxPool"] == 1
    assert rows[4].ops == {"Mul": 1, "Sum": 1}
    assert sum(row.total for row in rows) == tape.summary().ops == len(tape.program.eqns)


def test_values_and_bytes_are_those_that_are_kept(model):
    everything, leaves = (recorded(model, keep=keep)[0].summary() for keep in ("all", "leaves"))
    assert everything.rows[4].kept == 2  # the product and its sum
    assert everything.rows[4].bytes == (2 * 3 + 1) * 4
    assert leaves.rows[4].kept == 0
    assert leaves.bytes < everything.bytes
    assert everything.bytes >= sum(row.bytes for row in everything.rows)


def test_a_loop_is_one_row():
    w = tf.Variable(1.0, name="cell/w")
    with rt.Tape() as tape:
        y = tf.constant(1.0)
        for _ in range(50):
            y = tf.sin(y * w)
    (row,) = tape.summary().rows
    assert (row.layer, row.ops["Sin"], row.ops["Mul"]) == ("cell", 50, 50)


def test_text_and_plain_data_and_rich_say_the_same(model):
    tape, _ = recorded(model)
    summary = tape.summary()
    text = str(summary)
    assert text.splitlines()[0].split() == ["layer", "line", "ops", "last", "output", "total", "kept", "bytes"]
    assert text.splitlines()[-1].startswith(f"{summary.ops} ops, {summary.kept} values kept, ")
    data = json.loads(json.dumps(summary.to_json()))
    assert [row["layer"] for row in data["rows"]] == ["net/edges", "net/pool", "net/flat", "net/head", ""]
    assert (data["ops"], data["bytes"]) == (summary.ops, summary.bytes)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary)
    shown = console.export_text()
    assert "net/edges" in shown
    assert "float32[2,18]" in shown  # a bracket that is not taken for markup


def test_a_tape_from_a_file_has_the_same_rows(model, tmp_path):
    tape, loss = recorded(model)
    tape.save(tmp_path / "net.tape", {"loss": loss})
    loaded = rt.load(tmp_path / "net.tape").summary()
    assert [(row.layer, row.frame, row.output) for row in loaded.rows] == [
        (row.layer, row.frame, row.output) for row in tape.summary().rows
    ]


def test_joined_tapes_have_one(model):
    tape, loss = recorded(model)
    with rt.Tape() as second:
        twice = loss * 2.0
    rows = rt.join(tape, second).summary().rows
    assert len(rows) == 6
    assert rows[-1].ops == {"Mul": 1}
    assert twice.shape == ()


def test_in_a_graph_there_is_none():
    @tf.function
    def ask(x):
        with rt.Tape() as tape:
            y = x * x
        tape.summary()
        return y

    with pytest.raises(rt.errors.TapeUseError, match=r"recorded in eager code; .* `model\.compile\(run_eagerly=True\)"):
        ask(tf.constant(1.0))
