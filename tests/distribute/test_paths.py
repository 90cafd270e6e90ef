"""Which tapes are meant, and the arguments that all farms take."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import retrotape as rt
from distribute.making import record
from retrotape.distribute import _paths
from retrotape.distribute._paths import stamp, tapes_in
from retrotape.errors import NoTapesError


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name in ("b.tape", "a.tape", "c.txt"):
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_patterns_are_sorted_and_lists_are_kept(folder):
    assert tapes_in("*.tape") == ["a.tape", "b.tape"]
    assert tapes_in(Path("*.tape")) == ["a.tape", "b.tape"]
    assert tapes_in(str(folder / "*.tape")) == [str(folder / "a.tape"), str(folder / "b.tape")]
    assert tapes_in(["b.tape", Path("a.tape"), "b.tape"]) == ["b.tape", "a.tape", "b.tape"]
    assert tapes_in(path for path in ("b.tape", "a.tape")) == ["b.tape", "a.tape"]
    assert tapes_in(folder / "a.tape") == [str(folder / "a.tape")]


def test_a_file_whose_name_looks_like_a_pattern(folder):
    (folder / "a[1].tape").write_text("")
    (folder / "a1.tape").write_text("")
    assert tapes_in("a[1].tape") == ["a[1].tape"]


def test_a_folder_with_shards_is_one_tape(folder):
    for job in ("job0", "job1"):
        (folder / job).mkdir()
        for name in ("manifest.json", "shard_0.tape", "shard_1.tape"):
            (folder / job / name).write_text(name)
    assert tapes_in("job*") == ["job0", "job1"]
    assert tapes_in("job*/") == ["job0", "job1"]
    assert tapes_in("job*/*.tape") == ["job0", "job1"]
    assert tapes_in("**/*.tape") == ["a.tape", "b.tape", "job0", "job1"]
    assert tapes_in("job0") == ["job0"]
    assert tapes_in("job0/") == ["job0/"]


def test_a_tape_in_a_folder_with_a_store(folder):
    tape, names = record(0)
    tape.save("stored.tape", names, store="store")
    tape.save("plain.tape", names)
    stored, plain = (rt.farm.backward(path, "loss") for path in ("stored.tape", "plain.tape"))
    assert stored == plain


def test_nothing_there(folder):
    wanted = {
        "*.other": f"No tape matches '*.other'. The current folder is {os.getcwd()!r}.",
        "x.tape": "There is no 'x.tape'. Give what `tape.save` wrote, or a pattern: \"steps/*.tape\".",
        str(folder): f"The folder {str(folder)!r} is not a tape: it has neither a tape.json nor a manifest.json. "
        f"For the tapes in it: `{str(folder / '*.tape')!r}`.",
    }
    for given, text in wanted.items():
        with pytest.raises(NoTapesError) as raised:
            tapes_in(given)
        assert str(raised.value) == text
    with pytest.raises(NoTapesError, match=r"Got an empty list of paths. Give a pattern"):
        tapes_in([])


@pytest.mark.parametrize("given", [3, b"a.tape", {"a": 1}])
def test_what_is_no_path(given):
    with pytest.raises(TypeError, match=r"as paths; give a pattern, \"steps/\*\.tape\", or a list of paths\."):
        tapes_in(given)
    with pytest.raises(TypeError, match=r"Got int among the paths; give text or a Path"):
        tapes_in([1])


def test_a_stamp_changes_with_the_content(folder):
    file = folder / "a.tape"
    first = stamp("a.tape")
    assert stamp(str(file)) == first
    about = file.stat()
    file.write_text("z.tape")
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))  # as if in the same tick of the clock
    assert stamp("a.tape") != first
    (folder / "job").mkdir()
    shutil.copy("a.tape", "job/a.tape")
    whole = stamp("job")
    (folder / "job" / "b.tape").write_text("")
    assert stamp("job") != whole


def test_urls_are_expanded_stamped_and_copied_by_whoever_can(folder, monkeypatch):
    tape, names = record(0)
    tape.save("copy.tape", names)
    urls = SimpleNamespace(
        is_url=lambda path: path.startswith("memory://"),
        expand=lambda pattern: ["memory://b.tape", "memory://a.tape"] if "://" in pattern else [],
        local_copy=lambda path: "copy.tape",
    )
    monkeypatch.setattr(_paths, "_urls", urls)
    versions = {"memory://a.tape": 1, "memory://b.tape": 1}
    monkeypatch.setattr(_paths, "_remote", lambda path: [("size", versions[path])])
    assert tapes_in("memory://*.tape") == ["memory://a.tape", "memory://b.tape"]
    assert tapes_in("memory://a.tape") == ["memory://a.tape"]
    total = rt.farm.backward("memory://*.tape", "loss", "w")
    assert total.count == 2
    assert total == 2.0 * rt.farm.backward("copy.tape", "loss", "w")
    before = stamp("memory://a.tape")
    versions["memory://a.tape"] = 2
    assert stamp("memory://a.tape") != before


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"reduce": "max"}, ValueError, "reduce= must be 'sum', 'mean' or 'each', got 'max'."),
        ({"chunk": 0}, ValueError, "chunk= takes a number of tapes, 1 or more; got 0."),
        ({"chunk": True}, ValueError, "chunk= takes a number of tapes, 1 or more; got True."),
        ({"on_error": "skip"}, ValueError, "on_error= must be 'stop' or 'continue', got 'skip'."),
        ({"progress": "yes"}, ValueError, "progress= must be True, False or None, got 'yes'."),
        ({"work": 3}, TypeError, "work= takes the path of a folder, got int."),
        ({"load": [1]}, TypeError, 'load= takes options for `rt.load`, `{"isolate": True}`; got list.'),
        ({"target": ["loss"]}, TypeError, 'target= takes a name on each tape, "loss"; got list.'),
        ({"wrt": [1]}, TypeError, 'wrt= takes names on each tape, ["dense/kernel"]; got int.'),
        (
            {"wrt": []},
            ValueError,
            'wrt= is empty; give names, ["dense/kernel"], or None for every trainable variable.',
        ),
    ],
    ids=str,
)
def test_arguments_that_are_refused(tapes, options, kind, told):
    with pytest.raises(kind) as raised:
        rt.farm.backward(tapes, **{"target": "loss", **options})
    assert str(raised.value) == told


def test_progress_is_shown_on_stderr_if_wanted(tapes, capsys):
    rt.farm.backward(tapes[:3], "loss", progress=True)
    assert "tapes" in capsys.readouterr().err
    rt.farm.backward(tapes[:3], "loss")
    rt.farm.backward(tapes[:3], "loss", progress=False)
    assert capsys.readouterr() == ("", "")
