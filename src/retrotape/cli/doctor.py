"""`retrotape doctor`: whether retrotape works on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from retrotape.cli._checkup import Check, backend, checks, devices, settings, short, versions
from retrotape.cli._start import start_tensorflow
from retrotape.cli._text import count, one_line, print_json, show_lines, table
from retrotape.cli._verbs import json_option

_ISSUES = "https://github.com/retrotape/retrotape/issues"


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check that retrotape works on this machine, on each of its devices.

    Shows the versions of everything that matters, runs the self test of what is recorded, and compares gradients with
    those of the stock tape on every device. If you report a bug, add what it prints.

    Exit code 0 if everything works, 1 if something does not.
    """
    about: dict[str, Any] = {"versions": versions(), "settings": settings(), "backend": None, "devices": []}
    if not as_json:
        click.echo("Loading TensorFlow …", err=True)
    found = _checked(about)
    failed = [check for check in found if check.problem is not None]
    if as_json:
        print_json({**about, "checks": [check._asdict() for check in found], "ok": not failed})
    else:
        _print(about, found, failed)
    ctx.exit(1 if failed else 0)


def _checked(about: dict[str, Any]) -> list[Check]:
    """Run the checks, and add what only TensorFlow knows."""
    try:
        start_tensorflow()
    except Exception as error:  # any: a TensorFlow that is missing, broken, or not compatible
        return [Check("TensorFlow can be loaded", "", one_line(f"{type(error).__name__}: {error}"))]
    about["backend"], about["devices"] = backend(), [short(device.name) for device in devices()]
    return [check._replace(problem=check.problem and one_line(check.problem)) for check in checks()]


def _print(about: Mapping[str, Any], found: Sequence[Check], failed: Sequence[Check]) -> None:
    facts = {name: version or "not installed" for name, version in about["versions"].items()}
    facts["Keras runs on"] = about["backend"] or "unknown"
    facts["devices"] = ", ".join(about["devices"]) or "unknown"
    facts.update(about["settings"])
    rows = [*((name, "", fact) for name, fact in facts.items())]
    rows += [(one.name, one.device, one.problem or "ok") for one in found]
    show_lines(table(("what", "device", "version, value or result"), rows))
    if failed:
        share = f"{count(len(failed), 'check')} of {len(found)} failed"
        show_lines(f"{share}: results may be wrong here. Report it, with the table above: {_ISSUES}")
    else:
        show_lines(f"All {len(found)} checks passed.")
