"""An isolated tape answers what a loaded one answers: every public method, the same arguments, the same results."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from files.models import MODELS, run
from helpers.isolating import quickly
from retrotape.files.isolated import METHODS, PROPERTIES
from retrotape.tape.isolated import REFUSED


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    x, w, words = tf.constant([[0.5, -0.2]]), tf.Variable([[1.0], [3.0]], name="m/w"), tf.constant([["a", "b\xff\0"]])
    idle, table = tf.Variable(2.0, name="idle"), tf.Variable([[1.0], [2.0], [3.0]], name="table")
    with rt.Tape() as tape:
        h = tf.sin(x) @ w
        rows = tf.reduce_sum(tf.gather(table, [1, 1]) * h, 1)
        loss = tf.reduce_sum(h**2) * tf.cast(tf.size(tf.strings.upper(words)), tf.float32) + tf.reduce_sum(rows)
        w.assign_sub(0.1 * w * loss)
        after = tf.reduce_sum(w) + tf.stop_gradient(idle) * 2.0
        _ = tf.math.log(x[0, 1]) + idle
    target = tmp_path_factory.mktemp("tapes") / "a.tape"
    tape.save(target, {"x": x, "h": h, "rows": rows, "loss": loss, "after": after, "words": words})
    return target


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        yield


@pytest.fixture(scope="module")
def both(path, quick):
    with rt.load(path, isolate="strict", timeout=120.0) as held:
        yield held, rt.load(path)


def assert_equal(got, want):
    """Compare two results: type, structure, texts, and numbers to the bit."""
    __tracebackhide__ = True
    if isinstance(want, (tf.Tensor, tf.IndexedSlices)):
        assert isinstance(got, tf.IndexedSlices) == isinstance(want, tf.IndexedSlices)
        parts = zip(tf.nest.flatten(got, True), tf.nest.flatten(want, True), strict=True)
        assert got.dtype == want.dtype
        assert all(
            one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes() for one, other in parts
        )
        return
    if isinstance(want, rt.Gradients):
        assert_equal(got.values(), want.values())
        assert [got.why(key) for key in got.missing] == [want.why(key) for key in want.missing]
        assert repr(got) == repr(want)
        return
    if isinstance(want, (list, tuple)) and not hasattr(want, "_fields"):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_equal(one, other)
        return
    if isinstance(want, dict):
        assert list(got) == list(want)
        assert_equal(list(got.values()), list(want.values()))
        return
    assert isinstance(got, type(want))
    assert repr(got) == repr(want)
    if isinstance(want, (rt.Explanation, rt.Nonfinite, rt.Summary, rt.Program, rt.Report, str, int, type(None))):
        assert got == want


ZERO = tf.UnconnectedGradients.ZERO
ASKED = {
    "gradient": lambda t: t.gradient("loss", {"by": ["x", "w"], "rows": "table"}),
    "gradient, a seed": lambda t: t.gradient("h", "x", tf.constant([[2.0]])),
    "gradient, an enum": lambda t: t.gradient("loss", ["idle", "x"], unconnected_gradients=ZERO),
    "gradient, a tuple": lambda t: t.gradient("loss", ("x", {3: ("w",), 7: "idle"})),
    "gradient through updates": lambda t: t.gradient("after", "w", through_updates=True),
    "gradient of tensors": lambda t: t.gradient(t["loss"], [t["x"], t["w"]]),
    "gradient of a gradient": lambda t: t.gradient(t.gradient("loss", "x"), "x"),
    "gradient at": lambda t: [t.gradient("after", t.at("w", 0)), t.gradient("after", t.at("w", -1))],
    "gradient of what was found": lambda t: t.gradient("loss", t.tensors(op="Sin")[-1]),
    "gradient by variables": lambda t: t.gradient("loss", list(t.variables)),
    "why_not_compiled": lambda t: [list(t.stream("loss", "x")), t.why_not_compiled()],
    "backward": lambda t: t.backward("loss"),
    "backward, some missing": lambda t: t.backward("after", ["w", "idle", "x"]),
    "backward, looked up": lambda t: t.backward("loss", ["x", "w"])[t["x"]],
    "backward_each": lambda t: t.backward_each({"a": "loss", "b": "after"}, ["w", "idle"]),
    "gramian": lambda t: t.gramian(["loss", "h"], ["w", "idle"]),
    "backward_each, a list": lambda t: t.backward_each(["loss", "h"]),
    "vjp": lambda t: t.vjp("h", "x", [tf.ones((1, 1))]),
    "stream": lambda t: [(getattr(source, "name", None), grad) for source, grad in t.stream("loss", ["w", "table"])],
    "jacobian": lambda t: t.jacobian("h", "w"),
    "jacobian, NumPy's number": lambda t: t.jacobian("h", "x", chunk=np.int64(1)),
    "batch_jacobian": lambda t: t.batch_jacobian("h", "x"),
    "per_example": lambda t: t.per_example("rows", ["w", "x"]),
    "jvp, an array": lambda t: t.jvp("h", "x", np.ones((1, 2), np.float32)),
    "hvp": lambda t: t.hvp(target="loss", sources="x", vectors=tf.ones((1, 2))),
    "hvp, gradients": lambda t: t.hvp("loss", ["x", "w"], t.backward("loss", ["w", "x"])),
    "hessian": lambda t: t.hessian("loss", ["x", "w"], whole=True),
    "versions": lambda t: t.versions("w"),
    "versions' values": lambda t: [version.value for version in t.versions("w")],
    "at": lambda t: [t.at("w", 1).numpy().tolist(), t.at("w", 1).number, str(t.at("w", 1).shape)],
    "why": lambda t: t.why("after", "idle"),
    "why, several": lambda t: t.why("loss", {"a": "x", "b": ["idle", "w"]}),
    "first_nonfinite": lambda t: t.first_nonfinite(),
    "first_nonfinite of": lambda t: t.first_nonfinite("loss"),
    "summary": lambda t: t.summary(),
    "report": lambda t: t.report(loss="loss", title="it"),
    "report, several": lambda t: t.report(losses={"a": "loss", "b": "h"}).to_json(),
    "tensors": lambda t: t.tensors(op="MatMul"),
    "tensors, some": lambda t: [list(t.tensors()[1:3]), t.tensors(op="Nobody").found, t.tensors().found[0]],
    "value": lambda t: [t.value("loss"), t.value("w"), t.value(t["h"])],
    "value, words": lambda t: t["words"],
    "variables": lambda t: [[v.name, v.shape, v.dtype, v.trainable, v.numpy().tolist()] for v in t.variables],
    "program": lambda t: t.program,
    "names": lambda t: [t.names, list(t), [name in t for name in ("x", "m/w", "w", "nobody", "", 3, None)]],
    "replay": lambda t: t.replay({"x": [[1.0, 2.0]]}).gradient("loss", ["x", "w"]),
    "replay by pairs": lambda t: t.replay([(t["x"], [[1.0, 2.0]])]).value(t["loss"]),
    "size": lambda t: t.size() > 0,
}


@pytest.mark.parametrize("name", ASKED)
def test_the_same_results(path, both, name):
    loaded = (
        rt.load(path)
        if name in ("summary", "report", "report, several", "program", "tensors", "tensors, some")
        else both[1]
    )
    if loaded is not both[1]:  # asking about a gradient again adds to a program: both sides anew
        with rt.load(path, isolate=True, timeout=120.0) as held:
            return assert_equal(ASKED[name](held), ASKED[name](loaded))
    return assert_equal(ASKED[name](both[0]), ASKED[name](loaded))


def public(kind) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_public_method_is_answered_or_refused_with_a_reason():
    assert public(rt.LoadedTape) - public(rt.IsolatedTape) == set(REFUSED)
    assert public(rt.IsolatedTape) - public(rt.LoadedTape) == {"close", "confinement"}
    asked = {name.split(",")[0].split()[0].removesuffix("'") for name in ASKED}
    assert public(rt.LoadedTape) - set(REFUSED) == asked
    assert {*METHODS - {"__getitem__"}, *PROPERTIES, "names"} == asked
    page = " ".join((inspect.getdoc(rt.IsolatedTape) or "").lower().split())
    assert "only `save`, the exports and `compile` are refused" in page


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(both, name):
    reason = re.escape(REFUSED[name])
    with pytest.raises(AttributeError, match=rf"An isolated tape has no '{name}': {reason}.*`rt\.load\(path\)`"):
        getattr(both[0], name)
    with pytest.raises(AttributeError, match="no attribute 'gradeint'"):
        both[0].gradeint  # noqa: B018


def test_the_same_parameters():
    for name in public(rt.LoadedTape) - set(REFUSED) - PROPERTIES - {"names"}:
        got, want = (inspect.signature(getattr(kind, name)) for kind in (rt.IsolatedTape, rt.LoadedTape))
        assert list(got.parameters) == list(want.parameters)


def test_identity_is_kept(both):
    held = both[0]
    variable, tensor = held["w"], held["x"]
    assert held["w"] is variable
    assert held["x"] is tensor
    assert held.at("w", 0).variable is variable
    with pytest.raises(TypeError, match=r"known by name: `tape\['name'\]`; got 3"):
        held[3]
    with pytest.raises(TypeError, match="A tape is not pickled or copied"):
        held.__reduce__()
    assert repr(held).startswith("<isolated tape: ")


def test_a_tensor_of_somebody_else_is_none_of_the_tape(both):
    for tape in both:
        with pytest.raises(rt.errors.NotRecordedError, match="it was made in this process, and the tape was loaded"):
            tape.gradient(tf.constant([[0.5, -0.2]]), "x")


def test_what_no_query_takes_is_refused_here(both):
    held = both[0]
    with pytest.raises(TypeError, match="unexpected keyword argument 'trough_updates'"):
        held.gradient("loss", "x", trough_updates=True)
    with pytest.raises(TypeError, match="Got ResourceVariable, which cannot be sent to another process"):
        held.gradient("loss", tf.Variable(1.0))
    np.testing.assert_array_equal(held["x"], both[1]["x"])  # and it goes on


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models(name, tmp_path):
    tape, model, x, out, loss = run(name)
    tape.save(tmp_path / "a.tape", {"x": x, "out": out, "loss": loss})
    loaded, paths = rt.load(tmp_path / "a.tape"), [weight.path for weight in model.trainable_variables]
    vector = tf.ones(model.trainable_variables[-2].shape)
    with rt.load(tmp_path / "a.tape", isolate="strict", timeout=300.0) as held:
        for ask in (
            lambda t: [t["out"], t["loss"], t.gradient("loss", paths)],
            lambda t: t.backward("loss"),
            lambda t: t.hvp("loss", paths[-2], vector),
            lambda t: t.jacobian("out", paths[-1]),
            lambda t: [t.why("loss", path) for path in paths],
            lambda t: t.first_nonfinite(),
        ):
            assert_equal(ask(held), ask(loaded))
