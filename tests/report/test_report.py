"""A report as data: beside the tape's own queries, and beside numbers that stock TensorFlow gives."""

from __future__ import annotations

import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from report.making import batch, step, transformer
from retrotape.errors import MissingPackageError, NotDifferentiableError, NotRecordedError, TapeUseError
from retrotape.report import Report


def place(report: Report, name: str, call: int = 1) -> int:
    (found,) = [n for n, one in enumerate(report.places) if one.name == name and one.call == call]
    return found


def flow(report: Report, name: str, call: int = 1):
    (found,) = [one for one in report.flow if one.place == place(report, name, call)]
    return found


def test_places_are_the_calls_of_layers(report):
    names = [one.name for one in report.places if one.is_layer]
    assert len(names) == 23
    assert names[:4] == ["transformer", "transformer/tokens", "transformer/block0", "transformer/block0/attention"]
    key = report.places[place(report, "transformer/block1/attention/key")]
    assert report.places[key.outer].name == "transformer/block1/attention"
    assert (key.title, key.depth, key.ops, key.output) == ("key", 3, 6, "float32[4,8,2,8]")
    outer = report.places[place(report, "transformer")]
    inner = [one for one in report.places if one.outer == place(report, "transformer")]
    assert outer.ops == sum(one.ops for one in inner) == 176
    assert outer.bytes == sum(one.bytes for one in inner) > 0


def test_every_op_has_a_place_and_a_line(report, trained):
    assert len(report.ops) == len(trained[0].program.eqns)
    places = [report.places[op.place] for op in report.ops if op.name == "Softmax"]
    assert [one.name for one in places] == ["transformer/block0/attention", "transformer/block1/attention"]
    softmax = next(op for op in report.ops if op.name == "SparseSoftmaxCrossEntropyWithLogits")
    assert not report.places[softmax.place].is_layer
    assert report.lines[softmax.line].code == "loss = loss_fn(y, logits)"
    assert len({(line.file, line.number, line.function) for line in report.lines}) == len(report.lines)


def test_the_flow_is_what_stock_tensorflow_computes(report):
    """Keras' own layers, called one by one under a stock tape, give each activation and its gradient."""
    model, (x, y) = transformer(), batch()
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as stock:
        tokens = model.get_layer("tokens")(x)
        stock.watch(tokens)
        first = model.get_layer("block0")(tokens, training=True)
        second = model.get_layer("block1")(first, training=True)
        loss = loss_fn(y, model.get_layer("head")(second))
    for name, value, grad in zip(
        ("tokens", "block0", "block1"),
        (tokens, first, second),
        stock.gradient(loss, [tokens, first, second]),
        strict=True,
    ):
        found = flow(report, f"transformer/{name}")
        assert found.forward.rms == pytest.approx(float(np.sqrt(np.mean(value.numpy() ** 2))), rel=1e-5)
        assert found.backward.norm == pytest.approx(float(np.linalg.norm(grad.numpy())), rel=1e-4)
        assert found.backward.size == value.numpy().size


def test_weights_are_what_backward_returns(report, trained):
    tape, loss, _ = trained
    norms = dict(tape.backward(loss).norms())
    assert {one.name: one.gradient.norm for one in report.weights} == pytest.approx(norms, rel=1e-6)
    head = flow(report, "transformer/head").weights
    assert head.norm == pytest.approx(math.hypot(norms["head/kernel"], norms["head/bias"]))
    assert flow(report, "transformer").weights.norm == pytest.approx(math.hypot(*norms.values()))


def test_variables_over_time(report):
    learned = [one for one in report.histories if one.trainable]
    assert len(learned) == 35
    kernel = next(one for one in learned if one.name == "head/kernel")
    (update,) = kernel.updates
    assert kernel.count == 1
    assert update.op == "AssignSubVariableOp"
    assert update.line.code == "tape.backward(loss).apply(optimizer)"
    # The first step of Adam has the size of the learning rate, 0.001, in each element.
    assert update.change.rms == pytest.approx(0.001, rel=0.01)
    assert any(one.name.endswith("/iteration") and not one.trainable for one in report.histories)


def test_many_updates_show_the_last_ones():
    counter = tf.Variable(0.0, name="counter")
    with rt.Tape() as tape:
        for _ in range(100):
            counter.assign_add(1.0)
    (history,) = tape.report().histories
    assert (history.count, len(history.updates)) == (100, 60)
    assert history.updates[-1].value.norm == 100.0
    assert {update.change.norm for update in history.updates} == {1.0}


def test_memory_is_that_of_the_tape(report, trained):
    held = trained[0].memory()
    assert [(str(one.line), one.bytes, one.tensors) for one in report.memory] == [
        (str(line.frame), line.bytes, line.tensors) for line in held.lines
    ]
    assert (report.kept["bytes"], report.kept["variables"]) == (held.bytes, held.variables)


