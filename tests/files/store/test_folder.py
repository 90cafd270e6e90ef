"""Tapes that are folders, and the store that they share."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

from files.store import forge
from files.store.reading import read_all
from retrotape.errors import CorruptTapeError, TapeWriteError
from retrotape.files.store import Stored, open_tape, write
from retrotape.files.store import _blobs as blobs
from retrotape.io import _replace as replace

WEIGHTS = np.arange(100_000, dtype=np.float32)


def save(path, store, *, step: int = 0, **more):
    tensors = [
        Stored("weights", "float32", WEIGHTS.shape, WEIGHTS),
        Stored("same", "float32", (100, 1000), WEIGHTS),
        Stored("step", "int64", (), step.to_bytes(8, "little")),
        Stored("words", "string", (1,), [b"abc"]),
    ]
    return write(path, {"program.txt": b"%0"}, tensors, {"step": step}, store=store, **more)


def files(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_folder_holds_one_file_and_the_store_what_it_names(tmp_path):
    save(tmp_path / "a.tape", tmp_path / "store")
    assert files(tmp_path / "a.tape") == ["tape.json"]
    pieces = [WEIGHTS.tobytes(), bytes(8), b"abc", b"%0", b"\0" * 8 + b"\3" + b"\0" * 7]
    digests = [forge.sha256(piece) for piece in pieces]
    assert files(tmp_path / "store") == sorted(f"{digest[:2]}/{digest}" for digest in digests)
    for digest, piece in zip(digests, pieces, strict=True):
        assert (tmp_path / "store" / digest[:2] / digest).read_bytes() == piece
    with open_tape(tmp_path / "a.tape") as tape:
        assert tape.features == ("blobs",)


def test_what_is_there_is_not_written_again(tmp_path, monkeypatch):
    first = save(tmp_path / "0.tape", tmp_path / "store")
    assert WEIGHTS.nbytes < first < WEIGHTS.nbytes + 2000
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*") if path.is_file()}
    for step in range(1, 20):
        assert save(tmp_path / f"{step}.tape", tmp_path / "store", step=step) < 2000
    for path, when in before.items():
        assert path.stat().st_mtime_ns == when
    assert len(files(tmp_path / "store")) == 5 + 19
    for step in range(20):
        found = read_all(tmp_path / f"{step}.tape")
        assert found["meta"] == {"step": step}
        assert found["values"]["weights"] == found["values"]["same"] == WEIGHTS.tobytes()


def test_a_file_of_another_size_is_written_again(tmp_path):
    save(tmp_path / "a.tape", tmp_path / "store")
    digest = forge.sha256(WEIGHTS.tobytes())
    blob = tmp_path / "store" / digest[:2] / digest
    blob.write_bytes(b"cut short")
    save(tmp_path / "b.tape", tmp_path / "store")
    assert read_all(tmp_path / "a.tape")["values"]["weights"] == WEIGHTS.tobytes()


def test_tape_json_is_the_last_that_is_written(tmp_path, monkeypatch):
    """So that whatever it names is there."""
    order = []
    real = os.replace

    def note(old, new):
        order.append(new)
        real(old, new)

    monkeypatch.setattr(replace.os, "replace", note)
    save(tmp_path / "a.tape", tmp_path / "store")
    assert order[-1] == str(tmp_path / "a.tape" / "tape.json")
    assert len(order) == 6


@pytest.mark.parametrize(
    ("tape", "store", "way"),
    [
        ("a.tape", "store", "../store"),
        ("a.tape", "a.tape/blobs", "blobs"),
        ("runs/1/a.tape", "store", "../../../store"),
        ("a.tape", "the größte store: 1", "../the größte store: 1"),
    ],
)
def test_the_store_is_found_from_where_the_tape_is(tape, store, way, tmp_path, monkeypatch):
    (tmp_path / "one" / tape).parent.mkdir(parents=True)
    save(tmp_path / "one" / tape, tmp_path / "one" / store)
    assert f'"store":"{way}"' in (tmp_path / "one" / tape / "tape.json").read_text()
    (tmp_path / "one").rename(tmp_path / "two")  # both together
    assert read_all(tmp_path / "two" / tape)["values"]["weights"] == WEIGHTS.tobytes()
    monkeypatch.chdir(tmp_path / "two")
    assert read_all(tape)["values"]["weights"] == WEIGHTS.tobytes()


def test_the_store_is_found_through_links_above_the_tape(tmp_path):
    (tmp_path / "deep" / "er" / "runs").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("deep/er/runs")
    (tmp_path / "big").mkdir()
    (tmp_path / "store").symlink_to("big")
    save(tmp_path / "runs" / "a.tape", tmp_path / "store")
    assert read_all(tmp_path / "runs" / "a.tape")["meta"] == {"step": 0}
    assert files(tmp_path / "big")


def test_a_tape_without_its_store_says_so(tmp_path):
    save(tmp_path / "a.tape", tmp_path / "store")
    (tmp_path / "elsewhere").mkdir()
    shutil.move(tmp_path / "a.tape", tmp_path / "elsewhere" / "a.tape")
    with pytest.raises(CorruptTapeError, match=r"its store '../store' does not exist\. .* moved together"):
        open_tape(tmp_path / "elsewhere" / "a.tape")


def test_a_store_that_cannot_be_named(tmp_path):
    (tmp_path / "a\\b").mkdir()
    with pytest.raises(
        TapeWriteError,
        match=r"there is no relative path to the store '.*' that readers accept\. Choose a closer one, for example in",
    ):
        save(tmp_path / "a.tape", tmp_path / "a\\b" / "store")
    assert not (tmp_path / "a.tape").exists()


def test_a_store_whose_parent_is_missing(tmp_path):
    with pytest.raises(TapeWriteError, match="no such file or directory"):
        save(tmp_path / "a.tape", tmp_path / "no" / "store")
    assert not (tmp_path / "a.tape").exists()


def test_saving_again_replaces_the_tape_and_keeps_what_others_may_need(tmp_path):
    save(tmp_path / "a.tape", tmp_path / "store", step=1)
    before = files(tmp_path / "store")
    save(tmp_path / "a.tape", tmp_path / "store", step=2)
    assert read_all(tmp_path / "a.tape")["meta"] == {"step": 2}
    assert set(before) < set(files(tmp_path / "store"))


def test_two_tensors_with_the_same_data_do_not_share_memory(tmp_path):
    save(tmp_path / "a.tape", tmp_path / "store")
    with open_tape(tmp_path / "a.tape") as tape:
        tape.tensor("weights")[:] = 0
        np.testing.assert_array_equal(tape.tensor("same").view(np.float32), WEIGHTS)


# ------------------------------------------------------------------ what lies in a store may come from anybody


def blob_of(store, data: bytes):
    digest = forge.sha256(data)
    return store / digest[:2] / digest


def test_a_damaged_file_of_the_same_size_is_written_again(tmp_path):
    save(tmp_path / "a.tape", tmp_path / "store")
    blob = blob_of(tmp_path / "store", WEIGHTS.tobytes())
    blob.write_bytes(bytes(WEIGHTS.nbytes))
    with pytest.raises(CorruptTapeError, match="is wrong, so it was changed"):
        read_all(tmp_path / "a.tape")
    assert save(tmp_path / "b.tape", tmp_path / "store") > WEIGHTS.nbytes
    for name in ("a.tape", "b.tape"):
        assert read_all(tmp_path / name)["values"]["weights"] == WEIGHTS.tobytes()


def test_a_save_compares_what_is_there_once(tmp_path, monkeypatch):
    save(tmp_path / "a.tape", tmp_path / "store")
    compared = []
    real = blobs._holds
    monkeypatch.setattr(blobs, "_holds", lambda path, data: compared.append(path) or real(path, data))
    save(tmp_path / "b.tape", tmp_path / "store")
    assert len(compared) == len(set(compared)) == 5  # "weights" and "same" have the same bytes


def test_a_link_in_the_place_of_a_blob_is_replaced_and_what_it_points_to_is_not_touched(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    blob = blob_of(tmp_path / "store", WEIGHTS.tobytes())
    blob.parent.mkdir(parents=True)
    blob.symlink_to(precious)
    save(tmp_path / "a.tape", tmp_path / "store")
    assert not blob.is_symlink()
    assert blob.stat().st_mode & 0o111 == 0  # the mode of a link is not taken over
    assert precious.read_bytes() == b"precious"
    assert read_all(tmp_path / "a.tape")["values"]["weights"] == WEIGHTS.tobytes()


def test_a_hard_link_in_the_place_of_a_blob_is_replaced_and_the_other_name_keeps_its_bytes(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(bytes(WEIGHTS.nbytes))
    blob = blob_of(tmp_path / "store", WEIGHTS.tobytes())
    blob.parent.mkdir(parents=True)
    os.link(precious, blob)
    save(tmp_path / "a.tape", tmp_path / "store")
    assert precious.read_bytes() == bytes(WEIGHTS.nbytes)
    assert blob.read_bytes() == WEIGHTS.tobytes()


def test_a_pipe_in_the_place_of_a_blob_does_not_block_a_save(tmp_path):
    blob = blob_of(tmp_path / "store", WEIGHTS.tobytes())
    blob.parent.mkdir(parents=True)
    os.mkfifo(blob)
    save(tmp_path / "a.tape", tmp_path / "store")
    assert blob.read_bytes() == WEIGHTS.tobytes()


def test_a_folder_in_the_place_of_a_blob_is_said_to_be_there(tmp_path):
    blob_of(tmp_path / "store", WEIGHTS.tobytes()).mkdir(parents=True)
    with pytest.raises(TapeWriteError, match="is a directory"):
        save(tmp_path / "a.tape", tmp_path / "store")


def test_no_blob_is_written_through_a_link(tmp_path):
    """Somebody else who may write to the store must not choose where our bytes go."""
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = blob_of(tmp_path / "store", WEIGHTS.tobytes()).parent
    folder.parent.mkdir()
    folder.symlink_to(outside)
    with pytest.raises(TapeWriteError, match="a link is in the way of the folder"):
        save(tmp_path / "a.tape", tmp_path / "store")
    assert list(outside.iterdir()) == []


def test_whoever_saves_may_name_the_store_by_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    save(tmp_path / "a.tape", tmp_path / "link")
    with open_tape(tmp_path / "a.tape") as tape:
        assert json.loads(tape.entry("tape.json"))["store"] == "../real"
        assert tape.tensor("weights").tobytes() == WEIGHTS.tobytes()


@pytest.mark.parametrize("part", ["path", "store"])
def test_no_file_has_the_character_nul_in_its_name(tmp_path, part):
    given = {"path": tmp_path / "a.tape", "store": tmp_path / "store", part: f"{tmp_path}/a\0b"}
    with pytest.raises(TapeWriteError, match=r"has the character NUL in it. Give the name of a file"):
        save(given["path"], given["store"])
    with pytest.raises(CorruptTapeError, match=r"no file has the character NUL in its name. Give the path"):
        open_tape(f"{tmp_path}/a\0b")
