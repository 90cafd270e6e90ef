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
    assert first == "gradient of 'loss' (float32[]) by 'w' (float32[]): stop gradient"
    told = json.loads(run("why", file, "loss", "x", "--json").stdout)
    assert (told["target"], told["source"]) == ("'loss' (float32[])", "'x' (float32[2])")


def test_nan_names_the_culprit(path):
    file, _, culprit = path
    ran = run("nan", file, "loss")
    assert ran.exit_code == 0
    assert "Sqrt" in ran.stdout
    told = json.loads(run("nan", file, "loss", "--json").stdout)
    assert told["found"]["op"] == culprit.op == "Sqrt"
    assert run("nan", file).stdout == "everything is finite\n"


def test_a_wrong_name_is_one_line(path):
    ran = run("why", path[0], "loss", "nobody")
    assert ran.exit_code == 1
    assert "nothing named 'nobody'" in ran.stderr
    assert ran.stderr.count("\n") == 1
