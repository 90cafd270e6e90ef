"""Tapes from what killed processes have left behind."""

from __future__ import annotations

import json
import os
import shutil
from typing import NamedTuple

from retrotape.callbacks.flight._crash import Account, Crash, message_of, write_crash
from retrotape.callbacks.flight._folder import left_over
from retrotape.callbacks.flight._replay import Steps


class Recovered(NamedTuple):
    """What a recording gave.

    Attributes:
      recording: Its folder; it is gone if there is a tape.
      crash: What was written; without a tape, only its message is known.
    """

    recording: str
    crash: Crash


def recover(folder: str) -> list[Recovered]:
    """Replay what killed processes have left in the folder of a flight recorder, and write tapes there."""
    return [Recovered(path, _recover(folder, path)) for path in list(left_over(folder))]


def _recover(folder: str, path: str) -> Crash:
    steps = Steps(path)
    found = steps.search()
    begun = steps.segments[0].end if steps.segments else 0
    killed = f"the process of {os.path.basename(path)} was killed"
    killed += f" in step {begun - 1} or after it" if begun else " before its first step"
    if found.is_bad:
        what = f"{killed}; step {found.step} was the first that is not finite"
    elif found.step is not None:
        what = f"{killed}; in the replay everything is finite up to step {found.step}, which the tape is of"
    else:
        what = killed
    account = Account(found.step, what, found.remarks)
    if found.tape is None:  # nothing is written: the recording stays, and may be tried again
        return Crash(None, message_of(account, None, account.remarks, None), None, None, None)
    crash = write_crash(folder, _keep(path), account, found.tape)
    if crash.tape is not None:
        shutil.rmtree(path, ignore_errors=True)
    return crash


def _keep(path: str) -> int:
    try:
        with open(os.path.join(path, "settings.json")) as file:
            return max(1, int(json.load(file)["keep"]))
    except (OSError, ValueError, KeyError, TypeError):
        return 3
