"""What is secret in a URL is neither shown nor part of the name of a file."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import pytest

fsspec = pytest.importorskip("fsspec", reason="the extra [fsspec] is not installed")

import retrotape as rt  # noqa: E402
from files.file_systems import Failing, Versioned, empty_cache, put, small  # noqa: E402
from retrotape.errors import BackgroundSaveWarning, TapeWriteError, UrlError  # noqa: E402
from retrotape.files import background  # noqa: E402
from retrotape.files.download import local_copy  # noqa: E402
from retrotape.files.remote import protocol_of, without_secrets  # noqa: E402
from retrotape.files.urls import local_path  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


SHOWN = {
    "s3://bucket/a.tape": "s3://bucket/a.tape",
    "s3://bucket/a@b.tape": "s3://bucket/a@b.tape",
    "http://host:80/a.tape": "http://host:80/a.tape",
    "http://[::1]:80/a.tape": "http://[::1]:80/a.tape",
    "zip://in/a.tape::simplecache::s3://b/c.zip": "zip://in/a.tape::simplecache::s3://b/c.zip",
    "a.tape": "a.tape",
    # user names and passwords
    "sftp://me:secret@host/a.tape": "sftp://…@host/a.tape",
    "sftp://secret@host/a@b.tape": "sftp://…@host/a@b.tape",
    "sftp://me:secret@secret@host/a.tape": "sftp://…@host/a.tape",
    "s3://AKIA:secret/secret@bucket/a.tape": "s3://…@bucket/a.tape",
    "sftp://me:secret::secret@host/a.tape": "sftp://…@host/a.tape",
    "sftp://me:secret?secret@host/a.tape": "sftp://…",
    "sftp://me:secret#secret/1@host/a.tape": "sftp://…",
    "sftp://me:secret@secret?secret@host/a.tape": "sftp://…",
    "zip://a.tape::sftp://me:secret@host/c.zip": "zip://a.tape::sftp://…@host/c.zip",
    # signatures
    "https://host/a.tape?sig=secret": "https://host/a.tape",
    "https://host/a.tape?mail=me@secret#secret": "https://host/a.tape",
    "https://host/a.tape#secret": "https://host/a.tape",
    "https://me:secret@host/a.tape?sig=secret": "https://…@host/a.tape",
    "zip://a.tape::https://host/c.zip?sig=secret": "zip://a.tape::https://host/c.zip",
}


@pytest.mark.parametrize("url", SHOWN)
def test_what_is_shown(url: str):
    assert without_secrets(url) == SHOWN[url]


def test_the_protocol_is_no_part_of_a_password():
    assert protocol_of("sftp://me:a::b@host/a.tape") == "sftp"


@pytest.mark.parametrize("login", ["me:pa@secret@host", "me:pa/secret@host", "host"])
def test_errors(login: str):
    url = f"failing://{login}/a.tape?sig=secret+1"
    for text in (f"cannot GET {url}", f"(url='{url}', status=1)", "no /a.tape?sig=secret+1 there", "https://h/?secret"):
        Failing.error = ValueError(text)
        with pytest.raises(UrlError) as reading:
            rt.load(url)
        tape, x, _ = small()
        with pytest.raises(TapeWriteError) as writing:
            tape.save(url, x=x)
        for error in (reading.value, writing.value):
            assert "ValueError: " in str(error)
            assert "secret" not in str(error)


def test_other_messages(tmp_path: Path):
    tape, x, _ = small()
    with pytest.raises(TapeWriteError, match="which a URL cannot hold") as caught:
        tape.save("memory://me:secret@host/a", x=x, store=tmp_path)
    assert "secret" not in str(caught.value)
    with pytest.raises(UrlError, match=r"`file:///…@host/a`") as wrong:
        local_path("file://me:secret@host/a?secret")
    assert "secret" not in str(wrong.value)


def test_names_of_copies(cache: Path):
    for login in ("me:secret@host", "me:sec/secret@host", "host"):
        put(f"versioned://{login}/a.tape?sig=secret")
        local_copy(f"versioned://{login}/a.tape?sig=secret")
    assert [name.partition("-")[2] for name in os.listdir(cache)] == ["a.tape"] * 3


def test_copies_of_two_queries_are_apart():
    """A query may select a version."""
    for version in (1.0, 2.0):
        put(f"versioned://host/a.tape?version={version}", version)
    assert float(rt.load("versioned://host/a.tape?version=1.0").value("x")) == 1.0
    assert float(rt.load("versioned://host/a.tape?version=2.0").value("x")) == 2.0
    assert Versioned.downloads == 2


def test_a_warning():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        background.submit("memory://me:secret@host/a?secret", lambda: 1 // 0).exception  # noqa: B018 - not asked for
        background.submit("(after)", lambda: 0).result(60)
        gc.collect()
    (warning,) = [one for one in found if issubclass(one.category, BackgroundSaveWarning)]
    assert "memory://…@host/a was not saved" in str(warning.message)
