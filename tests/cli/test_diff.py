from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from cli.making import FIELDS, PROGRAM, flip, spawn, tamper, write
from retrotape.cli._diff_align import align, find_suspects
from retrotape.cli._tape import open_saved
from retrotape.files import store


def compare(run, saved, first, second, *options):
    done = run("diff", saved[first], saved[second], "--json", *options)
    found = done.json()
    assert done.code == (0 if found["same"] else 1)
    return found


def test_the_same(run, saved):
    for other in ("plain", "again", "folder"):
        found = compare(run, saved, "plain", other)
        assert found["same"] is True
        assert found["program"] is found["step"] is found["origin"] is None
        assert found["leaves"] == found["names"] == []
    done = run("diff", saved["plain"], saved["again"])
    assert done.code == 0
    assert "Their values are the same." in done.out


def test_equal_check_sums_need_no_tensorflow(saved):
    done = spawn("diff", saved["plain"], saved["again"], after="assert 'tensorflow' not in sys.modules")
    assert (done.code, done.err) == (0, "")


def test_another_input(run, saved):
    found = compare(run, saved, "plain", "moved")
    assert found["program"] is None
    assert [row["name"] for row in found["leaves"]] == ["x"]
    assert found["leaves"][0]["elements"] == 1
    assert found["leaves"][0]["max_abs"] == pytest.approx(0.001, rel=1e-3)
    step = found["step"]
    assert step["op"] == "MatMul"
    assert step["where"]["file"].endswith("conftest.py")
    assert step["where"]["function"] == "layer"
    assert [row["name"] for row in step["inputs"]] == ["x"]
    expected = np.abs([[0.0, 0.001]] @ np.array([[0.5, -0.2], [0.3, 0.7]])).max()
    assert step["outputs"][0]["max_abs"] == pytest.approx(expected, rel=1e-3)
    assert found["origin"] is None
    losses = [float(rt.load(saved[name])["loss"]) for name in ("plain", "moved")]
    named = {row["name"]: row for row in found["names"]}
    assert set(named) == {"x", "hidden", "loss"}
    assert named["loss"]["max_abs"] == pytest.approx(abs(losses[0] - losses[1]), rel=1e-6)
    text = run("diff", saved["plain"], saved["moved"]).out
    assert "The first value that differs is that of equation 1, MatMul at " in text
    assert "because of x (%" in text


def test_what_is_small_enough_is_no_difference(run, saved):
    assert compare(run, saved, "plain", "moved", "--atol", "0.1")["same"] is True
    assert compare(run, saved, "plain", "moved", "--rtol", "0.01")["same"] is True
    found = compare(run, saved, "plain", "moved", "--atol", "0.00101")
    assert found["leaves"] == []
    assert found["step"]["inputs"] == []  # they differ, but by no more than is allowed
    assert found["step"]["op"] == "Mul"
    assert found["origin"]["equation"] == found["step"]["equation"]


def test_a_random_draw_is_where_they_part(run, saved):
    found = compare(run, saved, "noisy", "noisy too")
    assert found["leaves"] == []
    assert found["origin"]["op"] == found["step"]["op"] == "RandomStandardNormal"
    assert found["origin"]["inputs"] == []
    text = run("diff", saved["noisy"], saved["noisy too"]).out
    assert "With the same inputs, equation 5, RandomStandardNormal at " in text
    assert "The first value that differs" not in text  # it is the same one


def test_an_input_and_a_draw(run, folder, saved):
    w, b = tf.Variable([[0.5, -0.2], [0.3, 0.7]], name="w"), tf.Variable([0.1, 0.2], name="b")
    x = tf.constant([[1.0, 2.001], [3.0, 4.0]])
    tf.random.set_seed(99)
    with rt.Tape() as tape:
        hidden = tf.nn.relu(x @ w + b)
        hidden = hidden + tf.random.normal(hidden.shape)
        if tf.reduce_sum(hidden) > -1e9:
            hidden = hidden * 2.0
        loss = tf.reduce_mean(hidden**2)
    tape.save(folder / "both.tape", {"x": x, "loss": loss})
    found = compare(run, {**saved, "both": folder / "both.tape"}, "noisy", "both")
    assert found["step"]["op"] == "MatMul"
    assert found["origin"]["op"] == "RandomStandardNormal"
    assert found["step"]["equation"] < found["origin"]["equation"]


def test_another_branch_and_why(run, saved):
    found = compare(run, saved, "plain", "small")
    parting = found["program"]
    assert parting["first"]["op"] == "Mul"
    assert parting["second"]["op"] == "Pow"
    assert parting["first"]["where"]["line"] < parting["second"]["where"]["line"]
    assert parting["host_read"]["method"] == "bool"
    assert parting["host_read"]["where"]["line"] == parting["first"]["where"]["line"] - 1
    text = run("diff", saved["plain"], saved["small"]).out
    assert "The programs diverge at equation 7: another op: Mul and Pow." in text
    assert "Before that, Python read %" in text
    assert "# " in text


