from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner
from rich.console import Console

from retrotape import __version__
from retrotape.cli import main
from retrotape.demo import run


def test_help_and_version_need_no_tensorflow():
    script = "import sys; from retrotape.cli import main; main(['--help'], standalone_mode=False)"
    script += "; assert 'tensorflow' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert "demo" in shown
    assert __version__ in CliRunner().invoke(main, ["--version"]).output


def test_demo_shows_both_tapes():
    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        run(console)
        text = console.export_text()
    assert "crashes: RuntimeError" in text
    assert "0.5403, 1.081" in text
    assert "0.4444 -0.2222 -0.2222" in text
    assert "-16" in text
    assert "None" in text
