from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from cli.making import spawn, write
from retrotape.cli import _gradients
from retrotape.cli._arrays import write_arrays
from retrotape.errors import TapeWriteError


def read_safetensors(path) -> dict[str, np.ndarray]:
    """Read a file as its format is described, strictly: as stock readers do."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    dtypes = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "C64": "<c8", "F8_E5M2": "u1"}
    found, at = {}, 0
    for name, row in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = row["data_offsets"]
        assert start == at  # no gaps
        found[name] = np.frombuffer(data[8 + length + start : 8 + length + end], dtypes[row["dtype"]]).reshape(
            row["shape"]
        )
        at = end
    assert 8 + length + at == len(data)
    return found


@pytest.fixture
def answers(saved) -> dict[str, np.ndarray]:
    tape = rt.load(saved["plain"])
    return {name: tape.gradient("loss", name).numpy() for name in ("x", "w", "b", "hidden")}


def test_the_gradient_by_every_trainable_variable(run, saved, answers):
    found = run("grad", saved["plain"], "loss", "--json").json()
    assert [row["name"] for row in found["gradients"]] == ["w", "b"]
    for row in found["gradients"]:
        assert row["norm"] == pytest.approx(float(np.linalg.norm(answers[row["name"]])), rel=1e-6)
        assert row["shape"] == list(answers[row["name"]].shape)
    assert found["norm"] == pytest.approx(np.hypot(*(row["norm"] for row in found["gradients"])), rel=1e-6)
    assert found["target"] == "loss"


def test_the_table_is_that_of_gradients(run, saved, answers):
    done = run("grad", saved["plain"], "loss", "x", "hidden")
    for name in ("x", "hidden"):
        assert re.search(rf"^ +{name} +2x2 +{np.linalg.norm(answers[name]):.4g} +\d+ %", done.out, re.M)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_gradients_are_written(run, saved, answers, tmp_path, ending):
    path = tmp_path / f"grads.{ending}"
    done = run("grad", saved["plain"], "loss", "x", "w", "-o", path)
    assert f"written to {path}" in done.out
    found = dict(np.load(path)) if ending == "npz" else read_safetensors(path)
    assert set(found) == {"x", "w"}
    for name, value in found.items():
        np.testing.assert_array_equal(value, answers[name])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_stock_reader_reads_what_is_written(run, saved, answers, tmp_path):
    stock = pytest.importorskip("safetensors.numpy")
    run("grad", saved["plain"], "loss", "x", "-o", tmp_path / "grads.safetensors")
    np.testing.assert_array_equal(stock.load_file(tmp_path / "grads.safetensors")["x"], answers["x"])


def test_the_end_of_a_name_is_enough_if_only_one_ends_so(run, folder):
    a, b = tf.Variable(2.0, name="left/kernel"), tf.Variable(3.0, name="right/kernel")
    c = tf.Variable(4.0, name="right/bias")
    with rt.Tape() as tape:
        loss = a * b * c
    tape.save(folder / "ends.tape", {"loss": loss})
    assert run("grad", folder / "ends.tape", "loss", "bias", "--json").json()["gradients"][0]["value"] == 6.0
    failure = run("grad", folder / "ends.tape", "loss", "kernel").failure()
    assert "'kernel' may be any of 'left/kernel', 'right/kernel'. Give more of the name." in failure


def test_a_number_is_printed_with_its_sign(run, loop):
    done = run("grad", loop, "loss", "rate", "--through-updates")
    value = float(re.search(r"^d loss / d rate = (\S+)$", done.out, re.M)[1])
    v = 0.5 * (1 - 0.02) ** 20
    slope = 3 * v**2 * 0.5 * 20 * (1 - 0.02) ** 19 * -2.0
    assert value == pytest.approx(slope, rel=1e-4)


def test_without_updates_there_is_no_path_and_a_reason(run, loop, tmp_path):
    done = run("grad", loop, "loss", "rate", "--json", "-o", tmp_path / "none.npz").json()
    assert done["gradients"][0]["missing"]
    assert done["norm"] == 0.0
    assert list(np.load(tmp_path / "none.npz")) == []
    assert "missing" in run("grad", loop, "loss", "rate").out


def test_higher_orders(run, folder):
    x = tf.constant([1.0, 2.0])
    with rt.Tape() as tape:
        y = tf.reduce_sum(x**4)
    tape.save(folder / "orders.tape", {"x": x, "y": y})
    expected = {1: 4 * x**3, 2: 12 * x**2, 3: 24 * x, 4: 24 * tf.ones(2), 5: tf.zeros(2)}
    for order, value in expected.items():
        out = folder / "order.npz"
        run("grad", folder / "orders.tape", "y", "x", "--order", order, "-o", out)
        np.testing.assert_allclose(np.load(out)["x"], value, rtol=1e-5)


def test_a_sparse_gradient_is_written_in_full(run, folder):
    table = tf.Variable(tf.ones([5, 2]), name="table")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 1, 3]))
    tape.save(folder / "sparse.tape", {"loss": loss})
    found = run("grad", folder / "sparse.tape", "loss", "-o", folder / "sparse.npz", "--json").json()
    assert found["gradients"][0]["sparse"] is True
    np.testing.assert_array_equal(np.load(folder / "sparse.npz")["table"][:, 0], [0, 2, 0, 1, 0])


def test_numbers_that_are_none_are_still_json(run, folder):
    x = tf.constant(0.0)
    with rt.Tape() as tape:
        y = tf.sqrt(x)
    tape.save(folder / "infinite.tape", {"x": x, "y": y})
    row = run("grad", folder / "infinite.tape", "y", "x", "--json").json()["gradients"][0]
    assert (row["norm"], row["value"]) == ("inf", "inf")


def test_two_names_of_one_variable_count_once(run, folder):
    v = tf.Variable(3.0, name="v")
    with rt.Tape() as tape:
        loss = v * v
    tape.save(folder / "names.tape", {"loss": loss, "weight": v})
    whole = run("grad", folder / "names.tape", "loss", "--json").json()["gradients"]
    assert [(row["name"], row["value"]) for row in whole] == [("v", 6.0)]
    both = run("grad", folder / "names.tape", "loss", "v", "weight", "v", "--json").json()["gradients"]
    assert [(row["name"], row["value"]) for row in both] == [("v", 6.0), ("weight", 6.0)]


@pytest.mark.slow
def test_an_isolated_tape_gives_the_same(run, saved, answers, tmp_path):
    run("grad", saved["plain"], "loss", "x", "--isolate", "-o", tmp_path / "grads.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "grads.npz")["x"], answers["x"])
    here, there = (
        run("grad", saved["plain"], "loss", "x", "--order", 2, "--json", *more).json() for more in ([], ["--isolate"])
    )
    assert there == here


def test_isolate_is_handed_on(run, saved, monkeypatch):
    class Isolated:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            given.append("closed")

        def gradient(self, target, sources, **options):
            given.append((target, sources))
            return [tf.ones([2, 2]) for _ in sources]

    given: list = []
    monkeypatch.setattr(_gradients, "load", lambda path, isolate=False: Isolated() if isolate else None)
    assert len(run("grad", saved["plain"], "loss", "x", "--isolate", "--json").json()["gradients"]) == 1
    assert given == [("loss", ["x"]), "closed"]


def test_numbers_stay_whole_on_a_narrow_terminal(run, folder):
    v = tf.Variable([1.0, 2.0], name="a/rather/long/name/for/a/variable/kernel")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(v * 1234.5)
    tape.save(folder / "long.tape", {"loss": loss})
    done = run("grad", folder / "long.tape", "loss", FORCE_COLOR="1", TERM="xterm", COLUMNS="40")
    plain = re.sub(r"\x1b\[[\d;]*m", "", done.out)
    assert max(map(len, plain.splitlines())) <= 40
    assert re.search(r" 1746 +100 %", plain)
    assert "".join(re.findall(r"^  (\S+)", plain, re.M)).count("a/rather/long/name/for/a/variable/kernel") == 1


# ------------------------------------------------------------------ what is refused, and when


def test_the_tape_itself_is_not_overwritten(run, saved, tmp_path):
    path = tmp_path / "tape.npz"
    path.write_bytes(saved["plain"].read_bytes())
    done = run("grad", path, "loss", "-o", path)
    assert done.code == 2
    assert "is the tape itself" in done.failure()
    assert path.read_bytes() == saved["plain"].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "told", "code"),
    [
        (("nothing",), "nothing named 'nothing'; its names are", 1),
        (("loss", "nothing"), "nothing named 'nothing'; its names are", 1),
        (("loss", "-o", "grads.txt"), "'grads.txt' ends in none of .npz, .safetensors", 2),
        (("loss", "-o", "/no/such/folder/grads.npz"), "There is no folder '/no/such/folder'", 2),
        (("loss", "--order", "0"), "0 is not in the range x>=1", 2),
    ],
)
def test_what_can_be_refused_is_refused_before_tensorflow_is_loaded(saved, arguments, told, code):
    after = "assert 'tensorflow' not in sys.modules"
    done = spawn("grad", saved["plain"], *arguments, after=after)
    assert done.code == code
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_tape_without_variables_asks_for_sources(run, tmp_path):
    done = run("grad", write(tmp_path / "plain.tape"), "y")
    assert done.code == 2
    assert "no trainable variable. Name a SOURCE" in done.failure()


# ------------------------------------------------------------------ files of arrays


def test_dtypes_and_names(tmp_path):
    half = tf.constant([1.5, -2.0], tf.bfloat16).numpy()
    arrays = {
        "file": np.eye(2),
        "a b/ü": half,
        "empty": np.zeros((0, 3), np.float16),
        "scalar": np.float32(2.0).reshape(()),
    }
    write_arrays(str(tmp_path / "all.npz"), arrays)
    found = np.load(tmp_path / "all.npz")
    assert set(found) == set(arrays)
    assert found["a b/ü"].dtype == np.float32
    np.testing.assert_array_equal(found["a b/ü"], [1.5, -2.0])
    write_arrays(str(tmp_path / "all.safetensors"), arrays)
    found = read_safetensors(tmp_path / "all.safetensors")
    assert {name: value.shape for name, value in found.items()} == {name: value.shape for name, value in arrays.items()}
    np.testing.assert_array_equal(found["a b/ü"], half.view("<u2"))
    np.testing.assert_array_equal(found["file"], np.eye(2))


@pytest.mark.parametrize("arrays", [{"x": np.zeros(1, np.complex128)}, {"__metadata__": np.zeros(1)}])
def test_what_safetensors_does_not_have_leaves_the_old_file(tmp_path, arrays):
    path = tmp_path / "old.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(TapeWriteError, match=r"Write an npz: `-o grads.npz`"):
        write_arrays(str(path), arrays)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("isolate", [[], ["--isolate"]])
def test_a_target_of_integers_says_so_in_the_table(run, tmp_path, isolate):
    w = tf.Variable(2.5, name="w")
    with rt.Tape() as tape:
        whole = tf.cast(w * w, tf.int32)
    tape.save(tmp_path / "a.tape", {"whole": whole})
    done = run("grad", tmp_path / "a.tape", "whole", *isolate)
    assert (done.code, done.err) == (0, "")
    assert "missing: the target is int32, which has no derivative" in done.out
    (row,) = run("grad", tmp_path / "a.tape", "whole", "--json", *isolate).json()["gradients"]
    assert row["missing"] == "the target is int32, which has no derivative"
