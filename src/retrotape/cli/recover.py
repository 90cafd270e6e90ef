"""`retrotape recover`: tapes of the last steps of trainings that were killed."""

from __future__ import annotations

import click

from retrotape.cli._start import start_tensorflow
from retrotape.cli._text import print_json, show_lines
from retrotape.cli._verbs import json_option


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False), metavar="FOLDER")
@json_option
@click.pass_context
def recover(ctx: click.Context, folder: str, as_json: bool) -> None:
    """Write tapes of the last steps of trainings that were killed.

    FOLDER is that of a `rt.FlightRecorder`. The steps since the last snapshot are replayed, without the model's code,
    up to the first that is not finite, or else the last: that one becomes a tape.

    Exit code 0 if there is a tape for every killed training, 1 if there is none to recover, or one gave no tape.
    """
    start_tensorflow()
    from retrotape.callbacks.flight import recover as recovering  # takes seconds: a wrong folder was refused by now

    found = recovering.recover(folder)
    if as_json:
        rows = [{"recording": one.recording, **_fields(one.crash)} for one in found]
        print_json({"folder": folder, "found": rows})
    elif not found:
        show_lines(f"there is nothing to recover in {folder}: no training that recorded there was killed")
    else:
        show_lines(*(one.crash.message for one in found))
    ctx.exit(0 if found and all(one.crash.tape for one in found) else 1)


def _fields(crash: object) -> dict[str, object]:
    names = ("step", "message", "tape", "report")
    return {name: getattr(crash, name) for name in names}
