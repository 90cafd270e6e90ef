"""Errors about the workers of a job, and about tapes that several workers have saved."""

from __future__ import annotations

from collections.abc import Mapping

from retrotape.errors._base import RetrotapeError, printable
from retrotape.errors._files import CorruptTapeError


class IncompleteTapeError(CorruptTapeError):
    """A folder has shards but no manifest, or not all shards of its manifest: a save did not finish."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem, "Not every worker finished saving: save it again, on every worker.")


class ShardMismatchError(RetrotapeError, ValueError):
    """The shards of a tape do not fit together: they are not of one run, or the workers did not run the same code."""

    def __init__(self, problem: str, remedy: str | None = None) -> None:
        self.problem = problem
        remedy = remedy or "Save the tape again, on every worker, from one run of the same code."
        super().__init__(f"The shards do not fit together: {problem}. {remedy}")


class MissingWorkerError(RetrotapeError, RuntimeError):
    """A tape of several workers was not saved, since some of them failed or did not respond.

    Attributes:
      workers: The workers that are missing, each with the reason.
    """

    def __init__(self, path: str, workers: Mapping[int, str], of: int) -> None:
        self.path, self.workers = path, dict(workers)
        missing = "; ".join(f"worker {number} of {of} {reason}" for number, reason in sorted(workers.items()))
        super().__init__(
            f"The tape {printable(path)} was not saved: {missing}. What was there before is still there. "
            "Call `tape.save` on every worker, at the same place, and restart the workers that failed."
        )
