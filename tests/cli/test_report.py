from __future__ import annotations

import os
import re

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.cli import report as verb


def test_a_page_beside_the_tape(run, saved):
    done = run("report", saved["plain"])
    target = saved["plain"].with_suffix(".html")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(rf"{re.escape(str(target))}: 0 findings, \d+\.\d kB\n", done.out)
    page = target.read_text()
    assert "<h1>plain.tape</h1>" in page
    assert "hidden = tf.nn.relu(x @ w + b)" in page
    target.unlink()


def test_elsewhere_and_as_json(run, saved, tmp_path):
    found = run("report", saved["plain"], "-o", tmp_path / "it.html", "--json").json()
    assert found["output"] == str(tmp_path / "it.html")
    assert found["losses"][0]["name"] == "loss"
    norms = {one["name"]: one["gradient"]["norm"] for one in found["weights"]}
    grads = rt.load(saved["plain"]).gradient("loss", {"w": "w", "b": "b"})
    assert norms == pytest.approx({name: float(tf.norm(grad)) for name, grad in grads.items()}, rel=1e-5)
    assert found["difference"] is None
    assert os.path.getsize(tmp_path / "it.html") > 10_000


def test_a_loss_by_name(run, saved, tmp_path):
    options = ("-o", tmp_path / "it.html", "--json")
    one = run("report", saved["plain"], "--loss", "hidden", *options).json()
    assert [(loss["name"], loss["type"]) for loss in one["losses"]] == [("hidden", "float32[2,2]")]
    two = run("report", saved["plain"], "--loss", "hidden", "--loss", "loss", *options).json()
    assert [loss["name"] for loss in two["losses"]] == ["hidden", "loss"]
    assert len(two["cosines"]) == 1
    assert "'hiden'" in run("report", saved["plain"], "--loss", "hiden").failure()


def test_two_tapes(run, saved, tmp_path):
    done = run("report", saved["plain"], saved["moved"], "-o", tmp_path / "it.html", "--json")
    assert done.json()["difference"]["leaves"][0]["name"] == "x"
    page = (tmp_path / "it.html").read_text()
    assert "Comparison" in page
    assert "The programs are the same" in page
    assert re.search(
        r"<li>Their inputs differ:<ul><li><code>x: max abs [0-9.]+, max rel [^<]* elements</code></li></ul>", page
    )
    assert re.search(r"<li>The first value that differs is that of equation [^<]*:<ul><li><code>%\d+ : ", page)
    assert "Gradient, second" in page


def test_gradients_side_by_side(tmp_path):
    from retrotape.cli._reports import _gradients

    x, reports = tf.constant([1.0, 2.0]), []
    same, more, bad = (tf.Variable([1.0, 1.0], name=name) for name in ("same", "more", "bad"))
    for scale, base in ((1.0, [1.0, 4.0]), (3.0, [0.0, 4.0])):
        bad.assign(base)
        with rt.Tape() as tape:
            loss = tf.reduce_sum(same * x) + scale * tf.reduce_sum(more * x) + tf.reduce_sum(tf.sqrt(bad))
        reports.append(tape.report(loss=loss))
    rows = {row["name"]: (row["first"], row["second"], row["ratio"]) for row in _gradients(*reports)}
    assert rows["same"] == ("2.24", "2.24", "1")
    assert rows["more"] == ("2.24", "6.71", "3")
    assert rows["bad"] == ("0.559", "0.25 and 1 not finite", "nan")
    assert list(rows) == ["bad", "more", "same"]


def test_the_same_tape_twice(run, saved, tmp_path):
    done = run("report", saved["plain"], saved["again"], "-o", tmp_path / "it.html", "--json")
    assert done.json()["difference"]["same"] is True
    assert "Their values are the same." in (tmp_path / "it.html").read_text()


def test_isolated(run, saved, tmp_path):
    plain, held = tmp_path / "plain.html", tmp_path / "held.html"
    assert run("report", saved["plain"], "-o", plain).code == 0
    assert run("report", saved["plain"], "-o", held, "--isolate").code == 0
    assert held.read_text() == plain.read_text()


def test_numbers_that_json_has_not(run, tmp_path):
    w = tf.Variable(0.0, name="w")
    with rt.Tape() as tape:
        loss = tf.math.log(w)
    tape.save(tmp_path / "bad.tape", loss=loss)
    found = run("report", tmp_path / "bad.tape", "--json").json()
    assert found["losses"][0]["value"] == "-inf"
    assert found["findings"][0]["kind"] == "nan"


def test_it_is_opened(run, saved, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(verb.click, "launch", opened.append)
    run("report", saved["plain"], "-o", tmp_path / "it.html", "--open")
    assert opened == [str(tmp_path / "it.html")]


def test_what_it_refuses(run, saved, tmp_path):
    assert "There is no folder" in run("report", saved["plain"], "-o", tmp_path / "no" / "it.html").failure()
    tape = tmp_path / "it.tape"
    tape.write_bytes(saved["plain"].read_bytes())
    assert "is the tape itself. Give another file: `-o report.html`." in run("report", tape, "-o", tape).failure()
    assert "There is no" in run("report", tmp_path / "none.tape").failure()
