"""The manifest of a tape that several workers have saved: which shards belong to it. It is written last."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, NamedTuple

from retrotape.errors import CorruptTapeError, IncompleteTapeError, TapeWriteError
from retrotape.files.store._errors import TapeErrors, explained
from retrotape.files.store._files import open_file, read_at
from retrotape.files.store._format import DEFAULT_LIMITS, PIECE, TAPE, Limits, quoted
from retrotape.files.store._json import parse
from retrotape.io import Replacement

MANIFEST = "manifest.json"
FORMAT = "tape-shards/1"
LARGEST_MANIFEST = 2**26  # bytes: a few hundred for each shard, of which there are fewer than 100,000
_SHARD = re.compile(r"shard-[0-9]{5}-of-[0-9]{5}-[0-9a-f]{8}\.tape")
_RUN = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ShardFile(NamedTuple):
    """A file of a tape that several workers have saved."""

    file: str
    bytes: int
    sha256: str


class Manifest(NamedTuple):
    """Which files make up a tape: one for each worker, in order."""

    run: str
    shards: tuple[ShardFile, ...]


def shard_name(worker: int, workers: int, run: str) -> str:
    """Return the name of the file of a worker; every run has its own, so that no older tape is overwritten.

    >>> shard_name(1, 2, "0123456789abcdef")
    'shard-00001-of-00002-01234567.tape'
    """
    return f"shard-{worker:05d}-of-{workers:05d}-{run[:8]}.tape"


def is_shard_name(name: str) -> bool:
    """Return whether the file of a worker would have this name.

    >>> is_shard_name("shard-00001-of-00002-01234567.tape"), is_shard_name("a.tape")
    (True, False)
    """
    return _SHARD.fullmatch(name) is not None


def is_sharded(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder with a manifest or with shards."""
    path = os.fsdecode(path)
    if "\0" in path or not os.path.isdir(path) or os.path.lexists(os.path.join(path, TAPE)):
        return False  # an isolated process may read the files of a tape with a store, and not list its folder
    return os.path.lexists(os.path.join(path, MANIFEST)) or any(map(is_shard_name, os.listdir(path)))


def describe_file(path: str) -> ShardFile:
    """Return the entry of a manifest for a file."""
    size, digest = 0, hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            size += len(piece)
    return ShardFile(os.path.basename(path), size, digest.hexdigest())


def write_manifest(folder: str, manifest: Manifest, *, overwrite: bool = True) -> None:
    """Publish a tape: from now on its shards are one."""
    fields = {"format": FORMAT, "run": manifest.run, "shards": [shard._asdict() for shard in manifest.shards]}
    explain = partial(explained, folder)
    with Replacement(os.path.join(folder, MANIFEST), overwrite=overwrite, explain=explain) as output:
        output.write(json.dumps(fields, indent=1).encode() + b"\n")
        output.commit()