def test_a_saved_tape_has_the_same_report(report, trained, tmp_path):
    tape, loss, _ = trained
    tape.save(tmp_path / "it.tape", loss=loss)
    loaded = rt.load(tmp_path / "it.tape").report()
    assert [(one.name, one.call, one.output) for one in loaded.places if one.is_layer] == [
        (one.name, one.call, one.output) for one in report.places if one.is_layer
    ]
    ours, theirs = ({one.place: one for one in each.flow if one.backward} for each in (report, loaded))
    assert ours.keys() == theirs.keys()
    for number, one in ours.items():
        assert theirs[number].backward.norm == pytest.approx(one.backward.norm, rel=1e-3, abs=1e-9)
        assert theirs[number].forward.norm == pytest.approx(one.forward.norm, rel=1e-4)
    assert {line.code for line in loaded.lines} == {line.code for line in report.lines}
    assert [one.state for one in loaded.weights] == [one.state for one in report.weights]
    assert loaded.losses[0].how == "the tensor of that name on the tape"


@pytest.mark.parametrize("keep", ["all", "leaves", "segments", "disk"])
def test_the_same_whatever_is_kept(keep, tmp_path):
    model, reports = transformer(1), []
    for mode in ("needed", keep):
        with rt.Tape(keep=mode) as tape:
            loss = tf.reduce_mean(model(batch()[0]) ** 2)
        reports.append(tape.report(loss=loss))
    for one, other in zip(reports[0].flow, reports[1].flow, strict=True):
        assert one.forward.norm == pytest.approx(other.forward.norm, rel=1e-5)
        assert (one.backward and one.backward.norm) == pytest.approx(other.backward and other.backward.norm, rel=1e-4)


def test_the_report_does_not_change_the_tape():
    tape, loss = step(transformer(1))
    program, values = str(tape.program), len(tape._recorded().trace.values)
    grads = tape.backward(loss)
    tape.report(loss=loss)
    assert str(tape.program) == program
    assert len(tape._recorded().trace.values) == values
    assert tape.backward(loss).is_close(grads, rtol=1e-6)


def test_inside_of_the_block_it_is_not_recorded():
    w = tf.Variable([1.0, 2.0], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * w)
        count = len(tape.program.eqns)
        assert tape.report(loss=loss).weights[0].gradient.norm == pytest.approx(math.sqrt(20.0))
        assert len(tape.program.eqns) == count
        twice = 2.0 * loss
    assert tape.gradient(twice, w).numpy().tolist() == [4.0, 8.0]


def test_a_layer_called_twice_has_two_places():
    dense = keras.layers.Dense(2, name="shared")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(dense(dense(tf.ones([3, 2]))))
    report = tape.report(loss=loss)
    assert [(one.title, one.call) for one in report.places if one.is_layer] == [("shared #1", 1), ("shared #2", 2)]
    first, second = (flow(report, "shared", call).backward.norm for call in (1, 2))
    assert second == pytest.approx(math.sqrt(6.0))
    assert first == pytest.approx(math.sqrt(3.0) * np.linalg.norm(dense.kernel.numpy().sum(1)), rel=1e-5)


def test_without_layers_places_are_lines():
    w = tf.Variable(3.0)
    with rt.Tape() as tape:
        square = w * w
        loss = square + 1.0
    report = tape.report(loss=loss)
    assert [one.is_layer for one in report.places] == [False, False]
    assert [one.backward.norm for one in report.flow] == [1.0, 1.0]
    assert [report.lines[op.line].code for op in report.ops if op.name in ("Mul", "AddV2")] == [
        "square = w * w",
        "loss = square + 1.0",
    ]


def test_ops_of_functions_are_shown():
    model = transformer(1)
    called = tf.function(model)
    with rt.Tape() as tape:
        loss = tf.reduce_mean(called(batch()[0]) ** 2)
    report = tape.report(loss=loss)
    assert "Softmax" in {op.name for op in report.ops}
    assert report.notes == (
        "Calls of a tf.function are shown op by op; which values the tape keeps is known only for a whole call.",
    )
    assert {one.name: one.gradient.norm for one in report.weights} == pytest.approx(
        dict(tape.backward(loss).norms()), rel=1e-5, abs=1e-9
    )


def test_what_has_no_numbers():
    w = tf.Variable(tf.complex(1.0, 2.0), name="c")
    with rt.Tape() as tape:
        tf.strings.join(["a", "b"])
        tf.range(4) * 2
        loss = tf.reduce_sum(tf.abs(tf.cast(tf.range(3), tf.complex64) * w) ** 2)
    report = tape.report(loss=loss)
    assert report.weights[0].gradient.norm == pytest.approx(2.0 * 5.0 * math.sqrt(5.0))
    assert report.losses[0].value == pytest.approx(25.0)


def test_sparse_gradients_are_summed_by_row():
    table = tf.Variable(tf.ones([4, 2]), name="table")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 3]))
    (weight,) = tape.report(loss=loss).weights
    assert weight.state == "sparse"
    assert weight.gradient.norm == pytest.approx(math.sqrt(2 * 4.0 + 2 * 1.0))


