"""Worker processes of a multi-worker strategy, on this machine only, bounded in time."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from helpers.processes import PYTHON

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]


def environment(ports: Sequence[int], worker: int) -> dict[str, str]:
    """Return the environment of a worker."""
    cluster = {"worker": [f"{HOST}:{port}" for port in ports]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": worker}}
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TF_CONFIG": json.dumps(config),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }


@contextlib.contextmanager
def started(
    script: Path, *args: object, workers: int = 2, but: Sequence[int] = (), python: str = PYTHON
) -> Iterator[list[subprocess.Popen]]:
    """Start a script once for each worker, and end every process at the end of the block.

    `PYTHON` is not the process that runs it: one that is to be stopped from outside needs `sys.executable`.
    """
    ports = free_ports(workers)
    processes = [
        subprocess.Popen(
            [python, str(script), *map(str, args)],
            env=environment(ports, worker),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for worker in range(workers)
        if worker not in but
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def outcomes(processes: Sequence[subprocess.Popen], seconds: float = 120) -> list[Any]:
    """Return what each worker printed after `outcome:`, as JSON; None for one that was killed before."""
    found = []
    for process in processes:
        out, err = process.communicate(timeout=seconds)
        lines = [line.removeprefix("outcome:") for line in out.splitlines() if line.startswith("outcome:")]
        assert lines or process.returncode < 0, f"{out[-1000:]}\n{err[-3000:]}"
        found.append(json.loads(lines[-1]) if lines else None)
    return found
