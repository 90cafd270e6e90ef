"""The errors about a tape that is being read or written, each with its path."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from retrotape.errors import CorruptTapeError, TapeVersionError, TapeWriteError, UnsafeTapeError
from retrotape.files.store._format import FEATURES, FORMAT, TAPE, Limits

# Bytes of memory for each byte of a JSON text: for copies of the text, and with the parsed objects of a typical file.
LEAST, USUAL = 5, 16
_NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


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


@contextlib.contextmanager
def explained(path: str, is_there: bool = False) -> Iterator[None]:
    """Turn the errors of the operating system into ours, with a remedy; `is_there` if the new tape is there by then."""
    try:
        yield
    except TapeWriteError:
        raise
    except FileExistsError as error:
        raise TapeWriteError(
            path, "it exists already", "Choose another name, or `overwrite=True`.", error.errno
        ) from None
    except OSError as error:
        problem = (error.strerror or str(error) or type(error).__name__).lower()
        raise TapeWriteError(path, problem, _remedy(path, error.errno, is_there), error.errno) from error


def _remedy(path: str, code: int | None, is_there: bool) -> str:
    directory = os.path.dirname(path) or "."
    if is_there:
        return "The new tape is there, but may be lost if the power fails: save it again."
    if code in _NO_SPACE:
        return "Free some space there, or save to another disk; what was there before is untouched."
    if code in _NOT_ALLOWED:
        return f"Save to a directory that you may write to; {directory!r} is not."
    if code in (errno.ENOENT, errno.ENOTDIR) and os.path.isdir(directory):
        return "Its unfinished file was deleted while it was being written: save it again."
    if code in (errno.ENOENT, errno.ENOTDIR):
        return f"Create the directory first: `os.makedirs({directory!r})`."
    return "Try again, or save to another disk; what was there before is untouched."
