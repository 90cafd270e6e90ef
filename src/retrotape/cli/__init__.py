"""The command line."""

from __future__ import annotations

import click

from retrotape._version import __version__
from retrotape.cli._verbs import Verbs

_EPILOG = """\b
A failure prints one line to stderr, also with --json, and exits with 1; with 2
for wrong usage, and for any failure of diff and nan, where 1 means that
something was found. RETROTAPE_DEBUG=1 shows the traceback.

\b
Shell completion: eval "$(retrotape completion bash)"; zsh and fish likewise.
"""


@click.group(
    cls=Verbs,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="retrotape")
def main() -> None:
    """Query a saved tape for derivatives, or for why there are none.

    A saved tape is a file that `tape.save` wrote. Every verb that takes one takes --json too.
    """
