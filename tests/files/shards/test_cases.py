"""A tape that two workers have saved gives what one process with the whole batch gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from files.shards import cases
from helpers.workers import outcomes, started
from retrotape.record import current_stack

EXACT = [name for name in cases.CASES if name != "random_draws"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which two workers have saved all cases."""
    folder = tmp_path_factory.mktemp("job")
    with started(Path(cases.__file__), folder) as processes:
        found = outcomes(processes)
    wrong = {name: text for worker in found for name, text in worker.items() if text != "saved"}
    assert not wrong, wrong
    return folder


def close(ours: Any, theirs: Any, tolerance: float = 1e-6) -> None:
    assert (ours is None) == (theirs is None)
    if ours is not None:
        ours, theirs = (np.asarray(tf.convert_to_tensor(one)) for one in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=10 * tolerance, atol=tolerance * max(1.0, np.abs(theirs).max()))


@pytest.mark.parametrize("name", EXACT)
def test_the_same_as_one_process(folder: Path, name: str):
    whole = rt.load(folder / name)
    tape, names = cases.record(name, cases.Job())
    close(whole["loss"], names["loss"])
    sources = [(variable, getattr(variable, "path", variable.name).removesuffix(":0")) for variable in _sources(tape)]
    assert sources
    for variable, path in sources:
        close(whole.gradient("loss", path), tape.gradient(names["loss"], variable))
        through = {"through_updates": True}
        close(whole.gradient("loss", path, **through), tape.gradient(names["loss"], variable, **through))
        ones = tf.ones(variable.shape)
        close(whole.hvp("loss", path, ones), tape.hvp(names["loss"], variable, ones), 1e-5)
        ours, theirs = whole.hvp("loss", path, ones, **through), tape.hvp(names["loss"], variable, ones, **through)
        close(ours, theirs, 1e-5)
    if "rate" in names:
        slope = whole.gradient("loss", "rate", through_updates=True)
        assert slope is not None
        close(slope, tape.gradient(names["loss"], names["rate"], through_updates=True))


def _sources(tape: rt.Tape) -> list[Any]:
    return [variable for variable in tape.watched_variables() if variable.trainable]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_the_rate_by_finite_differences(folder: Path, name: str):
    """Through two updates, in one process and without a tape."""
    step = 2e-3
    high, low = (float(cases.CASES[name](cases.Job(), rate)["loss"]) for rate in (0.05 + step, 0.05 - step))
    slope = rt.load(folder / name).gradient("loss", "rate", through_updates=True)
    assert float(slope) == pytest.approx((high - low) / (2 * step), rel=5e-3)


def test_names(folder: Path):
    whole = rt.load(folder / "several_names")
    assert set(whole.names) == {"loss", "total", "w", "shard_0/mine", "shard_1/mine", "shard_0/x", "shard_1/x"}
    assert float(whole["shard_0/mine"] + whole["shard_1/mine"]) == pytest.approx(float(whole["total"]), rel=1e-6)
    assert float(whole.gradient("total", "shard_1/mine")) == 1.0
    with pytest.raises(rt.errors.AmbiguousNameError, match="'mine' may be any of 'shard_0/mine', 'shard_1/mine'"):
        whole.gradient("loss", "mine")
    # Both workers compute the loss from the total; it counts once.
    assert float(whole.gradient("loss", "total")) == pytest.approx(2 * np.exp(float(whole["total"])), rel=1e-6)


def test_each_worker_keeps_its_draws(folder: Path):
    whole = rt.load(folder / "random_draws")
    draws = [op for op in whole.program.eqns if op.op == "RandomUniform"]
    assert len(draws) == cases.WORKERS
    values = [whole.value(tensor) for tensor in whole.tensors(op="RandomUniform")]
    halves = np.split(cases.X, cases.WORKERS)
    want = sum(half.sum(0) * np.asarray(drawn) for half, drawn in zip(halves, values, strict=True))
    close(whole.gradient("loss", "w"), tf.constant(want))


def test_a_shard_alone(folder: Path):
    """It is a tape of its own, which has no result that needs the other workers."""
    shard = rt.load(next((folder / "reduced_sum").glob("shard-00000-*.tape")))
    with pytest.raises(rt.errors.ReplicaError, match=r"an all_reduce of 2 replicas .*`rt.load\('job/'\)`"):
        shard.gradient("loss", "w")
    assert float(shard["loss"]) == float(rt.load(folder / "reduced_sum")["loss"])
    with pytest.raises(rt.errors.ReplicaError, match="depends on the new values, and on those of the other workers"):
        shard.replay({"w": [1.0, 2.0, 3.0]})
    with pytest.raises(rt.errors.TapeUseError, match="cannot be exported"):
        shard.export_saved_model(folder / "model")


def test_replay(folder: Path):
    again = rt.load(folder / "reduced_sum").replay({"w": [1.0, 2.0, 3.0]})
    w = tf.Variable([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.tanh(cases.X * w) ** 2)
    close(again["loss"], loss)
    close(again.gradient("loss", "w"), tape.gradient(loss, w))


def test_saved_again_as_one_file(folder: Path, tmp_path: Path):
    whole = rt.load(folder / "adam")
    whole.save(tmp_path / "whole.tape")
    again = rt.load(tmp_path / "whole.tape")
    for source in ("rate", "model/hidden/kernel"):
        close(
            again.gradient("loss", source, through_updates=True), whole.gradient("loss", source, through_updates=True)
        )


def test_in_a_process_of_its_own(folder: Path):
    with rt.load(folder / "reduced_sum", isolate=True) as isolated:
        close(isolated.gradient("loss", "w"), rt.load(folder / "reduced_sum").gradient("loss", "w"))


def test_diagnosis(folder: Path):
    whole = rt.load(folder / "sgd")
    assert whole.why("loss", "model/hidden/kernel").verdict.name == "CONNECTED"
    assert whole.first_nonfinite("loss") is None
    assert "model/hidden" in str(whole.summary())


def test_which_workers_save_a_tape_without_variables(tmp_path: Path):
    """Collectives alone do not say which job they belong to."""
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        current_stack().on_all_reduce("SUM", 2, [[x * x]], lambda: [tf.constant(8.0)])
    with pytest.raises(rt.errors.TapeUseError, match=r"none of their variables.*`with strategy.scope\(\): tape.save"):
        tape.save(tmp_path / "job")


def test_a_shard_alone_can_be_saved_again(folder: Path, tmp_path: Path):
    shard = rt.load(next((folder / "reduced_sum").glob("shard-00001-*.tape")))
    shard.save(tmp_path / "again.tape")
    again = rt.load(tmp_path / "again.tape")
    assert float(again["loss"]) == float(shard["loss"])
    with pytest.raises(rt.errors.ReplicaError, match="an all_reduce of 2 replicas"):
        again.gradient("loss", "w")
