"""Saving a tape: one file, or a folder whose bytes are in a store that tapes share."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from retrotape.errors import CorruptTapeError, TapeWriteError, UnsafeTapeError
from retrotape.files.store import _blobs, _json
from retrotape.files.store._errors import TapeErrors, explained
from retrotape.files.store._format import DEFAULT_LIMITS, PIECE, TAPE, Limits, Stored, quoted
from retrotape.files.store._layout import lay_out
from retrotape.files.store._plan import Planned, content, plan
from retrotape.io import Replacement, sync_directory

_NO_DIGEST = "0" * 64


def write(
    path: str | os.PathLike[str],
    entries: Mapping[str, bytes],
    tensors: Iterable[Stored],
    meta: Mapping[str, Any],
    *,
    overwrite: bool = True,
    store: str | os.PathLike[str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> int:
    """Save a tape atomically: afterwards either the old one or the new one is there, complete.

    The same content gives the same bytes. Tensors are written one at a time, so where their data are functions only
    one of them has to be in memory.

    Args:
      path: The file to write; with `store`, the folder.
      entries: Everything but the tensors, by name: "program.txt", "opdefs.pb" and so on.
      tensors: What to store; the order does not matter.
      meta: More fields for `tape.json`; all of it JSON. "features" are those that a reader has to support.
      overwrite: Whether an existing tape may be replaced.
      store: A folder for the bytes of this and other tapes; bytes that it already holds are not written again. It must
        keep its location relative to `path`.
      limits: The limits of the readers; a tape that they would refuse is not written.

    Returns:
      How many bytes were written.

    Raises:
      TapeWriteError: If it cannot be saved. What was there before is still there.
    """
    path = os.fsdecode(path)
    check_target(path, overwrite=overwrite, store=store)
    planned = plan(path, entries, tensors, meta, limits)
    if store is None:
        return _write_file(path, planned, overwrite, limits)
    return _write_folder(path, os.fsdecode(store), planned, overwrite, limits)


def check_target(
    path: str | os.PathLike[str], *, overwrite: bool = True, store: str | os.PathLike[str] | None = None
) -> None:
    """Raise early for errors that would otherwise occur after a gigabyte has been written; arguments as for `write`."""
    path, folder = os.fsdecode(path), store is not None
    for given in (path, "" if store is None else os.fsdecode(store)):
        if "\0" in given:
            raise TapeWriteError(path, f"{quoted(given)} has the character NUL in it", "Give the name of a file.")
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise TapeWriteError(path, f"there is no directory {parent!r}", f"Create it first: `os.makedirs({parent!r})`.")
    if os.path.islink(path):
        problem, remedy = "it is a symbolic link", f"Save to the file itself: {os.path.realpath(path)!r}."
        raise TapeWriteError(path, problem, remedy)
    if os.path.lexists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise TapeWriteError(path, "it is a device or a pipe, and would be gone", "Give the name of a file.")
    if folder and os.path.isfile(path):
        raise TapeWriteError(path, "it is a file, and with `store` a tape is a folder", "Choose another name.")
    if not folder and os.path.isdir(path):
        remedy = f"Give the name of a file, such as {os.path.join(path, 'name.tape')!r}, or `store=` for a folder."
        raise TapeWriteError(path, "it is a directory", remedy)
    if not overwrite and os.path.lexists(os.path.join(path, TAPE) if folder else path):
        raise TapeWriteError(path, "it exists already", "Choose another name, or `overwrite=True`.")


def estimate(entries: Mapping[str, bytes], tensors: Iterable[Stored], meta: Mapping[str, Any]) -> int:
    """Return how many bytes `write` would write into a file. Calls none of the functions that make numeric data.

    >>> estimate({}, [Stored("x", "float32", (1000,), bytes)], {})
    4512
    """
    path = "(estimated)"
    planned = plan(path, entries, tensors, meta, DEFAULT_LIMITS)
    return lay_out(len(_draft(path, planned)), planned.entries, planned.parts).size


def _fields(planned: Planned, digests: Mapping[str, str], **more: Any) -> dict[str, Any]:
    return {
        **planned.meta,
        "features": planned.features,
        "entries": {name: [part.nbytes, digests[name]] for name, part in planned.entries.items()},
        "tensors": {name: [part.dtype, part.shape, digests[name]] for name, part in planned.parts.items()},
        "strings": planned.strings,
        **more,
    }


def _draft(path: str, planned: Planned, **more: Any) -> bytes:
    """Return `tape.json` as long as it will be: all digests have the same length."""
    digests = dict.fromkeys([*planned.entries, *planned.parts], _NO_DIGEST)
    try:
        return _json.seal(_fields(planned, digests, **more))
    except (TypeError, ValueError) as error:
        problem = f"`meta` cannot be written as JSON: {error}"
        raise TapeWriteError(path, problem, "Use only numbers, text, lists, None and dicts with names.") from None


def _check_draft(path: str, draft: bytes, meta: Mapping[str, Any], limits: Limits) -> None:
    """Refuse fields that a reader would refuse."""
    try:
        _json.measure(TapeErrors(path), TAPE, draft, limits)
        _json.unseal(TapeErrors(path), _json.seal(meta), limits)  # the tables are known to be well formed
    except (CorruptTapeError, UnsafeTapeError) as error:
        remedy = "Make `meta` simpler, or raise the limit here and on reading."
        raise TapeWriteError(path, f"readers would refuse `meta`: {error.problem}", remedy) from None


def _write_file(path: str, planned: Planned, overwrite: bool, limits: Limits) -> int:
    draft = _draft(path, planned)
    _check_draft(path, draft, planned.meta, limits)
    layout = lay_out(len(draft), planned.entries, planned.parts)
    if len(layout.header) > limits.header_bytes:
        size, limit = len(layout.header), limits.header_bytes
        problem = f"the header of {len(planned.parts):,} tensors has {size:,} bytes, more than {limit:,}"
        raise TapeWriteError(path, problem, "Save fewer tensors.")
    digests: dict[str, str] = {}
    parts = {**planned.entries, **planned.parts}
    with Replacement(path, overwrite=overwrite, explain=partial(explained, path)) as output:
        output.write(layout.header)
        output.write(draft)
        for name, start in layout.starts.items():
            if name != TAPE:
                output.write(bytes(start - output.size))
                digests[name] = _write_part(output, content(path, name, parts[name]))
        output.rewrite(layout.starts[TAPE], _json.seal(_fields(planned, digests)))
        output.commit()
    return output.size


def _write_part(output: Replacement, data: memoryview) -> str:
    """Write some bytes and return their sha256."""
    digest = hashlib.sha256()
    for at in range(0, len(data), PIECE):
        piece = data[at : at + PIECE]
        digest.update(piece)
        output.write(piece)
    return digest.hexdigest()


def _write_folder(path: str, store: str, planned: Planned, overwrite: bool, limits: Limits) -> int:
    planned = planned._replace(features=sorted({*planned.features, "blobs"}))
    with explained(path):
        made = _blobs.make_folder(path)
    try:
        with explained(path):
            _blobs.make_folder(store, links=True)  # the caller chose it
        relative = _blobs.relative(path, store)
        _check_draft(path, _draft(path, planned, store=relative), planned.meta, limits)
        blobs = _blobs.BlobWriter(path, store)
        parts = {**planned.entries, **planned.parts}
        digests = {name: blobs.put(content(path, name, parts[name])) for name in sorted(parts)}
        blobs.commit()
        tape = _json.seal(_fields(planned, digests, store=relative))
        document = os.path.join(path, TAPE)
        with Replacement(document, overwrite=overwrite, explain=partial(explained, path)) as output:
            output.write(tape)
            output.commit()
        with explained(path, is_there=True), suppress(FileNotFoundError):  # deleted by now, but it was complete
            sync_directory(os.path.dirname(os.path.abspath(path)))  # the name of the folder itself
    except BaseException:
        if made:
            _blobs.remove_if_empty(path)
        raise
    return blobs.written + output.size
