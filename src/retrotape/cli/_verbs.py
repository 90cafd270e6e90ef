"""What all verbs share: arguments, and failures reported in one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from retrotape.cli._arrays import FORMS
from retrotape.cli._text import one_line
from retrotape.errors import RetrotapeError, did_you_mean
from retrotape.files.urls import is_url, local_path

DEBUG = "RETROTAPE_DEBUG"
# The first line of each help text. A verb is imported when it is used, so --help imports none of them.
SUMMARIES = {
    "show": "Show what a saved tape holds.",
    "grad": "Print gradients by name, and write them to a file.",
    "why": "Explain why TARGET has a gradient with respect to SOURCE, or none.",
    "nan": "Find the op that made the first NaN or infinity.",
    "report": "Write a page about a tape: findings, gradient flow, layers, program, memory.",
    "check": "Verify a saved tape.",
    "recover": "Write tapes of the last steps of trainings that were killed.",
    "farm": "Compute one query over many saved tapes, in one process or many.",
    "diff": "Find the first op whose value differs between two tapes of the same program.",
    "demo": "Compare this tape with the stock tape on a few programs.",
    "doctor": "Check that retrotape works on this machine, on each of its devices.",
    "completion": "Print the script that completes verbs, options and the names on a tape.",
}


class Failure(click.ClickException):
    """A failure as shown to the user."""

    exit_code = 1

    def __init__(self, verb: str, message: str) -> None:
        super().__init__(f"{verb}: {one_line(message)}")

    def show(self, file: Any = None) -> None:
        """Print the line, without click's own heading."""
        click.echo(self.message, err=True, file=file)


class UsageError(Failure):
    """Wrong usage, and any failure of a verb whose exit code 1 is a result."""

    exit_code = 2


class Verbs(click.Group):
    """A group of verbs that report failures as one line on stderr; `RETROTAPE_DEBUG=1` shows the traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        if cmd_name not in SUMMARIES:
            return None
        return getattr(import_module(f"retrotape.cli.{cmd_name}"), cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the verb, or fail with a list of verbs."""
        verb = args[0]
        if verb not in SUMMARIES and not verb.startswith("-") and not ctx.resilient_parsing:
            meant = did_you_mean(verb, list(SUMMARIES))
            ctx.fail(f"No such command {verb!r}.{meant} The verbs are {', '.join(SUMMARIES)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with their summaries."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(SUMMARIES.items()))

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Parse the arguments of the group itself."""
        with _one_line_failures(lambda: None):
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb."""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # the terminal may not be able to encode a name
        with _one_line_failures(lambda: ctx.invoked_subcommand):
            return super().invoke(ctx)


@contextmanager
def _one_line_failures(verb: Callable[[], str | None]) -> Iterator[None]:
    try:
        yield
    except (click.exceptions.Exit, click.Abort, Failure, *_HELP):
        raise
    except Exception as error:
        name = " ".join(filter(None, ("retrotape", verb())))
        if isinstance(error, click.UsageError):
            raise UsageError(name, f"{error.format_message()} For help: `{name} --help`.") from error
        if os.environ.get(DEBUG) or (isinstance(error, OSError) and error.errno == errno.EPIPE):
            raise
        kind = UsageError if verb() in ("diff", "nan") else Failure  # for these, exit code 1 is a result
        raise kind(name, _message(error)) from error


# In newer versions of click, showing the full help is an error too.
_HELP = (click.exceptions.NoArgsIsHelpError,) if hasattr(click.exceptions, "NoArgsIsHelpError") else ()


def _message(error: Exception) -> str:
    if isinstance(error, RetrotapeError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        about = f": {error.filename!r}" if error.filename is not None else ""
        advice = "Make room first." if error.errno == errno.ENOSPC else "Check the path and its permissions."
        return f"{error.strerror}{about}. {advice}"
    return f"it failed with {type(error).__name__}: {error}. To see where: `{DEBUG}=1`."


class TapePath(click.Path):
    """The path or URL of a saved tape, which is opened later."""

    name = "tape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path if it exists; a URL is looked at when it is opened."""
        if is_url(value):
            value = local_path(value) or value
        if not is_url(value) and not os.path.lexists(value):
            self.fail(
                f"There is no {os.fsdecode(value)!r}. Give what `tape.save` wrote, a file or a folder.", param, ctx
            )
        return super().convert(value, param, ctx)


def tape_argument(name: str = "file") -> Any:
    """Return the decorator that gives a verb a tape."""
    return click.argument(name, type=TapePath(), metavar=name.upper())


def check_output(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an unusable output path before any gradient is computed."""
    if value is None:
        return None
    if os.path.splitext(value)[1] not in FORMS:
        raise click.BadParameter(f"{value!r} ends in none of {', '.join(FORMS)}. Give such a file: `-o grads.npz`.")
    folder = os.path.dirname(os.path.abspath(value))
    if not os.path.isdir(folder):
        raise click.BadParameter(f"There is no folder {folder!r}. Create it first.")
    return value


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
