"""Trainings in processes of their own, killed or on two devices; and tapes without the code of the model."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import retrotape as rt
from callbacks.flight.elsewhere import without_the_code
from callbacks.flight.programs import SIZE, training
from cli.making import Runner

TESTS = Path(__file__).parents[2]
WORKER = Path(__file__).parent / "worker.py"


def start(folder, seed, *options) -> subprocess.Popen:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(WORKER), str(folder), str(seed), *map(str, options)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )


def killed(folder, seed, step, *options) -> dict[str, np.ndarray]:
    """Kill a training after a step, and return what it had learned."""
    process = start(folder, seed, "--kill", step, *options)
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    return dict(np.load(folder / "truth.npz"))


def recovered(folder) -> dict:
    """Recover by the command line."""
    done = Runner()("recover", str(folder), "--json")
    (found,) = json.loads(done.out)["found"]
    assert done.code == (0 if found["tape"] else 1)
    return found


@pytest.mark.parametrize(
    ("seed", "early", "options"),
    [
        (4, 2, ()),
        pytest.param(2, 10, ("--options", '{"steps_per_execution": 8}'), marks=pytest.mark.slow),
        pytest.param(1, 2, ("--options", '{"run_eagerly": true}'), marks=pytest.mark.slow),
        pytest.param(3, 2, ("--options", '{"jit_compile": true}'), marks=pytest.mark.slow),
        pytest.param(5, 2, ("--mirrored",), marks=pytest.mark.slow),
    ],
)
def test_a_training_that_was_killed_is_recovered(tmp_path, seed, early, options):
    program = training(seed)
    truth = killed(tmp_path, seed, program.bad - early, *options)
    found = recovered(tmp_path)
    tape = rt.load(found["tape"])
    step = int(truth.pop("step"))
    assert found["step"] == step
    assert "was killed" in found["message"]
    np.testing.assert_array_equal(_whole(tape, "x"), program.x[step * SIZE : (step + 1) * SIZE])
    compared = [name for name in truth if name in tape.names]
    assert len(compared) > 4
    for name in compared:
        np.testing.assert_allclose(tape.value(name), truth[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert not list(tmp_path.glob("recording-*"))


def _whole(tape, name):
    parts = [name] if name in tape.names else [f"{name}/replica_0", f"{name}/replica_1"]
    return np.concatenate([tape[part].numpy() for part in parts])


@pytest.mark.parametrize("options", [(), pytest.param(("--mixed",), marks=pytest.mark.slow)])
def test_one_that_was_killed_after_it_went_wrong_names_the_step_and_the_op(tmp_path, options):
    program = training(4)
    killed(tmp_path, 4, program.bad + 1, *options)
    found = recovered(tmp_path)
    assert found["step"] == program.bad
    assert f"step {program.bad} was the first that is not finite. Log at " in found["message"]
    assert ("may have been another branch" in found["message"]) == ("--mixed" in options)
    report = without_the_code(found["tape"])
    assert (report["op"], report["cause"]) == ("Log", "LOG_OF_ZERO")
    assert Path(report["file"]).name == "programs.py"


@pytest.mark.slow
def test_a_kill_at_any_moment_gives_a_right_tape_or_none(tmp_path):
    """The process is killed from outside, wherever it happens to be: also while it writes."""
    draw, tapes = random.Random(3), 0
    program = training(0)
    for number in range(12):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = start(folder, 0, "--forever")
        assert process.stdout.readline() == "begin\n"
        time.sleep(draw.uniform(0.2, 3.0))
        process.kill()
        process.communicate()
        found = recovered(folder)
        if found["tape"] is None:
            reasons = "no whole snapshot", "no batch yet", "no step was recorded"
            assert any(reason in found["message"] for reason in reasons), found["message"]
            continue
        tapes += 1
        tape, step = rt.load(found["tape"]), found["step"] % program.bad
        np.testing.assert_array_equal(tape["x"], program.x[step * SIZE : (step + 1) * SIZE])
        assert int(tape.versions("optimizer/iteration")[0].value) == found["step"]
        assert np.isfinite(tape["loss"])
    assert tapes >= 6


def test_two_devices(tmp_path):
    program = training(0)
    process = start(tmp_path, 0, "--mirrored")
    out, err = process.communicate()
    assert process.returncode == 0, err
    (crash,) = json.loads(out.splitlines()[-1])
    assert crash["step"] == program.bad
    assert "Log at " in crash["message"]
    tape = rt.load(crash["tape"])
    np.testing.assert_array_equal(_whole(tape, "x"), program.x[program.bad * SIZE : (program.bad + 1) * SIZE])
    assert tape.first_nonfinite("loss").cause.name == "LOG_OF_ZERO"
    report = without_the_code(crash["tape"])
    assert (report["op"], report["cause"]) == ("Log", "LOG_OF_ZERO")
    done = Runner()("why", crash["tape"], "loss", "out/kernel")
    assert done.code == 0
    assert "connected" in done.out


def test_there_may_be_nothing_to_recover(tmp_path):
    done = Runner()("recover", str(tmp_path))
    assert (done.code, done.err) == (1, "")
    assert "there is nothing to recover in" in done.out


def test_a_training_that_still_runs_is_left_alone(tmp_path):
    process = start(tmp_path, 0, "--forever")
    try:
        assert process.stdout.readline() == "begin\n"
        while not list(tmp_path.glob("recording-*/log-0")):
            assert process.poll() is None
            time.sleep(0.1)
        assert "nothing to recover" in Runner()("recover", str(tmp_path)).out
        rt.FlightRecorder(tmp_path)  # no warning about it
    finally:
        process.kill()
        process.communicate()
    with pytest.warns(RuntimeWarning, match=r"1 training was killed while recording here.*`retrotape recover "):
        rt.FlightRecorder(tmp_path)


def test_recover_wants_a_folder(tmp_path):
    done = Runner()("recover", str(tmp_path / "none"))
    assert done.code == 2
    assert "does not exist" in done.err
