"""`retrotape demo`."""

from __future__ import annotations

import os

import click


@click.command()
def demo() -> None:
    """Show what a tape answers, beside what the stock tape does."""
    click.echo("Loading TensorFlow …", err=True)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it when it is loaded
    from retrotape.demo import run  # which takes seconds; --help must not wait for it

    run()
    click.echo("Next: print(tape.why(loss, variable)) in a program of yours, and `examples/` in the repository.")
