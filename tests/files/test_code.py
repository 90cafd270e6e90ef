"""The text of the lines that ran the ops: it is saved, and shown where the source is not."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest
import tensorflow as tf

import retrotape as rt

PROGRAM = """
import tensorflow as tf
import retrotape as rt

def record(w):
    with rt.Tape() as tape:
        hidden = tf.stop_gradient(w) * 2.0  # a remark
        loss = tf.reduce_sum(tf.math.log(hidden * 0.0))
    return tape, loss
"""
W = tf.Variable([1.0, 2.0], name="w")


@pytest.fixture
def saved(tmp_path) -> Path:
    """A tape whose source is gone."""
    source = tmp_path / "step.py"
    source.write_text(PROGRAM)
    scope: dict = {}
    exec(compile(PROGRAM, str(source), "exec"), scope)
    tape, loss = scope["record"](W)
    tape.save(tmp_path / "with.tape", loss=loss)
    tape.save(tmp_path / "without.tape", loss=loss, code=False)
    source.unlink()
    linecache.clearcache()
    return tmp_path


def test_explanations_show_it(saved):
    tape = rt.load(saved / "with.tape")
    assert "hidden = tf.stop_gradient(w) * 2.0  # a remark" in str(tape.why("loss", "w"))
    found = tape.first_nonfinite("loss")
    assert found.code == "loss = tf.reduce_sum(tf.math.log(hidden * 0.0))"
    assert found.code in str(found)
    assert found.to_json()["code"] == found.code


def test_it_can_be_left_out(saved):
    tape = rt.load(saved / "without.tape")
    assert "remark" not in str(tape.why("loss", "w"))
    assert tape.first_nonfinite("loss").code == ""
    assert b"remark" not in (saved / "without.tape").read_bytes()
    assert {line.code for line in tape.report().lines} == {""}


def test_isolated_tapes_show_it(saved):
    with rt.load(saved / "with.tape", isolate=True) as tape:
        assert tape.first_nonfinite("loss").code == "loss = tf.reduce_sum(tf.math.log(hidden * 0.0))"
        assert tape.why("loss", "w").cut.code.startswith("hidden =")


def test_it_is_saved_again_and_joined(saved):
    tape = rt.load(saved / "with.tape")
    tape.save(saved / "again.tape")
    assert "remark" in str(rt.load(saved / "again.tape").why("loss", "w"))
    assert "remark" in str(tape.replay({"w": [3.0, 4.0]}).why("loss", "w"))


def test_the_text_of_the_file_is_shown_and_not_that_of_today(saved):
    (saved / "step.py").write_text("# changed\n" * 20)
    assert "remark" in str(rt.load(saved / "with.tape").why("loss", "w"))


def test_a_strangers_tape_takes_no_line_of_this_machine_along(saved):
    """A tape may name any file; what is saved or reported may be sent back to who made it."""
    (saved / "step.py").write_text("secret = 1\n" * 20)
    tape = rt.load(saved / "without.tape")
    tape.save(saved / "again.tape")
    assert b"secret" not in (saved / "again.tape").read_bytes()
    assert "secret" not in tape.report().html()


def test_a_name_code_is_still_possible(tmp_path):
    with rt.Tape() as tape:
        y = W * 2.0
    with pytest.raises(
        TypeError, match=r"code= takes True or False, got EagerTensor. As a name: `names=\{'code': ...\}`"
    ):
        tape.save(tmp_path / "it.tape", code=y)
    tape.save(tmp_path / "it.tape", {"code": y})
    assert "code" in rt.load(tmp_path / "it.tape")
