"""The file in question, and the three ways to say no to it."""

from __future__ import annotations

from typing import NamedTuple

from retrotape.errors import CorruptTapeError, TapeVersionError, UnsafeTapeError
from retrotape.files.store._format import FEATURES, FORMAT, TAPE, TENSORS, Limits

# Bytes of memory for each byte of a JSON text: for copies of it alone, and for all that one of ours becomes.
LEAST, USUAL = 5, 16


class Where(NamedTuple):
    """The path of a tape that is being read. Its methods make errors; the caller raises them."""

    path: str

    def corrupt(self, problem: str, remedy: str | None = None) -> CorruptTapeError:
        """It is damaged."""
        return CorruptTapeError(self.path, problem, remedy)

    def unsafe(self, problem: str, remedy: str | None = None) -> UnsafeTapeError:
        """It does what no writer of ours does."""
        return UnsafeTapeError(self.path, problem, remedy)

    def over(self, what: str, got: int, limit: int, field: str, enough: int | None = None) -> UnsafeTapeError:
        """It has more of something than agreed; `enough` is a limit that would do, where that is not what it has."""
        return UnsafeTapeError(
            self.path,
            f"{what}: {got:,}, the limit is {limit:,}",
            f"If you trust the file, raise the limit: `Limits({field}={enough or got})`.",
        )

    def check_size(self, name: str, size: int, limits: Limits) -> None:
        """Raise if an entry has more bytes than agreed: before any of them is read."""
        if name == TAPE:
            self.check_text(name, size, limits)
        elif name != TENSORS:
            field, limit = limits.of_entry(name)
            if size > limit:
                raise self.over(f"the entry {name} is too large", size, limit, field)

    def check_text(self, name: str, size: int, limits: Limits) -> None:
        """Raise if a JSON text is so long that it takes too much memory, whatever is in it."""
        memory, limit = LEAST * size, limits.json_memory
        if limit is not None and memory > limit:
            what = f"{name} takes too many bytes of memory"
            raise self.over(what, memory, limit, "json_memory", enough=USUAL * size)

    def version(self, needs: str) -> TapeVersionError:
        """It is from the future."""
        return TapeVersionError(self.path, needs, f"{FORMAT} with the features {', '.join(sorted(FEATURES))}")
