from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import MissingPackageError


def test_the_flow(trained, report, tmp_path):
    tape, loss, _ = trained
    figure = tape.plot(tmp_path / "flow.png", loss=loss)
    assert (tmp_path / "flow.png").read_bytes().startswith(b"\x89PNG")
    above, below = figure.axes
    returned, gradient = above.get_lines()
    inner = [one for one in report.flow if one.forward and one.backward]
    leaves = {one.place for one in inner} - {report.places[one.place].outer for one in inner}
    wanted = [one.backward.rms for one in inner if one.place in leaves]
    assert gradient.get_ydata() == pytest.approx(wanted, rel=1e-4)
    assert len(returned.get_ydata()) == len(wanted)
    assert above.get_yscale() == "log"
    widths = [bar.get_width() for bar in below.patches]
    assert widths == pytest.approx([one.gradient.norm for one in report.weights], rel=1e-4)
    assert [label.get_text() for label in below.get_yticklabels()][-1] == "head/bias"


def test_what_is_not_a_number_is_written():
    a, b, c, d = (tf.Variable(1.0, name=name) for name in "abcd")
    grads = rt.Gradients([(a, tf.constant(2.0)), (b, None), (c, tf.constant(0.0)), (d, tf.constant(np.nan))])
    (axes,) = grads.plot().axes
    assert [text.get_text() for text in axes.texts] == ["None", "0", "not finite"]
    assert axes.patches[0].get_width() == 2.0
    assert all(np.isnan(bar.get_width()) for bar in axes.patches[1:])


def test_many_are_cut():
    grads = rt.Gradients([(tf.Variable(1.0, name=f"v{n}"), tf.constant(1.0)) for n in range(100)])
    (axes,) = grads.plot().axes
    assert len(axes.patches) == 80
    assert axes.get_title(loc="left") == "Norm of the gradient, 20 more not shown"


def test_nothing():
    with rt.Tape() as tape:
        pass
    assert len(tape.plot().axes) == 2
    assert len(rt.Gradients([]).plot().axes) == 1


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = re.escape('A plot needs Matplotlib, which is not installed: `pip install "retrotape[plot]"`')
    with pytest.raises(MissingPackageError, match=text):
        rt.Gradients([]).plot()
