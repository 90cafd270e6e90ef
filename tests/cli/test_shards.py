"""The verbs on a folder of shards, which several workers have saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from cli.making import spawn
from helpers.workers_in_turn import Sent, Side, record, save_all

NO_TENSORFLOW = "assert not {'tensorflow', 'keras'} & set(sys.modules), 'loaded'"


def program(side: Side) -> Any:
    mine = tf.reduce_sum(side.variables["w"] ** 2) * (side.worker + 1.0)
    return {"mine": mine, "loss": (yield Sent("SUM", mine))}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    save_all(tmp_path / "job", record(program, 2, {"w": [1.0, 2.0]}))
    return tmp_path / "job"


def test_show(run, job):
    shown = run("show", job, "--json").json()
    assert shown["form"] == "shards"
    assert [row["worker"] for row in shown["shards"]] == [0, 1]
    assert [row["collectives"] for row in shown["shards"]] == [1, 1]
    assert [row["bytes"] for row in shown["shards"]] == [path.stat().st_size for path in sorted(job.glob("shard-*"))]
    assert {row["name"]: row["kind"] for row in shown["names"]} == {"loss": "target", "mine": "target", "w": "variable"}
    assert all(row["workers"] == [0, 1] for row in shown["names"])
    text = run("show", job).out
    assert "2 shards of run 01234567, one for each worker" in text
    assert "every worker" in text


def test_show_the_program_of_the_whole(run, job):
    shown = run("show", job, "--ops", "--json").json()
    assert shown["path"] == str(job)
    assert shown["ops"]["AddN"] == 1
    assert {row["name"] for row in shown["names"]} == {"loss", "shard_0/mine", "shard_1/mine", "w"}


def test_check(run, job):
    found = run("check", job, "--json").json()
    assert found["ok"]
    assert (found["shards"], found["collectives"]) == (2, 1)
    assert "every worker ran the same 1 collective op." in run("check", job).out


def test_show_and_check_do_not_load_tensorflow(job):
    for verb in ("show", "check"):
        done = spawn(verb, job, after=NO_TENSORFLOW)
        assert done.code == 0, done.err


def test_check_of_a_changed_shard(run, job):
    path = next(job.glob("shard-00001*"))
    path.write_bytes(path.read_bytes()[:-1])
    done = run("check", job, "--json")
    found = done.json()
    assert (done.code, found["kind"]) == (1, "CorruptTapeError")
    assert "is not the file that was saved" in found["problem"]


def test_check_of_other_collectives(run, tmp_path):
    def other(side: Side) -> Any:
        yield Sent("MEAN" if side.worker else "SUM", tf.reduce_sum(side.variables["w"]))
        return {}

    save_all(tmp_path / "job", record(other, 2, {"w": [1.0]}))
    done = run("check", tmp_path / "job", "--json")
    found = done.json()
    assert (done.code, found["kind"]) == (1, "ShardMismatchError")
    assert "collective op 0 is all_reduce" in found["problem"]


def test_without_a_manifest(run, job):
    (job / "manifest.json").unlink()
    for verb in (["show"], ["grad", "loss"], ["why", "loss", "w"], ["check"]):
        assert "it has 2 shards and no manifest.json" in run(verb[0], job, *verb[1:]).failure()


def test_queries(run, job):
    found = run("grad", job, "loss", "--json").json()
    assert [(row["name"], row["norm"]) for row in found["gradients"]] == [("w", pytest.approx(180**0.5))]
    assert "connected" in run("why", job, "loss", "w").out
    assert "everything is finite" in run("nan", job).out
    same = run("diff", job, job, "--json").json()
    assert (same["first"], same["second"]) == (str(job), str(job))
