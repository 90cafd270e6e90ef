"""The file in question, and the three ways to say no to it."""

from __future__ import annotations

from typing import NamedTuple

from retrotape.errors import CorruptTapeError, TapeVersionError, UnsafeTapeError
from retrotape.store._format import FEATURES, FORMAT


class Where(NamedTuple):
    """The path of a tape that is being read. Its methods make errors; the caller raises them."""

    path: str

    def corrupt(self, problem: str, remedy: str | None = None) -> CorruptTapeError:
        """It is damaged."""
        return CorruptTapeError(self.path, problem, remedy)

    def unsafe(self, problem: str, remedy: str | None = None) -> UnsafeTapeError:
        """It does what no writer of ours does."""
        return UnsafeTapeError(self.path, problem, remedy)

    def over(self, what: str, got: int, limit: int, field: str) -> UnsafeTapeError:
        """It has more of something than agreed."""
        return UnsafeTapeError(
            self.path,
            f"{what}: {got:,}, the limit is {limit:,}",
            f"If you trust the file, raise the limit: `Limits({field}={got})`.",
        )

    def version(self, needs: str) -> TapeVersionError:
        """It is from the future."""
        return TapeVersionError(self.path, needs, f"{FORMAT} with the features {', '.join(sorted(FEATURES))}")
