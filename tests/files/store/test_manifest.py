"""A manifest says which files are a tape; it is read without trust, and nothing counts without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.workers_in_turn import Sent, Side, record, save_all
from retrotape.files import store
from retrotape.files.shard_folder import shard_folder


def summed(side: Side) -> Any:
    mine = tf.reduce_sum(side.variables["w"] ** 2) * (side.worker + 1.0)
    return {"loss": (yield Sent("SUM", mine))}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a folder of two shards; the gradient of the loss with respect to w is 6 w."""
    folder = tmp_path / "job"
    save_all(folder, record(summed, 2, {"w": [1.0, 2.0]}))
    assert rt.load(folder).gradient("loss", "w").numpy().tolist() == [6.0, 12.0]
    return folder


def edit(job: Path, change: Any) -> None:
    path = job / "manifest.json"
    written = json.loads(path.read_text())
    change(written)
    path.write_text(json.dumps(written))


def test_no_manifest_no_tape(job: Path):
    (job / "manifest.json").unlink()
    with pytest.raises(
        rt.errors.IncompleteTapeError, match=r"it has 2 shards and no manifest\.json\. Not every worker"
    ):
        rt.load(job)


def test_a_shard_is_missing(job: Path):
    next(job.glob("shard-00001*")).unlink()
    with pytest.raises(rt.errors.IncompleteTapeError, match=r"shard-00001-of-00002-01234567\.tape is missing"):
        rt.load(job)


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_shard_was_changed(job: Path, at: int):
    path = next(job.glob("shard-00001*"))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(rt.errors.CorruptTapeError, match="is not the file that was saved: its sha256 is wrong"):
        rt.load(job)


def test_a_shard_was_cut_short(job: Path):
    path = next(job.glob("shard-00000*"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(rt.errors.CorruptTapeError, match="is not the file that was saved"):
        rt.load(job)


def test_shards_of_two_runs(job: Path, tmp_path: Path):
    """A shard of another worker in the place of one, with a digest to match."""
    first, second = sorted(job.glob("shard-*"))
    second.write_bytes(first.read_bytes())
    described = store.describe_file(str(second))

    def put(written: Any) -> None:
        written["shards"][1] = described._asdict()

    edit(job, put)
    with pytest.raises(rt.errors.ShardMismatchError, match="is not shard 1 of run 0123456789abcdef"):
        rt.load(job)


HOSTILE = {
    "a list": (lambda w: w.clear(), "is not a manifest"),
    "another format": (lambda w: w.update(format="tape-shards/2"), "the format 'tape-shards/2'"),
    "no run": (lambda w: w.pop("run"), "names no run, or no shards"),
    "no shards": (lambda w: w.update(shards=[]), "names no run, or no shards"),
    "a path": (lambda w: w["shards"][0].update(file="../secret.tape"), "a shard without a name or a sha256"),
    "another order": (lambda w: w["shards"].reverse(), "are not those of one run, in order"),
    "twice the same": (lambda w: w["shards"].append(w["shards"][0]), "are not those of one run, in order"),
    "no digest": (lambda w: w["shards"][0].pop("sha256"), "a shard without a name or a sha256"),
    "a size below zero": (lambda w: w["shards"][0].update(bytes=-1), "a shard without a size"),
    "a size that is no number": (lambda w: w["shards"][0].update(bytes=True), "a shard without a size"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifests(job: Path, name: str):
    change, problem = HOSTILE[name]
    edit(job, change)
    with pytest.raises((rt.errors.CorruptTapeError, rt.errors.TapeVersionError), match=problem):
        rt.load(job)


def test_a_manifest_that_is_a_link(job: Path):
    (job / "manifest.json").rename(job / "real.json")
    (job / "manifest.json").symlink_to(job / "real.json")
    with pytest.raises(rt.errors.UnsafeTapeError, match=r"manifest\.json is a symbolic link"):
        rt.load(job)


def test_a_manifest_that_is_no_json(job: Path):
    (job / "manifest.json").write_text("{")
    with pytest.raises(rt.errors.CorruptTapeError, match=r"manifest\.json"):
        rt.load(job)


def test_other_shards_are_removed_but_not_those_under_way(job: Path):
    for run in ("aaaaaaaa", "bbbbbbbb"):
        (job / f"shard-00000-of-00002-{run}.tape").write_bytes(b"")
    (job / "notes.txt").write_text("mine")
    shard_folder(job).clean(store.read_manifest(job), {"bbbbbbbb" * 4})
    left = sorted(path.name for path in job.iterdir())
    ours = [f"shard-0000{worker}-of-00002-01234567.tape" for worker in range(2)]
    assert left == sorted(["manifest.json", "notes.txt", "shard-00000-of-00002-bbbbbbbb.tape", *ours])


def test_where_shards_cannot_go(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(rt.errors.TapeWriteError, match="it is a file, and the workers of a strategy save a folder"):
        store.check_folder(str(tmp_path / "file"), True)
    with pytest.raises(rt.errors.TapeWriteError, match=r"there is no directory .*`os\.makedirs"):
        store.check_folder(str(tmp_path / "none" / "job"), True)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "manifest.json").write_text("{}")
    with pytest.raises(rt.errors.TapeWriteError, match="it exists already"):
        store.check_folder(str(tmp_path / "job"), False)
