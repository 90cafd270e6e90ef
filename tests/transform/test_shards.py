"""Shards that do not fit together are refused, each with what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.workers_in_turn import Sent, Side, record, save_all

W = {"w": [1.0, 2.0]}


def load(folder: Path, program: Callable[[Side], Any], workers: int = 2, **options: Any) -> rt.LoadedTape:
    save_all(folder, record(program, workers, W), **options)
    return rt.load(folder)


def test_an_update_from_local_values(tmp_path: Path):
    """The copies of the variable differ from then on: each worker has its own."""

    def program(side: Side) -> Any:
        side.variables["w"].assign_add([side.worker + 1.0, 0.0])
        return {"loss": (yield Sent("SUM", tf.reduce_sum(side.variables["w"] ** 2)))}

    whole = load(tmp_path, program)
    assert sorted(whole.names) == ["loss", "shard_0/w", "shard_1/w"]
    assert [variable.name for variable in whole.variables] == ["shard_0/w", "shard_1/w"]
    assert whole.gradient("loss", "shard_0/w", through_updates=True).numpy().tolist() == [4.0, 4.0]
    assert whole.gradient("loss", "shard_1/w", through_updates=True).numpy().tolist() == [6.0, 4.0]
    with pytest.raises(rt.errors.AmbiguousNameError, match="'w' may be any of 'shard_0/w', 'shard_1/w'"):
        whole.gradient("loss", "w")


def test_only_what_diverges_is_of_one_worker(tmp_path: Path):
    """Statistics of each worker beside a weight that all of them share."""

    def program(side: Side) -> Any:
        w, own = side.variables["w"], tf.Variable(0.0, name="mean")
        data = tf.constant(np.arange(20.0, dtype="float32") * (side.worker + 1.0))
        own.assign(0.9 * own + 0.1 * tf.reduce_mean(data))
        total = yield Sent("SUM", tf.reduce_sum(data) * w)
        w.assign(w - 0.01 * total)
        return {"loss": (yield Sent("SUM", tf.reduce_sum(w) * tf.reduce_sum(data) + own))}

    whole = load(tmp_path, program)
    assert sorted(whole.names) == ["loss", "shard_0/mean", "shard_1/mean", "w"]
    # w' = w - 0.01 * 570 w, and the loss has 570 of each element.
    want = pytest.approx([570.0 * (1 - 5.7)] * 2, rel=1e-5)
    assert whole.gradient("loss", "w", through_updates=True).numpy().tolist() == want


def test_a_different_number_of_updates(tmp_path: Path):
    def program(side: Side) -> Any:
        for _ in range(1 + side.worker):
            side.variables["w"].assign_add([1.0, 0.0])
        return {"loss": (yield Sent("SUM", tf.reduce_sum(side.variables["w"])))}

    with pytest.raises(rt.errors.ShardMismatchError, match="'w' has 2 values on worker 0 and 3 on worker 1"):
        load(tmp_path, program)


def test_different_first_values(tmp_path: Path):
    def program(side: Side) -> Any:
        return {"loss": (yield Sent("SUM", tf.reduce_sum(side.variables["w"])))}

    tapes = [record(program, 2, {"w": [1.0, value]})[worker] for worker, value in enumerate((2.0, 3.0))]
    save_all(tmp_path, tapes)
    with pytest.raises(rt.errors.ShardMismatchError, match="value 0 of 'w' differs between worker 0 and worker 1"):
        rt.load(tmp_path)


def _other_op(side: Side) -> Any:
    return {"loss": (yield Sent("SUM" if side.worker else "MEAN", tf.reduce_sum(side.variables["w"])))}


def test_other_collective_ops(tmp_path: Path):
    with pytest.raises(
        rt.errors.ShardMismatchError, match=r"collective op 0 is all_reduce of float32\[\] \(at .* on wor"
    ):
        load(tmp_path, _other_op)


def test_fewer_collective_ops(tmp_path: Path):
    def once(side: Side) -> Any:
        return {"loss": (yield Sent("SUM", tf.reduce_sum(side.variables["w"])))}

    def twice(side: Side) -> Any:
        yield Sent("SUM", tf.reduce_sum(side.variables["w"]))
        return (yield from once(side))

    save_all(tmp_path, [record(once, 2, W)[0], record(twice, 2, W)[1]])
    with pytest.raises(rt.errors.ShardMismatchError, match=r"worker 0 ran 1 collective ops and worker 1 ran 2\. Open"):
        rt.load(tmp_path)


def test_too_few_shards_for_an_all_reduce(tmp_path: Path):
    def program(side: Side) -> Any:
        return {"loss": (yield Sent("SUM", tf.reduce_sum(side.variables["w"])))}

    save_all(tmp_path, record(program, 3, W)[:2])
    with pytest.raises(rt.errors.ShardMismatchError, match="has 3 inputs, and the shards have 2"):
        rt.load(tmp_path)


def test_what_all_workers_compute_alike_is_there_once(tmp_path: Path):
    def program(side: Side) -> Any:
        w = side.variables["w"]
        total = yield Sent("SUM", tf.reduce_sum(w) * (side.worker + 1.0))
        for _ in range(3):
            total = tf.sin(total) * 2.0
        w.assign(w * total)
        return {"total": total, "loss": tf.reduce_sum(w)}

    whole = load(tmp_path, program)
    assert sum(eqn.op == "Sin" for eqn in whole.program.eqns) == 3
    assert sorted(whole.names) == ["loss", "total", "w"]


def test_equal_data_stay_apart(tmp_path: Path):
    """Both workers have the same batch: still each has a name of its own, and its own share of the gradient."""

    def program(side: Side) -> Any:
        x = tf.constant(np.arange(20.0, dtype="float32"))
        mine = tf.reduce_sum(x) * tf.reduce_sum(side.variables["w"])
        return {"x": x, "mine": mine, "loss": (yield Sent("SUM", mine))}

    whole = load(tmp_path, program)
    assert sorted(whole.names) == ["loss", "shard_0/mine", "shard_0/x", "shard_1/mine", "shard_1/x", "w"]
    assert float(whole.gradient("loss", "shard_0/mine")) == 1.0
    assert whole.gradient("loss", "shard_1/x").numpy().tolist() == [3.0] * 20
    assert whole.gradient("loss", "w").numpy().tolist() == [380.0, 380.0]


def test_names_that_one_worker_has(tmp_path: Path):
    def program(side: Side) -> Any:
        mine = tf.reduce_sum(side.variables["w"]) * (side.worker + 1.0)
        total = yield Sent("SUM", mine)
        return {"loss": total, "mine": mine} if side.worker else {}

    whole = load(tmp_path, program)
    assert sorted(whole.names) == ["loss", "shard_1/mine", "w"]


def test_redacted_values_stay_out(tmp_path: Path):
    def program(side: Side) -> Any:
        x = tf.constant(np.random.default_rng(side.worker).normal(size=20).astype("float32"))
        mine = tf.reduce_sum(x * x) * tf.reduce_sum(side.variables["w"])
        return {"x": x, "loss": (yield Sent("SUM", mine))}

    whole = load(tmp_path, program, redact=["x"])
    with pytest.raises(rt.errors.LostValueError, match=r"'shard_[01]/x' was left out .*replay\({'shard_[01]/x': "):
        whole.gradient("loss", "w")
    given = {f"shard_{worker}/x": np.ones(20, "float32") for worker in range(2)}
    assert whole.replay(given).gradient("loss", "w").numpy().tolist() == [40.0, 40.0]


def test_a_redacted_variable(tmp_path: Path):
    def program(side: Side) -> Any:
        return {"loss": (yield Sent("SUM", tf.reduce_sum(side.variables["w"] ** 2)))}

    whole = load(tmp_path, program, redact=["w"])
    with pytest.raises(rt.errors.LostValueError, match="'w' was left out when this tape was saved"):
        whole.gradient("loss", "w")
    assert whole.replay({"w": [1.0, 3.0]}).gradient("loss", "w").numpy().tolist() == [4.0, 12.0]


def test_host_reads_stay_in_order(tmp_path: Path):
    """A value that Python read on any worker stops a replay that would change it."""

    def program(side: Side) -> Any:
        w = side.variables["w"]
        mine = tf.reduce_sum(w) * (side.worker + 1.0)
        if side.worker and mine > 1.0:
            mine = mine * 2.0
        return {"loss": (yield Sent("SUM", mine))}

    whole = load(tmp_path, program)
    assert float(whole.replay({"w": [1.0, 2.0]})["loss"]) == 15.0
    with pytest.raises(rt.errors.ReplayError, match="Python read a value"):
        whole.replay({"w": [-2.0, 2.0]})


def test_variables_with_one_name(tmp_path: Path):
    """They are told apart by the order in which they were created, not by that of their use."""

    def program(side: Side) -> Any:
        first, second = tf.Variable(1.0, name="same"), tf.Variable(1.0, name="same")
        order = (first, second) if side.worker else (second, first)
        used = [variable * (side.worker + 1.0) for variable in order]
        mine = tf.reduce_sum(first * 10.0) + tf.reduce_sum(second * 100.0) + 0.0 * tf.reduce_sum(used[0])
        return {"first": first, "second": second, "loss": (yield Sent("SUM", mine))}

    whole = load(tmp_path, program)
    assert float(whole.gradient("loss", "first")) == 20.0
    assert float(whole.gradient("loss", "second")) == 200.0


def test_variables_with_one_name_that_not_every_worker_uses(tmp_path: Path):
    def program(side: Side) -> Any:
        both = tf.Variable(1.0, name="same"), tf.Variable(1.0, name="same")
        mine = sum(tf.reduce_sum(variable) for variable in both[side.worker :])
        return {"loss": (yield Sent("SUM", mine))}

    with pytest.raises(rt.errors.ShardMismatchError, match=r"worker 1 has not used the mirrored variable 'same#1'"):
        load(tmp_path, program)


def test_a_variable_with_another_name(tmp_path: Path):
    """As if Keras had counted one layer more on one worker."""

    def program(side: Side) -> Any:
        w = tf.Variable(1.0, name="dense_1" if side.worker else "dense")
        return {"loss": (yield Sent("SUM", w * (side.worker + 1.0)))}

    with pytest.raises(
        rt.errors.ShardMismatchError, match=r"worker 0 has not used .*'dense_1', or by another name\. Use"
    ):
        load(tmp_path, program)


def test_a_constant_array_in_an_update(tmp_path: Path):
    """Only numbers and small integers count as constants of the code, since equal data must stay apart."""

    def program(side: Side) -> Any:
        side.variables["w"].assign_add(tf.constant([1.0, 2.0]))
        return {"loss": (yield Sent("SUM", tf.reduce_sum(side.variables["w"])))}

    assert sorted(load(tmp_path, program).names) == ["loss", "shard_0/w", "shard_1/w"]


def test_small_equal_data_stay_apart(tmp_path: Path):
    def program(side: Side) -> Any:
        hidden = tf.constant([1.0, 2.0]) * side.variables["w"]
        return {"hidden": hidden, "loss": (yield Sent("SUM", tf.reduce_sum(hidden)))}

    whole = load(tmp_path, program)
    assert sorted(whole.names) == ["loss", "shard_0/hidden", "shard_1/hidden", "w"]
    assert whole.gradient("loss", "shard_0/hidden").numpy().tolist() == [1.0, 1.0]


def test_redacted_data_do_not_come_back_by_a_collective(tmp_path: Path):
    """What was gathered holds the data of all workers."""

    def program(side: Side) -> Any:
        x = tf.constant(np.random.default_rng(side.worker).normal(size=20).astype("float32"))
        rows = yield Sent("gather", x)
        return {"x": x, "loss": tf.reduce_sum(rows) * tf.reduce_sum(side.variables["w"])}

    recorded = record(program, 2, W)
    save_all(tmp_path, recorded, redact=["x"])
    for path in tmp_path.glob("shard-*"):
        data = path.read_bytes()
        assert not any(np.asarray(names["x"]).tobytes() in data for _, names in recorded)
    with pytest.raises(rt.errors.LostValueError, match="was left out when this tape was saved"):
        rt.load(tmp_path).gradient("loss", "w")


def test_equal_ops_are_told_apart_by_name(tmp_path: Path):
    """Worker 1 computes only the second of two equal values: its name refers to that one, and only its uses count."""

    def program(side: Side) -> Any:
        w = side.variables["w"]
        total = yield Sent("SUM", tf.reduce_sum(w))
        extra = tf.sin(total) * 1000.0 if side.worker == 0 else 0.0
        value = tf.sin(total)
        return {"value": value, "loss": (yield Sent("SUM", value * 2.0 + extra))}

    whole = load(tmp_path, program)
    assert float(whole.gradient("loss", "value")) == 4.0
