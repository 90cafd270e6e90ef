"""The verbs take URLs."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from click.testing import CliRunner

fsspec = pytest.importorskip("fsspec", reason="the extra [fsspec] is not installed")

import retrotape as rt  # noqa: E402
from files.file_systems import empty_cache, put  # noqa: E402
from retrotape.cli import main  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "args",
    [
        ["show", "versioned://a.tape"],
        ["check", "versioned://a.tape"],
        ["grad", "versioned://a.tape", "y", "x"],
        ["why", "versioned://a.tape", "y", "x"],
        ["diff", "versioned://a.tape", "versioned://b.tape"],
    ],
    ids=lambda args: args[0],
)
def test_verbs(args: list[str]):
    for name in ("a", "b"):
        put(f"versioned://{name}.tape")
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 0, done.output
    if args[0] in ("show", "check"):
        assert "versioned://a.tape" in done.output


def test_nan():
    x = tf.constant(0.0)
    with rt.Tape() as tape:
        y = tf.math.log(x) * 0.0
    tape.save("memory://a.tape", x=x, y=y)
    done = CliRunner().invoke(main, ["nan", "memory://a.tape"])
    assert done.exit_code == 1, done.output
    assert "Log" in done.output


def test_a_verb_says_what_is_wrong_in_one_line(tmp_path: Path):
    done = CliRunner().invoke(main, ["show", "memory://none.tape"])
    assert done.exit_code == 1
    assert done.stderr.strip() == (
        "retrotape show: Cannot open memory://none.tape: it does not exist. "
        "Check the name, and that of the bucket or host."
    )
    put(str(tmp_path / "a.tape"))
    assert CliRunner().invoke(main, ["show", f"file://{tmp_path}/a.tape"]).exit_code == 0
