from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import click
import pytest
from click.testing import CliRunner

from cli.making import spawn
from retrotape import __version__
from retrotape.cli import main
from retrotape.cli._verbs import SUMMARIES

TENSORFLOW = "tensorflow", "keras", "numpy", "rich"


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), *((verb, "--help") for verb in SUMMARIES)], ids=str)
def test_help_needs_no_tensorflow(arguments):
    done = spawn(*arguments, after=f"assert not {set(TENSORFLOW)} & set(sys.modules)")
    assert (done.code, done.err) == (0, "")
    assert done.out


def test_help_lists_every_verb():
    shown = spawn("--help").out
    for told in (*SUMMARIES, "retrotape completion", "RETROTAPE_DEBUG"):
        assert told in shown


def test_version():
    assert __version__ in CliRunner().invoke(main, ["--version"]).output


def test_without_arguments_the_help_is_shown():
    shown = CliRunner().invoke(main, [])
    assert "Verbs:" in shown.output
    assert "Usage:" in shown.output


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "retrotape", "--version"], capture_output=True, text=True, check=True)
    assert __version__ in done.stdout


@pytest.mark.parametrize("verb", SUMMARIES)
def test_every_verb_says_of_itself_what_the_list_says(verb):
    command = import_module(f"retrotape.cli.{verb}")
    assert inspect.cleandoc(getattr(command, verb).help).splitlines()[0] == SUMMARIES[verb]
    if verb not in ("demo", "completion"):
        shown = getattr(command, verb)
        for one in shown.commands.values() if isinstance(shown, click.Group) else [shown]:
            assert any("--json" in option.opts for option in one.params)


def test_help_of_a_query_of_a_farm_needs_no_tensorflow():
    done = spawn("farm", "grad", "--help", after=f"assert not {set(TENSORFLOW)} & set(sys.modules)")
    assert (done.code, done.err) == (0, "")
    assert "Print the gradient of TARGET over all tapes that match GLOB." in done.out
