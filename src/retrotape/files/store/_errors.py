"""The errors about a tape that is being read, each with its path."""

from __future__ import annotations

from typing import NamedTuple

from retrotape.errors import CorruptTapeError, TapeVersionError, UnsafeTapeError
from retrotape.files.store._format import FEATURES, FORMAT, TAPE, Limits

# Bytes of memory for each byte of a JSON text: for copies of the text, and with the parsed objects of a typical file.
LEAST, USUAL = 5, 16


class TapeErrors(NamedTuple):
    """Makes errors about the tape at `path`; the caller raises them."""

    path: str

    def corrupt(self, problem: str, remedy: str | None = None) -> CorruptTapeError:
        """Return the error for a tape that is damaged."""
        return CorruptTapeError(self.path, problem, remedy)

    def unsafe(self, problem: str, remedy: str | None = None) -> UnsafeTapeError:
        """Return the error for a tape that no writer of ours could have written."""
        return UnsafeTapeError(self.path, problem, remedy)

    def over(self, what: str, got: int, limit: int, field: str, enough: int | None = None) -> UnsafeTapeError:
        """Return the error for a tape that exceeds a limit; `enough` is a sufficient limit where `got` is not."""
        return UnsafeTapeError(
            self.path,
            f"{what}: {got:,}, the limit is {limit:,}",
            f"If you trust the file, raise the limit: `Limits({field}={enough or got})`.",
        )

    def version(self, needs: str) -> TapeVersionError:
        """Return the error for a tape that a newer version wrote."""
        return TapeVersionError(self.path, needs, f"{FORMAT} with the features {', '.join(sorted(FEATURES))}")

    def check_size(self, name: str, size: int, limits: Limits) -> None:
        """Raise if an entry has more bytes than the limits allow: before any of them is read."""
        field, limit = limits.of_entry(name)
        if name == TAPE:
            self.check_text(name, size, limits)
        elif size > limit:
            raise self.over(f"the entry {name} is too large", size, limit, field)

    def check_text(self, name: str, size: int, limits: Limits) -> None:
        """Raise if a JSON text is so long that it takes too much memory, whatever is in it."""
        memory, limit = LEAST * size, limits.json_memory
        if limit is not None and memory > limit:
            what = f"{name} takes too many bytes of memory"
            raise self.over(what, memory, limit, "json_memory", enough=USUAL * size)
