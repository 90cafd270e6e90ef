"""The settings of a flight recorder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retrotape.errors import TapeUseError, did_you_mean

Predicate = Callable[[Mapping[str, float]], bool]
_ON = ("nonfinite", "exception")


class Settings(NamedTuple):
    """The arguments of a flight recorder, checked.

    Attributes:
      folder: Where crashes and recordings are.
      keep: How many crashes stay there.
      nonfinite: Whether a NaN or an infinity is a crash.
      predicate: Whether the logs of a step are a crash; None if there is no such function.
      every: About how many steps two snapshots are apart.
      stop: Whether to stop training when weights are no longer finite.
    """

    folder: str
    keep: int
    nonfinite: bool
    predicate: Predicate | None
    every: int
    stop: bool

    def is_met(self, logs: Mapping[str, float]) -> bool:
        """Return whether the logs of a step are a crash, by the user's function."""
        try:
            return self.predicate is not None and bool(self.predicate(logs))
        except Exception as error:
            known = ", ".join(f"{name!r}: {value:.6g}" for name, value in logs.items())
            raise TapeUseError(
                f"The function on= of a FlightRecorder raised {type(error).__name__}: {error}. It was given the logs "
                f"{{{known}}}. Use the names in them: `on=lambda logs: logs[{next(iter(logs), 'loss')!r}] > 100.0`"
                + ("." if logs else ", after `step.report(loss=loss)`.")
            ) from error


def checked(folder: Any, keep: Any, on: Any, every: Any, stop: bool) -> Settings:
    """Return the settings, or raise for what cannot be meant; create the folder."""
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise TypeError(f"FlightRecorder takes the path of a folder, got {folder!r}: `rt.FlightRecorder('crashes')`.")
    path = os.path.abspath(os.fspath(folder))
    if "://" in str(folder):
        raise ValueError(f"FlightRecorder writes to a local folder, got {folder!r}. Upload it afterwards.")
    if os.path.exists(path) and not os.path.isdir(path):
        raise NotADirectoryError(f"{os.fspath(folder)!r} is a file; FlightRecorder needs a folder. Give another path.")
    for name, number in (("keep", keep), ("every", every)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name}= takes a whole number above 0, got {number!r}: `{name}={_DEFAULTS[name]}`.")
    if not callable(on) and on not in _ON:
        meant = did_you_mean(on, _ON) if isinstance(on, str) else ""
        raise ValueError(
            f"on= takes 'nonfinite', 'exception' or a function of the logs, got {on!r}.{meant} "
            "For example `on=lambda logs: logs['loss'] > 100.0`."
        )
    os.makedirs(path, exist_ok=True)
    return Settings(path, keep, on == "nonfinite", on if callable(on) else None, every, bool(stop))


_DEFAULTS = {"keep": 3, "every": 50}