def test_a_host_read_after_they_parted_is_not_the_reason(run, folder):
    def record(path, value):
        x = tf.constant(value)
        with rt.Tape() as tape:
            y = x * 2.0
            z = y + 1.0 if y > 1.0 else y - 1.0
            int(y)
        tape.save(path, {"x": x, "z": z})

    record(folder / "high.tape", 5.0)
    record(folder / "low.tape", 0.2)
    found = run("diff", folder / "high.tape", folder / "low.tape", "--json").json()
    assert found["program"]["host_read"]["method"] == "bool"


def test_another_shape(run, saved):
    found = compare(run, saved, "plain", "wide")
    assert found["program"]["equation"] == 1
    assert found["program"]["reason"] == "input 0 is float32[2,2] and float32[3,2]"


def test_one_goes_on(run, tmp_path):
    longer = PROGRAM.replace("@0 = ", "%2 : float32[2] = Neg{T=float32}(%1) @0\n@0 = ", 1).replace(
        "%1 : float32[2] = ", "%1 : float32[2] = ", 1
    )
    first = write(tmp_path / "first.tape")

    def change(parts):
        parts["program"] = longer

    second = tamper(first, tmp_path / "second.tape", change)
    done = run("diff", first, second)
    assert done.code == 1
    assert "one has 1 more" in done.out
    assert f"{first}: has ended" in done.out


def test_what_is_redacted_is_not_compared(run, saved):
    found = compare(run, saved, "plain", "redacted")
    assert found["same"] is True
    assert [row["name"] for row in found["unknown"]] == ["x"]
    assert (
        "Not compared, because a tape does not have the value: x (%"
        in run("diff", saved["plain"], saved["redacted"]).out
    )


def test_what_is_redacted_does_not_hide_what_differs(run, folder):
    def record(path, scale, **options):
        x, scale = tf.constant([1.0, 2.0]), tf.constant(scale)
        with rt.Tape() as tape:
            square = scale * scale
            y = x * square
        tape.save(path, {"x": x, "scale": scale, "square": square, "y": y}, **options)
        return path

    redacted = record(folder / "without x.tape", 2.0, redact=["x"])
    whole = record(folder / "with x.tape", 3.0)
    for first, second in ((redacted, whole), (whole, redacted)):
        done = run("diff", first, second, "--json")
        assert done.code == 1
        assert [row["name"] for row in done.json()["unknown"]] == ["x"]
        assert [row["name"] for row in done.json()["leaves"]] == ["scale"]
        assert [row["name"] for row in done.json()["names"]] == ["scale", "square"]


def test_a_redacted_draw_is_not_compared_and_not_drawn_again(run, folder):
    x = tf.constant([1.0, 2.0])
    with rt.Tape() as tape:
        draw = tf.raw_ops.RandomStandardNormal(shape=tf.constant([2]), dtype=tf.float32)
        y = x * draw
    tape.save(folder / "drawn.tape", {"x": x, "draw": draw, "y": y})
    tape.save(folder / "redacted draw.tape", {"x": x, "draw": draw, "y": y}, redact=["draw"])
    for first, second in (("drawn", "redacted draw"), ("redacted draw", "drawn"), ("redacted draw", "redacted draw")):
        found = run("diff", folder / f"{first}.tape", folder / f"{second}.tape", "--json").json()
        assert found["same"] is True
        assert [row["name"] for row in found["unknown"]] == ["draw"]


def test_signs_of_zero_are_carried_on(run, folder):
    for name, zero in (("plus", 0.0), ("minus", -0.0)):
        x = tf.constant(np.array([zero], np.float32))
        with rt.Tape() as tape:
            same = x * 2.0
            y = 1.0 / same
        tape.save(folder / f"{name}.tape", {"x": x, "same": same, "y": y})
    found = run("diff", folder / "plus.tape", folder / "minus.tape", "--json").json()
    assert [(row["name"], row["max_abs"]) for row in found["names"]] == [("y", "inf")]


