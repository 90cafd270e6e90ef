"""The command line."""

from __future__ import annotations

import click

from retrotape._version import __version__
from retrotape.cli._verbs import Verbs

_EPILOG = """\b
Failures are one line on stderr, also with --json, and exit code 1; 2 for wrong
usage, and for all failures of diff and nan, where 1 says that something was
found. RETROTAPE_DEBUG=1 shows the traceback.

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
    """Ask a saved tape for its derivatives, or why there are none.

    A saved tape is a file that `tape.save` wrote. Every verb that takes one takes --json too.
    """
