from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cli.making import spawn, write
from retrotape.cli import _verbs, main, show
from retrotape.errors import TapeUseError


def test_wrong_usage_is_one_line_and_says_where_help_is(run, saved):
    for arguments, told in {
        ("sho",): "retrotape: No such command 'sho'. ",
        ("--nonsense",): "retrotape: No such option '--nonsense'. ",
        ("show",): "retrotape show: Missing argument 'FILE'. For help: `retrotape show --help`.",
        ("show", saved["plain"], "--nonsense"): "retrotape show: No such option '--nonsense'. ",
        ("show", "none.tape"): "There is no 'none.tape'. Give what `tape.save` wrote, a file or a folder.",
        ("diff", saved["plain"], saved["plain"], "--atol", "-1"): "retrotape diff: Invalid value for '--atol'",
    }.items():
        done = run(*arguments)
        assert done.code == 2
        assert told in done.failure()


def test_a_failure_with_json_is_one_line_too(run, tmp_path):
    (tmp_path / "text.tape").write_text("hello")
    for verb in (("show",), ("grad", "loss"), ("show", "--ops")):
        done = run(verb[0], tmp_path / "text.tape", *verb[1:], "--json")
        assert done.code == 1
        assert "so it is not a tape" in done.failure()


def test_a_directory_that_is_no_tape(run, tmp_path):
    assert "it is a folder without tape.json" in run("show", tmp_path).failure()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(run, tmp_path):
    path = write(tmp_path / "secret.tape")
    path.chmod(0)
    assert run("show", path).code == 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(5, "Input/output error", "a.tape"), "Input/output error: 'a.tape'. Check the path"),
        (OSError(28, "No space left on device"), "No space left on device. Make room first."),
        (TapeUseError("Twice.\nNot once."), "Twice. Not once."),
        (
            ZeroDivisionError("x\x1b[2Jy"),
            "it failed with ZeroDivisionError: x\\x1b[2Jy. To see where: `RETROTAPE_DEBUG=1`.",
        ),
        (ValueError("long " * 1000), "it failed with ValueError: long long"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_fails_is_one_line(run, saved, monkeypatch, error, told):
    def fail(*args):
        raise error

    monkeypatch.setattr(show, "describe", fail)
    done = run("show", saved["plain"])
    assert done.code == 1
    assert f"retrotape show: {told}" in done.failure()
    assert len(done.err) < 1100


def test_the_traceback_is_there_for_whoever_asks(tmp_path):
    (tmp_path / "text.tape").write_text("hello")
    assert "Traceback" not in spawn("show", tmp_path / "text.tape").err
    script = [sys.executable, "-m", "retrotape", "show", str(tmp_path / "text.tape")]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env={**os.environ, _verbs.DEBUG: "1"})
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "CorruptTapeError" in done.stderr


@pytest.mark.parametrize("options", ["--ops", "--ops --json"])
def test_a_reader_that_goes_away_is_no_failure(tmp_path, options):
    lines = [f"%{n + 1} : float32[2] = Neg{{T=float32}}(%{n}) @{n}" for n in range(5000)]
    places = [f'@{n} = "steps.py":{n} in "step"' for n in range(5000)]
    path = write(tmp_path / "long.tape", "\n".join(["%0 : float32[2]", *lines, *places]), names={})
    command = f"{sys.executable} -m retrotape show {path} {options} | head -c 10"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # which hides short writes
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=env)
    assert done.stderr == ""
    assert len(done.stdout) == 10


def test_a_name_that_the_terminal_cannot_show(tmp_path):
    path = write(tmp_path / "name.tape", names={"größe✓": {"var": 0}})
    script = [sys.executable, "-m", "retrotape", "show", str(path)]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xf6\\xdfe\\u2713" in done.stdout


def test_interrupts_are_not_failures(saved, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "describe", interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["show", str(saved["plain"])])
    assert ended.value.code == 1


def test_a_verb_that_is_nearly_right(run):
    assert "No such command 'graad'. Did you mean 'grad'? The verbs are show, grad, why" in run("graad").failure()
    assert "Did you mean" not in run("zzz").failure()


def test_a_name_that_is_nearly_right(run, saved):
    assert "nothing named 'los'; its names are" in run("grad", saved["plain"], "los").failure()
    assert "Did you mean 'loss'?" in run("grad", saved["plain"], "los").failure()
