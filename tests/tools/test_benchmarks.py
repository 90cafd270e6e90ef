"""What benchmarks share: blocks, ratios, comparisons of results, and the processes that take turns; never how long."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("_measure")


@pytest.fixture
def worker(measure: ModuleType) -> ModuleType:
    return importlib.import_module("_worker")


def test_examples_in_docstrings(measure, worker):
    for module in (measure, worker):
        assert doctest.testmod(module).failed == 0


def test_what_is_prepared_is_handed_over_and_a_block_has_so_many_calls(measure):
    seen = []
    prepared = iter(range(10))
    found = measure.run_block(measure.Contender(seen.append, lambda: next(prepared)), calls=3)
    assert seen == [0, 1, 2]
    assert found.cpu >= 0.0
    assert found.wall > 0.0


def test_contenders_take_turns(measure):
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    times = measure.take_turns(runs, repeat=3)
    assert order[-6:] == ["a", "b"] * 3
    assert [len(found) for found in times.values()] == [3, 3]


def test_a_ratio_is_that_of_one_round(measure):
    found = measure.ratio([1.0, 20.0, 3.0, 4.0], [2.0, 40.0, 6.0, 8.0])  # the machine was slow in the second round
    assert found == (0.5, 0.5, 0.5)
    assert str(found) == "0.50 (0.50-0.50)"


def test_goals(measure):
    assert "met" in measure.against(0.5, 0.5)
    assert "missed" in measure.against(0.5, 0.51)
    assert measure.against(None, 0.5) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and glibc's heap")
def test_memory_that_is_taken_is_seen(measure):
    before = measure.allocated()
    block = np.ones(4 * measure.MEGA)  # 32 megabytes
    assert measure.allocated() - before == pytest.approx(32.0, abs=1.0)
    assert measure.status("VmRSS") > 32.0
    del block


def test_results_that_differ_are_told_apart(worker):
    value = {"w": np.array([3.0, 4.0])}
    assert worker.difference(value, value) == 0.0
    assert np.isnan(worker.difference({"w": np.array([3.0, np.nan])}, value))
    with pytest.raises(ValueError, match=r"Got results named \['v'\]; expected \['w'\]"):
        worker.difference({"v": value["w"]}, value)
    with pytest.raises(ValueError, match=r"Got shape \(1,\) for 'w'; expected \(2,\)"):
        worker.difference({"w": np.array([3.0])}, value)


def test_a_process_computes_and_runs_blocks(worker, tmp_path, monkeypatch):
    copied = tmp_path / "_worker.py"
    copied.write_text((FOLDER / "_worker.py").read_text())
    (tmp_path / "_measure.py").write_text((FOLDER / "_measure.py").read_text())
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "in_tensorflow.py").write_text(
        "import numpy as np\n"
        "from _measure import Contender\n"
        "to_numpy, limit_threads = np.asarray, print\n"  # what is printed must not disturb the replies
        "WORKLOADS = {'sum': lambda text: {'one': Contender(lambda: {'text': len(text)})}}\n"
    )
    monkeypatch.setattr(worker, "__file__", str(copied))
    with worker.Worker("tensorflow", "sum", 1, "abc") as process:
        assert process.contenders == ["one"]
        assert process.first("one", tmp_path / "result.npz") >= 0.0
        assert len(process.first_calls("one", tmp_path / "result.npz")) > 1
        assert len(process.first_calls("one", tmp_path / "result.npz", calls=3)) == 3
        assert process.block("one", 5).wall > 0.0
    with np.load(tmp_path / "result.npz") as result:
        assert result["text"] == 3
    with pytest.raises(SystemExit, match="KeyError: 'other'"):
        worker.Worker("tensorflow", "other", 1)


def test_every_workload_has_data_and_a_title(worker):
    speed, data = importlib.import_module("speed"), importlib.import_module("workloads.data")
    for name in speed.WORKS:
        make = getattr(data, name.replace("-gradient", "").replace("-", "_"))
        params, inputs = make()
        assert params
        assert inputs
        assert all(value.dtype == np.float32 for value in params.values())


@pytest.fixture
def playback(worker: ModuleType) -> ModuleType:
    """The benchmark, by its path: a folder of tests has the same name."""
    spec = importlib.util.spec_from_file_location("benchmark_of_playback", FOLDER / "playback.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_step_that_is_played_back_has_data_and_peers(playback):
    data = importlib.import_module("workloads.data")
    for name in playback.WORKS:
        assert getattr(data, name.replace("-update", "").replace("-", "_"))().params
        for framework in ("jax", "torch", "playback"):
            assert f'    "{name}": ' in (FOLDER / "workloads" / f"in_{framework}.py").read_text()


def test_a_start_is_the_calls_up_to_the_last_cold_one(playback):
    assert doctest.testmod(playback).failed == 0
    assert playback.until_hot([0.5, 0.001, 0.25, 0.001], 0.001) == pytest.approx(0.751)
    assert playback.until_hot([0.001, 0.0014], 0.001) == 0.0


def test_every_part_about_losses_has_a_title_and_peers(worker):
    losses, text = importlib.import_module("losses"), {}
    for framework in ("losses", "torchjd", "jax"):
        text[framework] = (FOLDER / "workloads" / f"in_{framework}.py").read_text()
    for part in set(losses.TITLES) - {"memory"}:
        for framework in ("losses", *losses.PEERS[part]):
            assert f'    "{part}": ' in text[framework]
    for name, framework in losses.HELD.items():
        assert name in (losses.STOCK, losses.SUM) or f'    "{name}": ' in text[framework]


def test_contenders_for_losses_are_compared_with_what_computes_the_same(worker):
    losses = importlib.import_module("losses")
    assert doctest.testmod(losses).failed == 0
    assert losses.expected("TorchJD: UPGrad").contender == "ours: UPGrad"
    assert losses.expected("Sum, tf.function") == (losses.SUM, losses.TOLERANCE)
    assert losses.expected("TorchJD, autogram") == (losses.STOCK, losses.TOLERANCE)


@pytest.mark.slow  # starts TensorFlow several times
@pytest.mark.parametrize(
    "program", ["speed", "playback", "losses", "start", "forward", "shapes", "soak", "kept", "storage"]
)
def test_every_program_runs(program, tmp_path):
    path = tmp_path / "figures.json"
    command = [sys.executable, FOLDER / f"{program}.py", "--quick", "--json", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(path.read_text())["figures"]
