"""Workers that are killed, stopped or absent during a save: nothing half published, and nobody waits forever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

import retrotape as rt
from files.shards import faulty, saving_loop
from helpers.workers import outcomes, started

LONGEST = 30  # seconds that a survivor may wait
QUICK = [(1, "kill", "shard"), (0, "kill", "manifest"), (1, "absent", "here")]
ALL = [(worker, how, place) for worker in (0, 1) for how in ("kill", "stop") for place in faulty.PLACES]
ALL = [case for case in ALL if case[0] == 0 or case[2] in ("here", "write", "shard")] + [(0, "absent", "here")]


def check_survivor(folder: Path, worker: int, how: str, place: str) -> None:
    with started(Path(faulty.__file__), folder, worker, how, place) as processes:
        (found,) = outcomes([process for number, process in enumerate(processes) if number != worker], 90)
    assert found["seconds"] < LONGEST
    published = place == "outcome"  # what the leader has left to do then is to tell the others
    assert found.get("saved", False) is published
    if not published:
        assert found["error"] == "MissingWorkerError"
        assert f"was not saved: worker {worker} of 2 " in found["text"]
        assert "Call `tape.save` on every worker, at the same place" in found["text"]
    # The tape is the new one or the one before, and whole.
    whole = rt.load(folder / "before")
    assert whole.gradient("loss", "Variable").numpy().tolist() == [6.0, 12.0]


@pytest.mark.parametrize(("worker", "how", "place"), QUICK)
def test_a_worker_is_missing(tmp_path: Path, worker: int, how: str, place: str):
    check_survivor(tmp_path, worker, how, place)


@pytest.mark.slow
@pytest.mark.parametrize(("worker", "how", "place"), ALL)
def test_a_worker_is_missing_at_every_step(tmp_path: Path, worker: int, how: str, place: str):
    check_survivor(tmp_path, worker, how, place)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_at_random_moments(tmp_path: Path, seed: int):
    """Workers train and save in a loop; one is killed or stopped at any moment."""
    draw = random.Random(seed)
    worker, how = draw.randrange(2), draw.choice((signal.SIGKILL, signal.SIGSTOP))
    with started(Path(saving_loop.__file__), tmp_path) as processes:
        victim, survivor = processes[worker], processes[1 - worker]
        wait_for_line(victim, "saved", draw.randint(2, 6))
        time.sleep(draw.uniform(0, 0.15))  # a random moment
        os.kill(victim.pid, how)
        (found,) = outcomes([survivor], 90)
    assert found is not None, "the survivor died"
    assert found["seconds"] < LONGEST
    assert found["error"] in ("MissingWorkerError", "UnavailableError", "DeadlineExceededError", "AbortedError"), found
    if found["error"] == "MissingWorkerError":
        assert f"worker {worker} of 2 " in found["text"]
    for folder in tmp_path.iterdir():
        if not (folder / "manifest.json").exists():
            with pytest.raises(rt.errors.CorruptTapeError, match=r"and no manifest\.json|a folder without tape\.json"):
                rt.load(folder)
            continue
        whole = rt.load(folder)
        assert whole.gradient("loss", "w").numpy().tolist() == saving_loop.gradient(float(whole["shard_1/step"]))


def wait_for_line(process: subprocess.Popen, text: str, count: int) -> None:
    """Wait until a process has printed a line some number of times."""
    assert process.stdout is not None
    while count:
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        count -= line.startswith(text)
