"""`retrotape demo`."""

from __future__ import annotations

import click

from retrotape.cli._start import start_tensorflow


@click.command()
def demo() -> None:
    """Show what a tape can tell, beside the stock tape."""
    click.echo("Loading TensorFlow …", err=True)
    start_tensorflow()
    from retrotape.cli._demo import run  # which takes seconds; --help must not wait for it

    run()
    click.echo("Next: print(tape.why(loss, variable)) in a program of yours, and `examples/` in the repository.")
