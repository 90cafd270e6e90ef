"""`retrotape why` and `retrotape nan` answer on saved tapes, without the code that made them."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf
from click.testing import CliRunner

import retrotape as rt
from retrotape.cli import main


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    w, x = tf.Variable(2.0, name="w"), tf.constant([0.0, 1.0])
    with rt.Tape() as tape:
        loss = tf.stop_gradient(w) * tf.reduce_sum(tf.sqrt(x))
    target = tmp_path_factory.mktemp("tapes") / "a.tape"
    tape.save(target, {"x": x, "loss": loss})
    return str(target), tape.why(loss, w), tape.first_nonfinite(loss)


def run(*words: str):
    return CliRunner().invoke(main, list(words))


def test_why_says_what_the_tape_says(path):
    file, explanation, _ = path
    ran = run("why", file, "loss", "w")
    assert ran.exit_code == 0
    assert "StopGradient" in ran.stdout
    assert explanation.verdict.sentence in ran.stdout
    told = json.loads(run("why", file, "loss", "w", "--json").stdout)
    assert told["verdict"] == "STOP_GRADIENT"
    assert told["cut"]["line"] == explanation.cut.frame.line


def test_why_calls_things_by_their_names(path):
    file, _, _ = path
    first = run("why", file, "loss", "w").stdout.splitlines()[0]
    assert first == "gradient of 'loss' (float32[]) with respect to 'w' (float32[]): stop gradient"
    told = json.loads(run("why", file, "loss", "x", "--json").stdout)
    assert (told["target"], told["source"]) == ("'loss' (float32[])", "'x' (float32[2])")


def test_nan_names_the_culprit(path):
    file, _, culprit = path
    for words in (("loss",), ()):  # also without a target, for the loss is a scalar
        ran = run("nan", file, *words)
        assert ran.exit_code == 1
        assert "Sqrt" in ran.stdout
        told = json.loads(run("nan", file, *words, "--json").stdout)
        assert told["found"]["op"] == culprit.op == "Sqrt"
        assert told["backward"]


def test_nan_says_that_there_is_none(tmp_path):
    x = tf.constant([1.0, 4.0])
    with rt.Tape() as tape:
        root = tf.sqrt(x)
        loss = tf.reduce_sum(root)
    tape.save(tmp_path / "a.tape", {"loss": loss})
    ran = run("nan", str(tmp_path / "a.tape"))
    assert (ran.exit_code, ran.stdout) == (0, "everything is finite\n")


def test_nan_says_that_it_checked_forward_only(tmp_path):
    x = tf.constant([0.0, 4.0])
    with rt.Tape() as tape:
        root = tf.sqrt(x)
    path = str(tmp_path / "a.tape")
    tape.save(path, {"root": root})
    ran = run("nan", path)
    assert ran.exit_code == 0
    assert ran.stdout.replace("\n", " ").strip() == (
        "every value is finite; no gradient was checked, as the tape has no floating scalar: name a TARGET"
    )
    assert json.loads(run("nan", path, "--json").stdout) == {
        "path": path,
        "target": None,
        "backward": False,
        "found": None,
    }
    assert run("nan", path, "root").exit_code == 1


def test_nan_has_exit_code_2_for_trouble(tmp_path):
    (tmp_path / "b.tape").write_bytes(b"no tape")
    assert run("nan", str(tmp_path / "b.tape")).exit_code == 2


def test_a_wrong_name_is_one_line(path):
    ran = run("why", path[0], "loss", "nobody")
    assert ran.exit_code == 1
    assert "nothing named 'nobody'" in ran.stderr
    assert ran.stderr.count("\n") == 1
