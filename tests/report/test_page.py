"""The page as text: what a browser is not needed for."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import keras
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.report._charts import Scale, chart_of, number, scale_of, spark, text_of
from retrotape.report._data import Finding, Stats
from retrotape.report._page import _flow_rows, _with_code
from retrotape.report._report import write_page


@pytest.fixture(scope="module")
def page(report) -> str:
    return report.html()


def test_nothing_is_fetched(page):
    urls = set(re.findall(r"""(?:src|href|action|url)\s*[=(]\s*["']?([^"'\s>)]+)""", page))
    assert {url for url in urls if not url.startswith("#")} == {"data:,"}
    assert "@import" not in page


def hashes(page: str, element: str) -> list[str]:
    texts = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
    return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]


def test_the_policy_allows_its_own_style_and_script_only(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1].replace("&#39;", "'")
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["default-src"] == "'none'"
    assert [parts["style-src"]] == hashes(page, "style")
    assert [parts["script-src"]] == hashes(page, "script")
    assert " style=" not in page  # it would be ignored


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_data_are_those_of_the_report(page, report):
    data = data_of(page)
    assert [data["names"][n] for n in data["name"]] == [op.name for op in report.ops]
    assert [data["types"][n] for n in data["type"]] == [op.output for op in report.ops]
    assert data["place"] == [op.place for op in report.ops]
    assert data["line"] == [op.line for op in report.ops]
    assert data["lines"][0][3] == "logits = model(x, training=True)"


HOSTILE = "</script><script>alert(1)</script><!--"


def test_hostile_text_is_escaped_everywhere(report):
    line = replace(report.lines[0], file=f"{HOSTILE}.py", function=HOSTILE, code=HOSTILE)
    changed = replace(
        report,
        title=HOSTILE,
        notes=(HOSTILE,),
        frozen=(HOSTILE,),
        lines=(line, *report.lines[1:]),
        places=tuple(replace(one, name=f"{HOSTILE}/{n}", output=HOSTILE) for n, one in enumerate(report.places)),
        weights=tuple(replace(one, name=HOSTILE, reason=HOSTILE, state="none") for one in report.weights),
        histories=tuple(replace(one, name=HOSTILE) for one in report.histories),
        losses=tuple(replace(one, name=HOSTILE, how=HOSTILE, line=line) for one in report.losses),
        memory=tuple(replace(one, line=line) for one in report.memory),
        ops=tuple(replace(op, name=HOSTILE) for op in report.ops[:5]),
    )
    page = changed.html()
    assert HOSTILE not in page
    assert page.count("<script") == 2
    assert data_of(page)["names"] == [HOSTILE]
    assert "&lt;script&gt;alert(1)" in page


def test_names_that_are_long_or_no_text():
    w = tf.Variable(1.0, name="ünï/漢字" + "x" * 5000)
    with rt.Tape() as tape:
        loss = w * w
    report = tape.report(loss=loss)
    odd = replace(report, title="half a pair: \udc80")
    assert "漢字" in report.html()
    assert "half a pair" in odd.html()


def test_half_of_a_surrogate_pair_is_written(tmp_path, report):
    replace(report, title="\udc80").save(tmp_path / "it.html")
    assert "\\udc80" in (tmp_path / "it.html").read_text(encoding="utf-8")


def test_a_new_page_has_the_usual_permissions_and_an_old_one_keeps_its_own(tmp_path):
    before = os.umask(0o027)
    try:
        write_page(tmp_path / "new.html", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.html").stat().st_mode) == 0o640
    (tmp_path / "new.html").chmod(0o600)
    write_page(tmp_path / "new.html", "newer")
    assert stat.S_IMODE((tmp_path / "new.html").stat().st_mode) == 0o600
    assert (tmp_path / "new.html").read_text() == "newer"


def test_no_link_is_followed(tmp_path, monkeypatch):
    """Not even one under the name that is used while the page is written."""
    monkeypatch.setattr(os, "urandom", bytes)
    link = tmp_path / f".retrotape-{os.getpid()}-{'00' * 8}.tmp"
    (tmp_path / "precious").write_text("precious")
    link.symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError):
        write_page(tmp_path / "it.html", "page")
    assert (tmp_path / "precious").read_text() == "precious"
    assert link.is_symlink()


def test_threads_that_write_the_same_page(tmp_path):
    pages = [str(number) * 200_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda page: [write_page(tmp_path / "it.html", page) for _ in range(20)], pages))
    assert (tmp_path / "it.html").read_text() in pages
    assert os.listdir(tmp_path) == ["it.html"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no folder '.*/none'\. Create it first: `os\.makedirs\("):
        write_page(tmp_path / "none" / "it.html", "page")


def test_a_file_is_replaced_as_a_whole(tmp_path, report, monkeypatch):
    path = tmp_path / "it.html"
    path.write_text("before")
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            report.save(path)
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["it.html"]
    report.save(path)
    assert path.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("build", ["empty", "one op", "no loss", "nan"])
def test_pages_of_little(build):
    with rt.Tape() as tape:
        if build == "one op":
            tf.reduce_sum(tf.constant([1.0, 2.0]))
        if build == "no loss":
            tf.constant([1.0, 2.0]) * 2.0
        if build == "nan":
            tf.reduce_sum(tf.constant([float("nan")]) * 2.0)
    page = tape.report().html()
    assert page.rstrip().endswith("</html>")
    assert ("Say what to differentiate" in page) == (build in ("empty", "no loss"))


def test_many_layers_are_folded(tmp_path):
    keras.utils.set_random_seed(1)
    blocks = [keras.Sequential([keras.layers.Dense(3) for _ in range(9)], name=f"block{n}") for n in range(9)]
    model = keras.Sequential(blocks, name="model")
    x = tf.ones([2, 3])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(x))
    report = tape.report(loss=loss)
    chart = chart_of(report)
    assert chart.depth == 1  # blocks, not the 81 layers inside
    assert [label for label, _ in chart.labels][:2] == ["block0", "block1"]
    assert 'data-open="1"' in report.html()


def test_labels_of_many_layers_are_thinned():
    dense = [keras.layers.Dense(3, name=f"dense{number}") for number in range(40)]
    x = tf.ones([2, 3])
    with rt.Tape() as tape:
        for layer in dense:
            x = layer(x)
        loss = tf.reduce_sum(x)
    chart = chart_of(tape.report(loss=loss))
    labels = [label for label, _ in chart.labels]
    assert len(chart.series[0].points) == 41
    assert len(labels) == 21
    assert labels[-2] == "dense38"
    assert labels[-1].startswith("test_page.py:")  # the loss
    assert chart.groups == ()


def test_blocks_are_marked_above_the_chart():
    blocks = [keras.Sequential([keras.layers.Dense(3) for _ in range(4)], name=f"block{n}") for n in range(3)]
    model, x = keras.Sequential([*blocks, keras.layers.Dense(1, name="head")], name="model"), tf.ones([2, 3])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(x))
    report = tape.report(loss=loss)
    chart = chart_of(report)
    assert [group.title for group in chart.groups] == ["block0", "block1", "block2"]
    xs = [point.x for point in chart.series[0].points]
    for first, group in zip((0, 4, 8), chart.groups, strict=True):
        inside = [n for n, x in enumerate(xs) if group.left <= x <= group.right]
        assert inside == list(range(first, first + 4))
    assert report.html().count('<g class="bracket">') >= 3


def test_a_layer_with_two_problems_has_both_marks(report):
    found = [Finding(kind, "warning", "title", "sentence", "remedy", places=(0, 2)) for kind in ("vanishing", "dead")]
    marks = {row["number"]: list(row["marks"]) for row in _flow_rows(replace(report, findings=tuple(found)))}
    assert marks[0] == marks[2] == ["vanishing", "dead"]
    assert marks[1] == []


def test_the_flow_of_several_losses_is_that_of_their_sum():
    w = tf.Variable([1.0, 2.0], name="w")
    with rt.Tape() as tape:
        losses = [tf.reduce_sum(w * scale) for scale in (1.0, 2.0, 3.0, 4.0)]
    assert (
        "And 1 more. The gradient flow below is that of the sum of all 4 losses." in tape.report(losses=losses).html()
    )
    assert "The gradient flow below is that of the sum of all 2 losses." in tape.report(losses=losses[:2]).html()
    assert "below is that of the sum" not in tape.report(loss=losses[0]).html()


def test_scales():
    scale = scale_of([1e-6, 1e2, 0.0])
    assert scale == Scale(-6, 3)
    assert [scale.share(value) for value in (1e-6, 1e3, 0.0, 1e9)] == [0.0, 1.0, 0.0, 1.0]
    assert scale.ticks()[0] == ("1e-6", 0.0)
    assert scale_of([]) == Scale(-1, 1)
    assert scale_of([1e-300, 1.0]).low >= -40
    assert scale_of([1.0]) == Scale(0, 1)


def test_texts():
    assert number(1.23456e-8) == "1.23e-08"
    assert text_of(Stats(3.0, 1.5, 4, 0)) == "1.5"
    assert text_of(Stats(3.0, 1.5, 4, 1), "norm") == "3 and 1 not finite"
    assert text_of(Stats(0.0, 0.0, 4, 4)) == "not finite"
    assert spark([1.0]) == spark([None, 1.0]) == ""
    assert spark([1.0, None, 10.0]).count(",") == 2


def test_what_stands_between_backticks_is_code():
    assert str(_with_code("Use `x < 1` or `<b>`.")) == "Use <code>x &lt; 1</code> or <code>&lt;b&gt;</code>."
    assert str(_with_code("a ` alone & <i>")) == "a ` alone &amp; &lt;i&gt;"


CONTROLS = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]"


def test_no_name_steers_a_terminal_or_turns_text_around(tmp_path):
    """Names of files, functions, variables, losses and layers: everywhere in the page, in its data too."""
    bad = "\x1b[2J\u202egnp.exe\u2066\x9b"
    space = {"tf": tf, "w": tf.Variable([1.0, 2.0], name="w")}
    exec(compile("def f(): return tf.reduce_sum(tf.nn.softmax(w) * w)", f"model{bad}.py", "exec"), space)
    space["f"].__code__ = space["f"].__code__.replace(co_name="f" + bad)
    layer = keras.layers.Dense(2, name="it's" + bad)
    with rt.Tape() as tape:
        loss = space["f"]() + tf.reduce_sum(layer(tf.ones([1, 2])))
    tape.save(tmp_path / "a.tape", {"loss" + bad: loss, "w" + bad: space["w"]})
    reports = [tape.report(losses={"loss" + bad: loss}, title=bad), rt.load(tmp_path / "a.tape").report(title=bad)]
    for report in reports:
        html = report.html()
        assert re.findall(CONTROLS, html) == []
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html).group(1)
        assert [one for one in _texts_in(json.loads(data)) if re.search(CONTROLS, one)] == []
        assert "\\x1b[2J\\u202egnp.exe\\u2066\\x9b" in html
        assert "it&#39;s" in html  # what can be shown is shown as it is


def _texts_in(value):
    if isinstance(value, (list, dict)):
        return [one for item in (value.values() if isinstance(value, dict) else value) for one in _texts_in(item)]
    return [value] if isinstance(value, str) else []
