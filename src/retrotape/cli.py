"""The command line."""

from __future__ import annotations

import os

import click

from retrotape._version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="retrotape")
def main() -> None:
    """Ask a recording of TensorFlow code for its derivatives."""


@main.command()
def demo() -> None:
    """Show what a tape answers, beside what the stock tape does."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it when it is loaded
    from retrotape.demo import run  # which takes seconds; --help must not wait for it

    run()
