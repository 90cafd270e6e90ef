"""`retrotape demo`."""

from __future__ import annotations

import click

from retrotape.cli._start import start_tensorflow


@click.command()
def demo() -> None:
    """Compare this tape with the stock tape on a few programs."""
    click.echo("Loading TensorFlow …", err=True)
    start_tensorflow()
    from retrotape.cli._demo import run  # takes seconds, which --help can do without

    run()
    click.echo("Next: print(tape.why(loss, variable)) in your own program, and `examples/` in the repository.")
