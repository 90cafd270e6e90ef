"""Which tapes are meant, and the arguments that all farms take."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from distribute import dying
from distribute.making import record
from helpers.workers_in_turn import Sent, Side, save_all
from helpers.workers_in_turn import record as record_workers
from retrotape.distribute import farm
from retrotape.distribute._inputs import replayed_tape
from retrotape.distribute._paths import has_changed, stamp, tapes_in
from retrotape.errors import FarmError, NoTapesError, UrlError
from retrotape.files import background


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
    assert tapes_in(["b.tape", Path("a.tape")]) == ["b.tape", "a.tape"]
    assert tapes_in(["b.tape", "a.tape", "b.tape"], "allow") == ["b.tape", "a.tape", "b.tape"]
    assert tapes_in(path for path in ("b.tape", "a.tape")) == ["b.tape", "a.tape"]
    assert tapes_in(folder / "a.tape") == [str(folder / "a.tape")]


@pytest.mark.parametrize("other", ["a.tape", "./a.tape", "{}/a.tape", "link.tape", "file://{}/a.tape"])
def test_a_tape_that_is_given_twice_is_refused(folder, other):
    (folder / "link.tape").symlink_to("a.tape")
    other = other.format(folder)
    same = "" if other == "a.tape" else ", as 'a.tape' too"
    with pytest.raises(FarmError) as raised:
        tapes_in(["a.tape", "b.tape", other])
    assert str(raised.value) == (
        f"{other!r} is given more than once{same}, and would count more than once. Leave one out, or have it counted "
        'as often as it is given: `duplicates="allow"`.'
    )
    for ask in (lambda: rt.farm.backward(["a.tape", other], "loss"), lambda: rt.farm.map(["a.tape", other], len)):
        with pytest.raises(FarmError, match="is given more than once"):
            ask()


def test_a_link_among_the_tapes_of_a_pattern_is_refused(folder):
    (folder / "latest.tape").symlink_to("b.tape")
    with pytest.raises(FarmError, match=r"'latest\.tape' is given more than once, as 'b\.tape' too"):
        tapes_in("*.tape")
    with pytest.raises(ValueError, match=r"duplicates= must be 'raise' or 'allow', got True\."):
        tapes_in("*.tape", True)


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


@pytest.fixture
def bucket(monkeypatch, tmp_path) -> str:
    """Return the URL of an empty folder in memory, and use a cache of its own."""
    fsspec = pytest.importorskip("fsspec", reason="an extra of the package")
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]  # empty folders of other tests
    monkeypatch.setenv("RETROTAPE_CACHE", str(tmp_path / "cache"))
    return "memory://bucket"


def test_urls_are_expanded_stamped_and_copied(folder, bucket):
    tape, names = record(0)
    for name in ("b", "a"):
        tape.save(f"{bucket}/{name}.tape", names)
    tape.save("copy.tape", names)
    assert tapes_in(f"{bucket}/*.tape") == ["memory:///bucket/a.tape", "memory:///bucket/b.tape"]
    assert tapes_in(f"{bucket}/a.tape") == [f"{bucket}/a.tape"]
    total = rt.farm.backward(f"{bucket}/*.tape", "loss", "w")
    assert total.count == 2
    assert total == 2.0 * rt.farm.backward("copy.tape", "loss", "w")
    before = stamp(f"{bucket}/a.tape")
    tape.save(f"{bucket}/a.tape", names, values="all")
    assert stamp(f"{bucket}/a.tape") != before


def save_square(url: str, factor: float) -> None:
    w = tf.Variable(factor, name="w")
    with rt.Tape() as tape:
        loss = w**2
    tape.save(url, loss=loss)


@pytest.mark.parametrize("says", ["when it was made", "its size only"])
def test_another_tape_of_the_same_size_behind_a_url(bucket, tmp_path, monkeypatch, says):
    files = pytest.importorskip("fsspec", reason="an extra of the package").filesystem("memory")
    if says == "its size only":
        info = type(files).info
        monkeypatch.setattr(type(files), "info", lambda *given, **more: {**info(*given, **more), "created": None})
    url, sizes = f"{bucket}/a.tape", set()

    def total() -> float:
        return float(rt.farm.backward(url, "loss", "w", work=tmp_path / "sums")["w"])

    def replayed() -> float:
        return float(rt.farm.replay(url, [{}], lambda tape: tape.gradient("loss", "w"), work=tmp_path / "each")[0])

    for factor in (2.0, 5.0):
        save_square(url, factor)
        sizes.add(files.size("/bucket/a.tape"))
        assert (total(), replayed()) == (2.0 * factor, 2.0 * factor)
    assert len(sizes) == 1
    loads: list[str] = dying.loaded(monkeypatch)
    assert total() == 10.0
    assert len(loads) == (1 if says == "its size only" else 0)
    known = stamp(url)
    save_square(url, 3.0)
    assert has_changed(url, known) is (says != "its size only")


def both(side: Side) -> Any:
    mine = tf.reduce_sum(side.variables["w"] ** 2) * (side.worker + 1.0)
    return {"loss": (yield Sent("SUM", mine))}


def test_a_folder_of_shards_is_one_tape(folder, bucket):
    """Here, and behind a URL."""
    for number in range(2):
        save_all(folder / f"job{number}", record_workers(both, 2, {"w": [1.0, 2.0 + number]}))
    total = rt.farm.backward("job*", "loss", "w")
    assert total.count == 2
    assert total["w"].numpy().tolist() == [12.0, 30.0]
    files = pytest.importorskip("fsspec", reason="an extra of the package").filesystem("memory")
    files.put(str(folder / "job0"), "/bucket/job0", recursive=True)
    there = f"{bucket}/job0"
    assert rt.farm.backward(there, "loss", "w")["w"].numpy().tolist() == [6.0, 12.0]
    for pattern in ("job*", "job*/*", "job*/*.tape", "**/shard*"):
        assert tapes_in(f"{bucket}/{pattern}") == ["memory:///bucket/job0"]
        assert rt.farm.backward(f"{bucket}/{pattern}", "loss", "w").count == 1
    before = stamp(there)
    files.pipe_file("/bucket/job0/manifest.json", files.cat_file("/bucket/job0/manifest.json") + b" ")
    assert stamp(there) != before


def test_shards_without_a_manifest_are_not_taken_for_tapes(folder):
    save_all(folder / "job", record_workers(both, 2, {"w": [1.0, 2.0]}))
    (folder / "job" / "manifest.json").unlink()
    assert tapes_in("job/*.tape") == ["job"]
    with pytest.raises(FarmError, match=r"job failed: IncompleteTapeError: "):
        rt.farm.backward("job/*.tape", "loss", "w")


def test_a_url_that_is_missing(bucket):
    save_square(f"{bucket}/a.tape", 2.0)
    paths = [f"{bucket}/a.tape", f"{bucket}/none.tape"]
    with pytest.raises(UrlError, match=r"none\.tape: it does not exist"):
        rt.farm.backward(paths, "loss", "w")
    total = rt.farm.backward(paths, "loss", "w", on_error="continue")
    assert (total.count, list(total.failed)) == (1, paths[1:])


def test_a_tape_that_was_missing_and_came_while_the_farm_ran(folder, monkeypatch):
    """Its result is not used when it is gone again."""
    save_square("first.tape", 2.0)
    paths = ["first.tape", "late.tape"]
    with monkeypatch.context() as patch:
        items = farm.items_of
        patch.setattr(farm, "items_of", lambda *given: (items(*given), save_square("late.tape", 3.0))[0])
        assert rt.farm.backward(paths, "loss", "w", on_error="continue", work="work").count == 1
    os.unlink("late.tape")
    total = rt.farm.backward(paths, "loss", "w", on_error="continue", work="work")
    assert (total.count, list(total.failed)) == (1, ["late.tape"])


def test_what_is_being_saved_in_the_background_counts(folder, monkeypatch):
    held = threading.Event()
    first = background.submit("a save that takes long", lambda: held.wait(60) and 0)
    w = tf.Variable(2.0, name="w")
    with rt.Tape() as tape:
        loss = w**2
    saves = [tape.save(f"step_{number}.tape", loss=loss, wait=False) for number in range(3)]
    assert not os.path.exists("step_2.tape")
    wait = background.wait
    monkeypatch.setattr(background, "wait", lambda futures: (held.set(), wait(futures))[1])  # only now it goes on
    assert rt.farm.backward("step_*.tape", "loss", "w").count == 3
    assert [save.result() > 0 for save in (*saves, first)] == [True, True, True, False]


def test_the_tape_of_a_replay_that_is_being_saved(folder, monkeypatch):
    save_square("a.tape", 2.0)
    held = threading.Event()
    background.submit("a save that takes long", lambda: held.wait(60) and 0)
    w = tf.Variable(5.0, name="w")
    with rt.Tape() as tape:
        loss = w**2
    save = tape.save("a.tape", loss=loss, wait=False)
    wait = background.wait
    monkeypatch.setattr(background, "wait", lambda futures: (held.set(), wait(futures))[1])
    assert replayed_tape("a.tape", False, {}, ".")[1] == stamp("a.tape")
    assert save.done()


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
