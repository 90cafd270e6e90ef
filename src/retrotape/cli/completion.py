"""`retrotape completion`."""

from __future__ import annotations

import re

import click
from click.shell_completion import CompletionItem, get_completion_class

from retrotape.cli._tape import open_saved
from retrotape.files.urls import is_url

_SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_RETROTAPE_COMPLETE"
_HARMLESS = re.compile(r"[\w./:@#+-]+")  # needs no quoting: names come from a file, and may be `$(rm ...)`


_WHERE = """\b
bash:  eval "$(retrotape completion bash)"     in ~/.bashrc
zsh:   eval "$(retrotape completion zsh)"      in ~/.zshrc
fish:  retrotape completion fish | source      in ~/.config/fish/config.fish
"""


@click.command(epilog=_WHERE)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes verbs, options and the names on a tape."""
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "retrotape", VARIABLE).source())


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the completions: names on the tape given earlier on the command line."""
    path = ctx.params.get("file")
    if is_url(path):
        return []  # a key press must not start a download
    try:
        with open_saved(path or "") as tape:
            names = [named.name for named in tape.names if _HARMLESS.fullmatch(named.name)]
    except Exception:  # completion must never print an error
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