def test_values_that_were_kept_are_taken_as_they_were(run, folder):
    """As if another machine had computed something else from the same."""
    x = tf.constant([1.0, 2.0])
    with rt.Tape() as tape:
        y = tf.exp(x)
        z = tf.reduce_sum(y)
    tape.save(folder / "here.tape", {"x": x, "z": z})
    tape.save(folder / "all.tape", {"x": x, "z": z}, values="all")
    assert run("diff", folder / "here.tape", folder / "all.tape").code == 0

    with store.open_tape(folder / "all.tape") as opened:
        tensors = []
        for name, info in opened.tensors.items():
            array = opened.tensor(name).view("<f4" if info.dtype == "float32" else "<i4").copy()
            if np.allclose(array.astype("f8"), np.exp([1.0, 2.0])[: array.size]) and array.size == 2:
                array[1] += 0.5
            tensors.append(store.Stored(name, info.dtype, info.shape, array.tobytes()))
        entries = {name: opened.entry(name) for name in opened.names() if name != "tape.json"}
        store.write(folder / "there.tape", entries, tensors, opened.meta)
    found = run("diff", folder / "here.tape", folder / "there.tape", "--json").json()
    assert found["origin"]["op"] == "Exp"
    assert found["origin"]["outputs"][0]["max_abs"] == pytest.approx(0.5)
    assert found["leaves"] == []


def test_what_both_kept_alike_is_not_run_again(run, folder):
    def record(path, value):
        x = tf.constant(value)
        with rt.Tape() as tape:
            y = tf.exp(tf.round(x))
        tape.save(path, {"x": x, "y": y}, values="all")

    record(folder / "near.tape", 1.1)
    record(folder / "nearer.tape", 1.2)
    with open_saved(folder / "near.tape") as one, open_saved(folder / "nearer.tape") as other:
        suspects = find_suspects(one, other, align(one.program, other.program))
        assert [one.program.eqns[index].op for index in suspects.eqns] == ["Round"]
    found = run("diff", folder / "near.tape", folder / "nearer.tape", "--json").json()
    assert [row["name"] for row in found["names"]] == ["x"]
    assert found["step"] is None


def test_updates_of_variables(run, loop, folder):
    v = tf.Variable(0.5, name="v")

    @tf.custom_gradient
    def cube(value):
        return value**3, lambda upstream: 3.0 * upstream * value**2

    with rt.Tape() as tape:
        rate = tf.constant(0.011)
        for _ in range(20):
            v.assign_sub(rate * v * 2.0)
        loss = cube(v)
    tape.save(folder / "faster.tape", {"loss": loss, "rate": rate})
    found = run("diff", loop, folder / "faster.tape", "--json").json()
    assert found["program"] is None
    assert [row["name"] for row in found["leaves"]] == ["rate"]
    assert {row["name"] for row in found["names"]} == {"loss", "rate", "v"}
    text = run("diff", loop, folder / "faster.tape").out
    assert "because of rate (%" in text


def test_all_that_led_to_the_first_difference_is_named(run, folder):
    def record(path, a, b):
        a, b, c = tf.constant(a), tf.constant(b), tf.constant(3.0)
        with rt.Tape() as tape:
            d = tf.add_n([a, b, c])
        tape.save(path, {"a": a, "b": b, "c": c, "d": d})

    record(folder / "one.tape", 1.0, 2.0)
    record(folder / "two.tape", 1.5, 2.5)
    found = run("diff", folder / "one.tape", folder / "two.tape", "--json").json()
    assert [row["name"] for row in found["step"]["inputs"]] == ["a", "b"]
    assert found["step"]["outputs"][0]["max_abs"] == 1.0


def test_an_op_that_would_fill_the_memory_is_refused(run, tmp_path):
    program = "%0 : int32[1]\n%1 : float32[]\n%2 : float32[2] = Fill{T=float32, index_type=int32}(%0, %1) @0\n"
    program += '@0 = "a.py":1 in "f"'
    entries = {"program.txt": program.encode(), "functions.json": b"{}"}
    for name, size in (("small", 2), ("large", 2**30)):
        tensors = [
            store.Stored("v/0", "int32", (1,), np.array([size], "<i4").tobytes()),
            store.Stored("v/1", "float32", (), bytes(4)),
        ]
        store.write(tmp_path / f"{name}.tape", entries, tensors, {**FIELDS, "names": {"y": {"var": 2}}})
    done = run("diff", tmp_path / "small.tape", tmp_path / "large.tape")
    assert done.code == 2
    assert "op Fill would make float32[1073741824] where the tape says float32[2]" in done.failure()


def test_trouble_is_not_a_difference(run, saved, tmp_path):
    done = run("diff", saved["plain"], tmp_path / "none.tape")
    assert done.code == 2
    done.failure()
    damaged = flip(saved["plain"], tmp_path / "damaged.tape", "program.txt")
    for options in ((), ("--json",)):
        done = run("diff", saved["plain"], damaged, *options)
        assert done.code == 2
        assert "Cannot read the tape" in done.failure()
    senseless = write(tmp_path / "senseless.tape", host_reads=[{"var": 9}])
    assert run("diff", senseless, senseless).code == 2
