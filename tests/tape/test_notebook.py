"""Tapes, and what they return, in a notebook and as text."""

from __future__ import annotations

import threading
from html.parser import HTMLParser
from typing import Any

import keras
import pytest
import tensorflow as tf

import retrotape as rt

HOSTILE = "<script>alert('x')</script>&\"ü"


class Checker(HTMLParser):
    """Collects tags and text, and notes what a notebook should not be given."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in ("script", "style", "link", "iframe", "img", "object")
        for name, value in attrs:
            assert name in ("style", "colspan"), name
            assert "url(" not in (value or "")
            for part in (value or "").split(";"):  # only colours that any page has
                if part.startswith(("color:", "background:")):
                    assert part.partition(":")[2] in ("inherit", "transparent", "currentColor")
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(shown: str) -> Checker:
    """Return what a browser would show, after checks of the HTML."""
    checker = Checker()
    checker.feed(shown)
    checker.close()
    assert checker.open == []
    return checker


def text(thing: Any) -> str:
    return "\n".join(read(thing._repr_html_()).texts)


@pytest.fixture(scope="module")
def recorded():
    w = tf.Variable([[2.0], [1.0]], name=HOSTILE)
    x = tf.constant([[1.0, 2.0]])
    with rt.Tape() as tape:
        hidden = keras.layers.Dense(2, name="dense")(x @ w)
        loss = tf.reduce_sum(hidden**2) + tf.stop_gradient(w)[0, 0]
        w.assign_add(w)
    return tape, w, loss


@pytest.fixture(scope="module")
def loaded(recorded, tmp_path_factory):
    tape, _, loss = recorded
    path = tmp_path_factory.mktemp("tapes") / "a.tape"
    tape.save(path, {"loss": loss, f"x{HOSTILE}": loss})
    return rt.load(path)


def things(recorded, loaded) -> dict[str, Any]:
    tape, w, loss = recorded

    @rt.compile
    def step(x):
        return x * w

    step(tf.constant(1.0))
    with rt.Tape() as bad:
        tf.math.log(tf.constant(0.0) * w)
    return {
        "live": tape,
        "loaded": loaded,
        "joined": rt.join(tape, bad),
        "replayed": tape.replay([(w, [[1.0], [1.0]])]),
        "explanation": tape.why(loss, w),
        "nonfinite": bad.first_nonfinite(),
        "summary": tape.summary(),
        "tensors": tape.tensors(),
        "memory": tape.memory(),
        "program": tape.program,
        "gradients": tape.backward(loss),
        "accumulated": rt.accumulate(lambda part: tf.reduce_sum(part * w), [tf.constant([1.0])]),
        "compiled": step,
        "recordings": step.recordings(),
        "row": tape.summary().rows[0],
        "line": tape.memory().lines[0],
        "found": tape.tensors().found[0],
        "report": tape.report(loss=loss),
        "version": tape.at(w, 0),
    }


NAMES = [
    *("live", "loaded", "joined", "replayed", "explanation", "nonfinite", "summary", "tensors", "memory", "program"),
    *("gradients", "accumulated", "compiled", "recordings", "report", "version"),
]


@pytest.mark.parametrize("name", NAMES)
def test_html_is_plain_and_escaped(name, recorded, loaded):
    thing = things(recorded, loaded)[name]
    checker = read(thing._repr_html_())
    assert checker.tags
    assert "".join(checker.texts).strip()


@pytest.mark.parametrize("name", [*NAMES, "row", "line", "found"])
def test_no_dump_of_fields(name, recorded, loaded):
    shown = repr(things(recorded, loaded)[name])
    for dumped in (
        "Row(",
        "Line(",
        "Memory(",
        "Summary(",
        "Frame(",
        "Found(",
        "Accumulated(",
        "Program(",
        "object at 0x",
    ):
        assert dumped not in shown
    assert shown.strip()


def test_hostile_names_are_text(recorded, loaded):
    tape, _, loss = recorded
    assert HOSTILE in text(loaded)
    assert HOSTILE in text(tape.backward(loss))
    assert "alert" in text(tape.why(loss, tape.watched_variables()[0]))


def test_what_would_turn_the_text_around_is_shown_as_an_escape():
    v = tf.Variable(1.0)
    grads = rt.Gradients([(v, None)], [(v, "a\u202eb\ud800c")])
    shown = grads._repr_html_()
    assert r"a\u202eb\ud800c" in text(grads)
    shown.encode()  # a lone surrogate would raise


def test_a_tape_shows_its_summary_and_its_program(recorded):
    tape = recorded[0]
    shown = text(tape)
    assert repr(tape) in shown
    assert "MatMul" in shown
    assert f"program: {len(tape.program.eqns)} equations" in shown
    assert read(tape._repr_html_()).tags.count("details") == 2


def test_a_report_shows_its_findings_and_norms():
    w, cut = tf.Variable([3.0, 4.0], name="w"), tf.Variable(1.0, name=HOSTILE)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w**2) + tf.stop_gradient(cut)
    shown = text(tape.report(loss=loss, title="step 3"))
    assert shown.startswith("step 3: ")
    for part in ("No gradient: 1 variable", "`tf.stop_gradient` cuts the path.", "test_notebook.py:", "Remove it"):
        assert part in shown
    assert "\n10\n" in shown  # a norm
    assert "nothing wrong" not in shown
    with rt.Tape() as tape:
        tf.reduce_sum(w**2)
    assert "nothing wrong was found in what leads to the loss; checked: NaN" in text(tape.report())


def test_versions_show_which_value_they_are():
    w = tf.Variable([1.0, 2.0], name="w")
    with rt.Tape() as tape:
        w.assign_add([1.0, 1.0])
        w.assign_add([1.0, 1.0])
    assert repr(tape.versions(w)) == (
        "(<w:0, value 0 of 3 (on entry): float32[2]>, <w:0, value 1 of 3: float32[2]>, "
        "<w:0, value 2 of 3 (the last): float32[2]>)"
    )
    assert text(tape.at(w, 1)).split("\n") == ["variable", "value", "type", "w:0", "1 of 3", "float32[2]"]


def test_a_loaded_tape_shows_its_names(loaded):
    shown = text(loaded)
    assert "names: " in shown
    assert "loss" in shown


def test_numbers_are_those_of_the_text(recorded):
    tape = recorded[0]
    summary = tape.summary()
    assert f"{summary.ops} ops, {summary.kept} values kept" in text(summary)
    assert repr(summary.rows[0]).startswith("<")
    memory = tape.memory()
    assert repr(memory) == str(memory)
    assert str(memory.lines[0].frame) in text(memory)
    assert f"{len(tape.tensors())} tensors" in text(tape.tensors())


def test_long_programs_are_cut():
    x = tf.constant(1.0)
    with rt.Tape() as tape:
        for _ in range(450):
            x = x + 1.0
    shown = text(tape.program)
    assert f"… {len(tape.program.eqns) - 200} more" in shown
    assert shown.count("AddV2") <= 201
    assert len(tape._repr_html_()) < 60_000
    assert repr(tape.program).startswith(f"<program: {len(tape.program.eqns)} equations")
    assert "… 430 more of 450 tensors" in text(tape.tensors(op="AddV2"))


# ------------------------------------------------------------------ tapes in every state


def test_a_tape_that_was_never_entered():
    assert text(rt.Tape()) == "<tape: nothing recorded>"


def test_an_empty_tape_and_one_that_was_reset():
    with rt.Tape() as tape:
        pass
    assert text(tape) == "<tape: 0 equations>"
    tape.reset()
    assert text(tape) == "<tape: 0 equations>"


def test_open_and_paused_tapes_are_not_changed_by_looking():
    w = tf.Variable(2.0)
    with rt.Tape() as tape:
        y = w * w
        before = len(tape.program.eqns)
        assert ", recording>" in text(tape)
        with tape.stop_recording():
            assert "Mul" in text(tape)
        assert len(tape.program.eqns) == before
        z = y * 3.0
    assert float(tape.gradient(z, w)) == 12.0


def test_a_tape_inside_a_function():
    shown = []

    @tf.function
    def step(x):
        with rt.Tape() as tape:
            y = x * x
        shown.append(text(tape))
        grads = tape.backward(y, [x])
        shown.append(text(grads))
        return grads.norm()

    step(tf.constant(2.0))
    assert shown[0].startswith("<tape: ")
    assert shown[1] == "<Gradients of 1 variables, symbolic>"


def test_a_tape_that_is_queried_on_another_thread():
    with rt.Tape() as tape:
        tf.constant(1.0) + 1.0
    tape._lock.acquire()
    try:
        found = []
        thread = threading.Thread(target=lambda: found.append(text(tape)))
        thread.start()
        thread.join(20)
        assert found == ["<tape: 1 equations>"]
    finally:
        tape._lock.release()


def test_symbolic_accumulated():
    w, shown = tf.Variable(2.0), []

    @tf.function
    def step(x):
        found = rt.accumulate(lambda part: tf.reduce_sum(part * w), [x])
        shown.extend([repr(found), text(found)])
        return found.loss

    step(tf.constant([1.0]))
    assert shown[0].startswith("loss symbolic, size 1\n")
    assert "symbolic" in shown[1]


def test_an_isolated_tape(tmp_path):
    w = tf.Variable(2.0, name=HOSTILE)
    with rt.Tape() as tape:
        loss = w * w
    tape.save(tmp_path / "a.tape", loss=loss)
    with rt.load(tmp_path / "a.tape", isolate=True) as held:
        assert HOSTILE in text(held)
        assert "network: " in text(held)
        assert "<isolated tape: " in text(held)