def read_manifest(path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> Manifest:
    """Return the manifest in a folder, without trusting it.

    Raises:
      IncompleteTapeError: If there is none.
      CorruptTapeError: If it is damaged.
    """
    folder = os.fsdecode(path)
    errors = TapeErrors(folder)
    try:
        descriptor, size = open_file(errors, os.path.join(folder, MANIFEST))
    except FileNotFoundError:
        shards = sum(1 for name in os.listdir(folder) if _SHARD.fullmatch(name))
        raise IncompleteTapeError(folder, f"it has {shards} shards and no {MANIFEST}") from None
    try:
        data = read_at(descriptor, 0, min(size, LARGEST_MANIFEST + 1))
    finally:
        os.close(descriptor)
    return parse_manifest(data, folder, limits)


def parse_manifest(data: bytes, path: str, limits: Limits = DEFAULT_LIMITS) -> Manifest:
    """Return the manifest in a text, without trusting it.

    Args:
      data: The text; of one that is too long, any more than `LARGEST_MANIFEST` bytes.
      path: The folder, or its URL, for messages.
      limits: For the text.

    Raises:
      CorruptTapeError: If it is damaged.
      UnsafeTapeError: If it exceeds a limit or is ambiguous.
    """
    errors = TapeErrors(path)
    if len(data) > LARGEST_MANIFEST:
        raise errors.unsafe(f"{MANIFEST} has more than {LARGEST_MANIFEST:,} bytes")
    return _checked(errors, parse(errors, MANIFEST, data, limits))


def _checked(errors: TapeErrors, written: Any) -> Manifest:
    if not isinstance(written, dict) or not isinstance(written.get("format"), str):
        raise errors.corrupt(f"{MANIFEST} is not a manifest")
    if written["format"] != FORMAT:
        raise errors.version(f"the format {quoted(written['format'])}")
    run, rows = written.get("run"), written.get("shards")
    if not isinstance(run, str) or not _RUN.fullmatch(run) or not isinstance(rows, list) or not rows:
        raise errors.corrupt(f"{MANIFEST} names no run, or no shards")
    shards = tuple(_shard(errors, row) for row in rows)
    expected = [shard_name(worker, len(shards), run) for worker in range(len(shards))]
    if [shard.file for shard in shards] != expected:
        raise errors.corrupt(f"the shards in {MANIFEST} are not those of one run, in order")
    return Manifest(run, shards)


def _shard(errors: TapeErrors, row: Any) -> ShardFile:
    fields = row if isinstance(row, dict) else {}
    file, size, digest = (fields.get(name) for name in ShardFile._fields)
    if not (isinstance(file, str) and _SHARD.fullmatch(file) and isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise errors.corrupt(f"{MANIFEST} has a shard without a name or a sha256")
    if type(size) is not int or size < 0:
        raise errors.corrupt(f"{MANIFEST} has a shard without a size")
    return ShardFile(file, size, digest)


def files_of(path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """Return the paths of the files that a tape of several workers consists of."""
    folder = os.fsdecode(path)
    manifest = read_manifest(folder, limits)
    return [os.path.join(folder, name) for name in (MANIFEST, *(shard.file for shard in manifest.shards))]


def other_shards(names: Iterable[str], manifest: Manifest, runs: Collection[str]) -> list[str]:
    """Return which of the files in a folder are shards of neither the tape there nor of `runs`, which are under way."""
    keep = {shard.file for shard in manifest.shards}
    endings = tuple(f"-{run[:8]}.tape" for run in runs)
    return [name for name in names if _SHARD.fullmatch(name) and name not in keep and not name.endswith(endings)]


def verify_shards(path: str | os.PathLike[str], manifest: Manifest) -> None:
    """Raise if a shard is missing or has other bytes than the manifest says."""
    folder = os.fsdecode(path)
    errors = TapeErrors(folder)
    for shard in manifest.shards:
        try:
            descriptor, size = open_file(errors, os.path.join(folder, shard.file))
        except FileNotFoundError:
            raise IncompleteTapeError(folder, f"{shard.file} is missing") from None
        try:
            if size != shard.bytes or _digest_of(descriptor, size) != shard.sha256:
                raise CorruptTapeError(folder, f"{shard.file} is not the file that was saved: its sha256 is wrong")
        finally:
            os.close(descriptor)


def _digest_of(descriptor: int, size: int) -> str:
    digest = hashlib.sha256()
    for at in range(0, size, PIECE):
        digest.update(read_at(descriptor, at, min(PIECE, size - at)))
    return digest.hexdigest()


def check_folder(path: str, overwrite: bool) -> None:
    """Raise early if a folder cannot take the shards of a tape; create it if it is not there."""
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise TapeWriteError(path, f"there is no directory {parent!r}", f"Create it first: `os.makedirs({parent!r})`.")
    if os.path.lexists(path) and not os.path.isdir(path):
        problem = "it is a file, and the workers of a strategy save a folder of shards"
        raise TapeWriteError(path, problem, "Give the name of a folder: `tape.save('job/', names)`.")
    if not overwrite and os.path.lexists(os.path.join(path, MANIFEST)):
        raise TapeWriteError(path, "it exists already", "Choose another name, or `overwrite=True`.")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        raise TapeWriteError(path, problem, f"Save to a directory that you may write to; {parent!r} is not.") from error
