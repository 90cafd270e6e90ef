"""Saving a tape: one file, or a folder whose bytes lie in a store that tapes share."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from retrotape.errors import CorruptTapeError, TapeWriteError, UnsafeTapeError
from retrotape.files.store import _blobs, _json
from retrotape.files.store._archive import ArchiveWriter
from retrotape.files.store._format import DEFAULT_LIMITS, PIECE, TAPE, TENSORS, Limits, Stored, shown
from retrotape.files.store._plan import Planned, content, plan
from retrotape.files.store._replace import WRITTEN, Replacement, explained, sync_directory
from retrotape.files.store._safetensors import lay_out
from retrotape.files.store._where import Where

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
    """Save a tape. Whatever happens, the old one or the new one is there afterwards, whole.

    The same content gives the same bytes. Tensors are written one after the other, so that only one of them has to
    be in memory where their data are functions.

    Args:
      path: The file to write; with `store`, the folder.
      entries: Everything but the tensors, by name: "program.txt", "opdefs.pb" and so on.
      tensors: What to store; the order does not matter.
      meta: More fields for `tape.json`; all of it JSON. "features" are those that a reader has to know.
      overwrite: Whether a tape that is there may be replaced.
      store: A folder for the bytes of this and other tapes; what is there already is not written again. It must keep
        its place relative to `path`.
      limits: Those of the readers; what they would refuse is not written.

    Returns:
      How many bytes were written.

    Raises:
      TapeWriteError: If it cannot be saved. What was there before is still there.
    """
    path = os.fsdecode(path)
    for given in (path, "" if store is None else os.fsdecode(store)):
        if "\0" in given:
            raise TapeWriteError(path, f"{shown(given)} has the character NUL in it", "Give the name of a file.")
    planned = plan(path, entries, tensors, meta, limits)
    if store is None:
        _check_target(path, overwrite, folder=False)
        return _write_file(path, planned, overwrite, limits)
    _check_target(path, overwrite, folder=True)
    return _write_folder(path, os.fsdecode(store), planned, overwrite, limits)


def _check_target(path: str, overwrite: bool, *, folder: bool) -> None:
    """Say early what would fail after a gigabyte has been written."""
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


def _fields(planned: Planned, digests: Mapping[str, str], **more: Any) -> dict[str, Any]:
    return {
        **planned.meta,
        "features": planned.features,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in planned.entries.items()},
        "tensors": {name: [part.dtype, part.shape, digests[name]] for name, part in planned.parts.items()},
        "strings": planned.strings,
        **more,
    }


def _check_fields(path: str, meta: Mapping[str, Any], fields: Mapping[str, Any], limits: Limits) -> None:
    """Refuse fields that a reader would refuse. Digests need not be known for that: all have the same length."""
    try:
        data = _json.seal(fields)
    except (TypeError, ValueError) as error:
        problem = f"`meta` cannot be written as JSON: {error}"
        raise TapeWriteError(path, problem, "Use only numbers, text, lists, None and dicts with names.") from None
    try:
        _json.measure(Where(path), TAPE, data, limits)
        _json.unseal(Where(path), _json.seal(meta), limits)  # the tables are known to be well formed
    except (CorruptTapeError, UnsafeTapeError) as error:
        remedy = "Make `meta` simpler, or raise the limit here and on reading."
        raise TapeWriteError(path, f"readers would refuse `meta`: {error.problem}", remedy) from None


def _write_file(path: str, planned: Planned, overwrite: bool, limits: Limits) -> int:
    layout = lay_out(planned.parts)
    if len(layout.header) > limits.header_bytes:
        problem = (
            f"the header of {len(planned.parts):,} tensors has {len(layout.header):,} bytes, more than readers take"
        )
        raise TapeWriteError(path, problem, "Save fewer tensors.")
    digests = dict.fromkeys(planned.parts, _NO_DIGEST)
    _check_fields(path, planned.meta, _fields(planned, digests), limits)

    def pieces() -> Iterator[bytes | memoryview]:
        yield layout.header
        end = len(layout.header)
        for name, start in layout.starts.items():
            yield bytes(start - end)
            data, digest = content(path, name, planned.parts[name]), hashlib.sha256()
            for at in range(0, len(data), PIECE):
                piece = data[at : at + PIECE]
                digest.update(piece)
                yield piece
            digests[name] = digest.hexdigest()
            end = start + len(data)

    with Replacement(path, overwrite=overwrite) as output:
        archive = ArchiveWriter(output)
        for name, data in planned.entries.items():
            archive.add(name, len(data), [data])
        archive.add(TENSORS, layout.size, pieces())
        tape = _json.seal(_fields(planned, digests))
        archive.add(TAPE, len(tape), [tape])
        archive.finish()
        output.commit()
    return output.size


def _write_folder(path: str, store: str, planned: Planned, overwrite: bool, limits: Limits) -> int:
    planned = planned._replace(features=sorted({*planned.features, "blobs"}))
    digests = dict.fromkeys(planned.parts, _NO_DIGEST)
    with explained(path):
        made = _blobs.make_folder(path)
    try:
        with explained(path):
            _blobs.make_folder(store, links=True)  # whoever saves says where
        relative = _blobs.relative(path, store)
        _check_fields(path, planned.meta, _fields(planned, digests, store=relative), limits)
        blobs = _blobs.BlobWriter(path, store)
        for data in planned.entries.values():
            blobs.put(memoryview(data))
        for name in sorted(planned.parts):
            digests[name] = blobs.put(content(path, name, planned.parts[name]))
        blobs.commit()
        tape = _json.seal(_fields(planned, digests, store=relative))
        with Replacement(os.path.join(path, TAPE), overwrite=overwrite, about=path) as output:
            output.write(tape)
            output.commit()
        with explained(path, WRITTEN):
            sync_directory(os.path.dirname(os.path.abspath(path)))  # the name of the folder itself
    except BaseException:
        if made:
            _blobs.remove_if_empty(path)
        raise
    return blobs.written + output.size
