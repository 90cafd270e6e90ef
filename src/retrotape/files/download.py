"""Local copies of tapes behind URLs: one file, or a folder of shards. No more is downloaded than was announced."""

from __future__ import annotations

import os
import shutil
from typing import Any

from retrotape.errors import CorruptTapeError, UnsafeTapeError, UrlError
from retrotape.files import store, url_cache
from retrotape.files.remote import file_system, is_there, read_at_most, reading, without_secrets


def local_copy(url: str, limits: store.Limits | None = None) -> str:
    """Return the path of a local copy of a file, or of a folder with a manifest.

    It is downloaded if there is no copy of the version that is there now.

    Raises:
      UrlError: If it cannot be downloaded, or there is no space for it.
      CorruptTapeError: If the download has another size than the file there.
      UnsafeTapeError: If it exceeds a limit.
    """
    with reading(url):
        files, path = file_system(url)
        info = files.info(path)
        if info.get("type") == "directory":
            return _folder(files, path, url, limits)
        size = info.get("size")
        _check_limit(url, size or 0, limits)

        def fetch(to: str) -> None:
            _check_space(url, size or 0, to)
            _download(files, path, to, url, size, limits)

        def is_whole(at: str) -> bool:
            return os.path.isfile(at) and size in (None, os.path.getsize(at))

        return url_cache.entry(url, url_cache.version_of(info), fetch, is_whole=is_whole)


def _folder(files: Any, path: str, url: str, limits: store.Limits | None) -> str:
    if is_there(files, f"{path.rstrip('/')}/{store.MANIFEST}"):
        return local_copy_of_folder(url, limits)
    raise UrlError(
        without_secrets(url),
        f"it is a folder without {store.MANIFEST}; a tape with a store cannot be opened by a URL",
        "Copy the folder and its store, and load the copy; or save one file, without `store=`.",
    )


def local_copy_of_folder(url: str, limits: store.Limits | None = None) -> str:
    """Return the path of a local copy of a folder: its manifest, and the files that this names.

    Raises:
      UrlError: If it cannot be downloaded, or there is no space for it.
      CorruptTapeError: If the manifest is damaged, or a download has another size than it says.
      UnsafeTapeError: If it exceeds a limit.
    """
    with reading(url):
        files, path = file_system(_inside(url, store.MANIFEST))
        text = read_at_most(files, path, store.LARGEST_MANIFEST + 1)
        manifest = store.parse_manifest(text, without_secrets(url), limits or store.Limits())
        total = sum(shard.bytes for shard in manifest.shards)
        _check_limit(url, total, limits)

        def fetch(to: str) -> None:
            _check_space(url, total, to)
            os.mkdir(to, 0o700)
            for shard in manifest.shards:
                there = _inside(url, shard.file)
                _download(files, file_system(there)[1], os.path.join(to, shard.file), there, shard.bytes, limits)
            with open(os.path.join(to, store.MANIFEST), "wb") as out:  # last, as everywhere
                out.write(text)

        def is_whole(at: str) -> bool:
            expected = [(shard.file, shard.bytes) for shard in manifest.shards] + [(store.MANIFEST, len(text))]
            paths = [(os.path.join(at, name), size) for name, size in expected]
            return all(os.path.isfile(path) and os.path.getsize(path) == size for path, size in paths)

        return url_cache.entry(url, [text.hex()], fetch, is_whole=is_whole)  # it has the digest of every file


def _download(files: Any, path: str, to: str, url: str, size: int | None, limits: store.Limits | None) -> None:
    """Download a file; its content is verified by the digests in it, when it is used."""
    from fsspec.callbacks import Callback

    def check(_: int | None, so_far: int, **__: Any) -> None:
        if size is not None and so_far > size:
            problem = f"the download has {so_far:,} bytes or more, and the file there has {size:,}"
            raise CorruptTapeError(without_secrets(url), problem, "Try again.")
        _check_limit(url, so_far, limits, "or more ")

    files.get_file(path, to, callback=Callback(hooks={"check": check}))
    found = os.path.getsize(to)
    check(None, found)
    if size is not None and found != size:
        problem = f"the download has {found:,} bytes, and the file there has {size:,}"
        raise CorruptTapeError(without_secrets(url), problem, "Try again.")


def _check_limit(url: str, nbytes: int, limits: store.Limits | None, perhaps: str = "") -> None:
    """Raise if the files of a tape have more bytes than the caller allows; `perhaps` there are more than `nbytes`."""
    limit = None if limits is None else limits.total_bytes
    if limit is not None and nbytes > limit:
        problem = f"there are {nbytes:,} bytes {perhaps}to download, the limit is {limit:,}"
        remedy = f"If you trust the file, raise the limit: `Limits(total_bytes={nbytes})`."
        raise UnsafeTapeError(without_secrets(url), problem, remedy)


def _check_space(url: str, nbytes: int, to: str) -> None:
    """Raise if a disk has no space for so many bytes: before it is full."""
    folder = os.path.dirname(to)
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        problem = f"there are {nbytes:,} bytes to download, and {free:,} are free on the disk of {folder!r}"
        remedy = f"Free some space, or set `{url_cache.DIRECTORY}` to a folder on another disk."
        raise UrlError(without_secrets(url), problem, remedy)


def _inside(url: str, name: str) -> str:
    """Return the URL of a file in a folder.

    >>> _inside("zip://job::s3://bucket/a.zip", "x"), _inside("simplecache::s3://bucket/job/", "x")
    ('zip://job/x::s3://bucket/a.zip', 'simplecache::s3://bucket/job/x')
    """
    first, chained, rest = url.partition("::")
    if chained and "://" not in first:
        return f"{first}::{_inside(rest, name)}"
    return f"{first.rstrip('/')}/{name}{chained}{rest}"