def test_empty_tapes():
    with rt.Tape() as tape:
        pass
    report = tape.report()
    assert (report.ops, report.places, report.losses, report.findings) == ((), (), (), ())
    assert report.title == "An empty tape"
    assert report.advice.endswith("`tape.report(path, loss=loss)`, or `losses={'a': a, 'b': b}`.")


def test_joined_tapes():
    w = tf.Variable(2.0, name="w")
    with rt.Tape() as first:
        y = w * 3.0
    with rt.Tape() as second:
        loss = y * y
    report = rt.join(first, second).report(loss=loss)
    assert report.weights[0].gradient.norm == pytest.approx(36.0)
    assert len(report.ops) >= 2


def test_isolated_tapes(tmp_path):
    w = tf.Variable([1.0, 2.0], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w**2)
    tape.save(tmp_path / "it.tape", loss=loss)
    with rt.load(tmp_path / "it.tape", isolate=True) as held:
        report = held.report(tmp_path / "it.html", title="theirs")
        with pytest.raises(AttributeError, match=re.escape("plotted here: `tape.report().plot()`")):
            held.plot()
    ours = rt.load(tmp_path / "it.tape").report(title="theirs")
    assert report == ours
    assert (tmp_path / "it.html").read_text() == ours.html()


def test_redacted_values_are_missing_and_said_to_be(tmp_path):
    w, x = tf.Variable(2.0, name="w"), tf.constant([3.0, 4.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum((w * x) ** 2)
    tape.save(tmp_path / "it.tape", loss=loss, x=x, redact=["x"])
    report = rt.load(tmp_path / "it.tape").report()
    assert report.losses[0].value is None
    assert report.weights == ()
    assert any("The value of 'x' was left out when this tape was saved" in note for note in report.notes)


def test_an_op_without_gradient_hides_what_comes_before_it():
    w = tf.Variable([2.0, 3.0, 1.0], name="w")
    with rt.Tape() as tape:
        hidden = w * 2.0
        loss = tf.reduce_sum(tf.unique(hidden)[0]) + tf.reduce_sum(hidden)
    report = tape.report(loss=loss)
    assert any("before Unique at" in note for note in report.notes)
    (line,) = [line for line in report.lines if line.code == "hidden = w * 2.0"]
    assert [one.backward for one in report.flow if report.places[one.place].name == str(line)] == [None]
    assert report.weights == ()  # rather than the gradient along one of two paths


def test_in_a_graph_there_is_no_report():
    found = []

    @tf.function
    def f(x):
        with rt.Tape() as tape:
            y = x * 2.0
        with pytest.raises(TapeUseError, match="report works on tapes recorded in eager code") as error:
            tape.report()
        found.append(error)
        return y

    f(tf.constant(1.0))
    assert found


def test_wrong_losses():
    with rt.Tape() as tape:
        y = tf.constant(1.0) * 2.0
        whole = tf.constant(1) * 2
    with pytest.raises(TypeError, match=r"report takes loss= or losses=, got both; give several as `losses="):
        tape.report(loss=y, losses=[y])
    with pytest.raises(TypeError, match=r"losses= takes names and losses, .* or a list of them; got \{\}"):
        tape.report(losses={})
    with pytest.raises(NotDifferentiableError):
        tape.report(loss=whole)
    with pytest.raises(NotRecordedError):
        tape.report(loss=tf.constant(3.0) + 1.0)


def test_without_jinja2_it_says_what_to_install(monkeypatch, tmp_path):
    import sys

    from retrotape.report import _page

    _page.template.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with rt.Tape() as tape:
        tf.constant(1.0) * 2.0
    tape.report()  # data need no template
    with pytest.raises(
        MissingPackageError,
        match=re.escape('A report needs Jinja2, which is not installed: `pip install "retrotape[report]"`'),
    ):
        tape.report(tmp_path / "it.html")
    assert not (tmp_path / "it.html").exists()


def test_printed(report):
    text = str(report)
    assert text.startswith("Tape of making.py: 1,878 ops, 23 calls of layers; loss: loss (given to `report`)")
    assert "nothing wrong was found in what leads to the loss; checked: NaN and infinities" in text
    assert repr(report) == text


def test_as_json_and_back(report):
    assert Report.from_json(report.to_json()) == report


def test_a_function_with_an_update_and_no_loss_given():
    """The search for NaN queries the tape, which must not add to what the report describes."""
    v = tf.Variable(1.0)

    @tf.function
    def step(x):
        with tf.GradientTape() as inner:
            loss = v * tf.math.log(x)
        v.assign_sub(inner.gradient(loss, v))
        return loss

    with rt.Tape() as tape:
        step(tf.constant(0.0))
    found = tape.report()
    assert "NaN or infinity" in [one.title for one in found.findings]
