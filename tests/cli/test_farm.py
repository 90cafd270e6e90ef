from __future__ import annotations

import os
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from cli.making import spawn


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Four tapes; the loss depends on b on the first two only."""
    folder = tmp_path_factory.mktemp("steps")
    w, b = tf.Variable([1.0, 2.0], name="w"), tf.Variable(3.0, name="b")
    for step in range(4):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(w**2) * float(step + 1)
            unused = b * 2.0
            loss = loss * b if step < 2 else loss
        tape.save(folder / f"{step}.tape", loss=loss, unused=unused)
    return folder


def test_the_sum_with_respect_to_every_trainable_variable(run, steps):
    found = run("farm", "grad", steps / "*.tape", "loss", "--json").json()
    assert found["tapes"] == 4
    assert found["failed"] == {}
    rows = {row["name"]: row for row in found["gradients"]}
    assert rows["w"]["norm"] == pytest.approx(2 * (3 * 3 + 7) * np.sqrt(5.0))
    assert rows["b"]["value"] == 15.0
    assert (found["target"], found["reduce"]) == ("loss", "sum")


def test_the_table(run, steps):
    done = run("farm", "grad", steps / "*.tape", "loss", "b", "--reduce", "mean")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^ +b +scalar +3.75 +100 %", done.out, re.M)
    assert "d loss / d b = 3.75" in done.out
    assert "mean over 4 tapes" in done.out


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_the_sum_is_written(run, steps, tmp_path, ending):
    path = tmp_path / f"grads.{ending}"
    done = run("farm", "grad", steps / "*.tape", "loss", "w", "b", "-o", path)
    assert f"written to {path}" in done.out
    if ending == "npz":
        assert {name: value.tolist() for name, value in np.load(path).items()} == {"w": [32.0, 64.0], "b": 15.0}


def test_each(run, steps, tmp_path):
    path = tmp_path / "each.npz"
    found = run("farm", "grad", steps / "*.tape", "loss", "w", "b", "--reduce", "each", "--json", "-o", path).json()
    assert [row["tape"] for row in found["tapes"]] == [str(steps / f"{step}.tape") for step in range(4)]
    assert [row["missing"] for row in found["tapes"]] == [[], [], ["b"], ["b"]]
    arrays = np.load(path)
    assert len(arrays.files) == 6
    np.testing.assert_array_equal(arrays[f"{steps / '2.tape'}:w"], [6.0, 12.0])
    table = run("farm", "grad", steps / "*.tape", "loss", "w", "--reduce", "each").out
    assert re.search(rf"{re.escape(str(steps / '3.tape'))} +{8 * np.sqrt(5.0):.4g}", table)


@pytest.mark.usefixtures("quick_processes")
def test_processes_and_a_folder_give_the_same(run, steps, tmp_path):
    here = run("farm", "grad", steps / "*.tape", "loss", "--chunk", 2, "--json").json()
    options = ["--chunk", 2, "--workers", 1, "--work", tmp_path / "work", "--json"]
    assert run("farm", "grad", steps / "*.tape", "loss", *options).json() == here
    assert len(os.listdir(tmp_path / "work")) == 2


def test_tapes_that_fail(run, steps, tmp_path):
    for name in os.listdir(steps):
        (tmp_path / name).write_bytes((steps / name).read_bytes())
    (tmp_path / "1.tape").write_text("hello")
    done = run("farm", "grad", tmp_path / "*.tape", "loss")
    assert done.code == 1
    assert re.match(r"retrotape farm: .*1.tape failed: CorruptTapeError: Cannot read the tape", done.failure())
    assert done.err.endswith(" To leave out tapes that fail, and have them listed: `--continue`.\n")
    done = run("farm", "grad", tmp_path / "*.tape", "loss", "--continue")
    assert done.code == 0
    assert "sum over 3 tapes" in done.out
    assert re.search(r"^1 failed:$(.|\n)*^ *\S*1.tape +CorruptTapeError: ", done.out, re.M)
    failed = run("farm", "grad", tmp_path / "*.tape", "loss", "--continue", "--json").json()["failed"]
    assert list(failed) == [str(tmp_path / "1.tape")]


def test_names_are_safe_to_print(run, tmp_path):
    v = tf.Variable(3.0, name="v")
    with rt.Tape() as tape:
        loss = v * v
    tape.save(tmp_path / "1.tape", {"loss": loss, "a\x1b[2Jb": v})
    done = run("farm", "grad", tmp_path / "1.tape", "loss", "a\x1b[2Jb")
    assert "\x1b" not in done.out
    assert "a\\x1b[2Jb" in done.out


# ------------------------------------------------------------------ what is refused, and when


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--workers", "2", "--ray"), "--workers, --dask and --ray exclude each other. Give one of them."),
        (("--workers", "0"), "0 is not in the range x>=1"),
        (("--reduce", "max"), "'max' is not one of 'sum', 'mean', 'each'"),
        (("-o", "grads.txt"), "'grads.txt' ends in none of .npz, .safetensors"),
    ],
)
def test_what_can_be_refused_is_refused_before_tensorflow_is_loaded(steps, arguments, told):
    after = "assert 'tensorflow' not in sys.modules"
    done = spawn("farm", "grad", steps / "*.tape", "loss", *arguments, after=after)
    assert done.code == 2
    assert told in done.err
    assert done.err.count("\n") == 1


def test_no_tapes(run, tmp_path):
    done = run("farm", "grad", tmp_path / "*.tape", "loss")
    assert done.code == 1
    assert f"retrotape farm: No tape matches '{tmp_path}/*.tape'. The current folder is" in done.failure()


def test_dask_that_is_not_installed(run, steps, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = run("farm", "grad", steps / "*.tape", "loss", "--dask", "127.0.0.1:1")
    assert done.code == 1
    assert (
        'A farm on Dask needs distributed, which is not installed: `pip install "retrotape[dask]"`.' in done.failure()
    )


@pytest.mark.filterwarnings("ignore")  # Dask's and Tornado's own
def test_a_dask_cluster_by_its_address(run, steps):
    distributed = pytest.importorskip("distributed", reason="the oldest environment does not have Dask")
    options = {"n_workers": 1, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        found = run("farm", "grad", steps / "*.tape", "loss", "--dask", cluster.scheduler_address, "--json").json()
    assert found == run("farm", "grad", steps / "*.tape", "loss", "--json").json()
