"""What `tape.log` says is wrong, what it draws, and what it refuses."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import retrotape as rt
from logs.steps import X, recorded
from retrotape.errors import MissingPackageError, NotDifferentiableError, TapeUseError

# ------------------------------------------------------------------ what is wrong


def test_missing_zero_and_not_finite_are_explained(writer, read):
    cut, dead, bad = (tf.Variable(value, name=name) for name, value in [("cut", 2.0), ("dead", -1.0), ("bad", 0.0)])
    with rt.Tape() as tape:
        loss = tf.stop_gradient(cut) + tf.nn.relu(dead) + tf.sqrt(bad)
    tape.log(writer, 0, loss)
    text = read().text()
    assert "**1 variable has no gradient:**\n\n    cut\n" in text
    assert "`tf.stop_gradient` cuts the path." in text
    assert "**1 variable has a gradient of zeros:**\n\n    dead\n" in text
    assert "The gradient is zero" in text or "but the gradient is zero" in text
    assert "the gradient of Sqrt at" in text
    assert "**The first non-finite value:**" in text
    for line in str(tape.first_nonfinite(loss)).splitlines():
        assert f"    {line}\n" in f"{text}\n"


def test_many_missing_ones_are_named(writer, read):
    unused = [tf.Variable(1.0, name=f"v{n}") for n in range(70)]
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.stop_gradient(tf.stack(unused)))
    tape.log(writer, 0, loss)
    text = read().text()
    assert "**70 variables have no gradient:**" in text
    assert text.count("`tf.stop_gradient` cuts the path.") == 5
    assert "    v54\n    … 15 more" in text


def test_names_are_no_markup(writer, read):
    hostile = "<script>alert(1)</script>/`**ü\u202e"
    w = tf.Variable(2.0, name=hostile)
    with rt.Tape() as tape:
        loss = tf.stop_gradient(w) * 1.0
    tape.log(writer, 0, loss)
    logs = read()
    lines = [line for line in logs.text().splitlines() if "script" in line]
    assert lines
    assert all(line.startswith("    ") for line in lines)  # a block of code
    assert logs.number("gradients/missing") == 1.0


def test_the_tag_of_a_strange_name(writer, read):
    w = tf.Variable(2.0, name="<b>ü/κ")
    with rt.Tape() as tape:
        loss = w * 3.0
    tape.log(writer, 0, loss)
    assert read().number("gradients/<b>ü/κ/norm") == 3.0


# ------------------------------------------------------------------ the graph


def test_the_graph_has_each_op_in_its_layer(model, writer, read):
    tape, loss = recorded(model)
    tape.log(writer, 0, loss)
    nodes = read().nodes()
    ops = [eqn.op for eqn in tape.program.eqns]
    assert sorted(node.op for node in nodes.values() if node.op not in ("VariableV2", "Placeholder")) == sorted(ops)
    (product,) = [node for name, node in nodes.items() if name.startswith("net/hidden/MatMul_")]
    assert product.attr["_output_shapes"].list.shape[0].dim[1].size == 3
    read_name = next(name for name in product.input if "ReadVariableOp" in name)
    assert nodes[read_name].input[0].startswith("net/hidden/kernel/Variable_")
    for node in nodes.values():
        assert all(name.partition(":")[0] in nodes for name in node.input)


def test_the_graph_is_written_once_for_each_writer(model, writer, read, monkeypatch):
    drawn = []
    monkeypatch.setattr(tf.summary, "graph", drawn.append)
    for step in range(3):
        tape, loss = recorded(model)
        tape.log(writer, step, loss)
    assert len(drawn) == 1
    recorded(model)[0].log(tf.summary.create_noop_writer(), 0, graph=False)
    assert len(drawn) == 1


# ------------------------------------------------------------------ what is refused


def test_a_path_is_no_writer(model):
    tape, loss = recorded(model)
    with pytest.raises(
        TypeError, match=r"log takes a writer, got str: `writer = tf.summary.create_file_writer\('logs'\)`"
    ):
        tape.log("logs", 0, loss)


def test_without_a_loss(writer):
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        _ = w * 2.0
    text = (
        r"no name 'loss', no scalar on it was differentiated, and it has no floating-point scalar that no op used\. "
        r"Give it: `tape.log\(writer, step, loss\)`"
    )
    with pytest.raises(TapeUseError, match=text):
        tape.log(writer, 0)


def test_a_loss_of_integers(writer):
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        loss = tf.argmax(w)
    with pytest.raises(NotDifferentiableError, match="dtype int64"):
        tape.log(writer, 0, loss)


def test_an_empty_tape(writer):
    with pytest.raises(rt.errors.EmptyTapeError, match="never entered"):
        rt.Tape().log(writer, 0)
    with rt.Tape() as tape:
        pass
    with pytest.raises(TapeUseError, match="There is no loss to log"):
        tape.log(writer, 0)


def test_inside_a_function(writer):
    v = tf.Variable(2.0)

    @tf.function
    def step():
        with rt.Tape() as tape:
            loss = v * v
        tape.log(writer, 0, loss)

    with pytest.raises(TapeUseError, match="log works on tapes recorded in eager code"):
        step()


def test_without_tensorboard(model, writer, monkeypatch):
    import retrotape.logs._logged as logged

    monkeypatch.setattr(logged, "find_spec", lambda name: None)
    tape, loss = recorded(model)
    with pytest.raises(
        MissingPackageError, match=r'`tape.log` needs tensorboard.*pip install "retrotape\[tensorboard\]"'
    ):
        tape.log(writer, 0, loss)


def test_a_tape_without_variables(writer, read):
    x = tf.constant([1.0, 2.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(x * x)
    assert len(tape.log(writer, 0, loss)) == 0
    assert read().number("gradients/norm") == 0.0


def test_layers_that_return_no_tensor_or_no_number(writer, read):
    class Two(keras.layers.Layer):
        def call(self, x):
            return x, x * 2.0

    class Whole(keras.layers.Layer):
        def call(self, x):
            return tf.cast(x, tf.int32)

    w = tf.Variable(2.0, name="w")
    two, whole = Two(name="two"), Whole(name="whole")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(two(X * w)[1])
        whole(X)
    tape.log(writer, 0, loss)
    assert not [tag for tag in read().tags if tag.startswith("activations/")]


def test_an_isolated_tape_says_what_to_do_instead(tmp_path):
    w = tf.Variable(2.0, name="w")
    with rt.Tape() as tape:
        loss = w * w
    tape.save(tmp_path / "a.tape", loss=loss)
    with rt.load(tmp_path / "a.tape", isolate=True) as held:
        with pytest.raises(AttributeError, match=r"no 'log': .*log `tape.backward\('loss'\).metrics\(\)` instead"):
            held.log(None, 0)
        assert held.backward("loss").metrics()["gradients/w/norm"] == 4.0


def test_a_user_who_switches_summaries_off_gets_none(model, writer, read):
    tape, loss = recorded(model)
    with tf.summary.record_if(False):
        assert tape.log(writer, 0, loss).is_finite()
    assert read().tags == set()
