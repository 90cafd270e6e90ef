"""A function in which two workers communicate: they meet, whether it is recorded or not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def free_ports(count: int) -> list[str]:
    """Return ports of this machine that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.slow
@pytest.mark.parametrize("second", ["records", "runs"])
def test_workers_meet(second):
    ports = free_ports(2)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = str(Path(__file__).with_name("worker.py"))
    workers = [
        subprocess.Popen(
            [sys.executable, script, str(rank), *ports, how],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank, how in enumerate(("records", second))
    ]  # fmt: skip
    try:
        outputs = [worker.communicate(timeout=120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    lines = [[line for line in out.splitlines() if line.startswith("found:")] for out, _ in outputs]
    assert all(lines), [error[-2000:] for _, error in outputs]
    found = [json.loads(some[0].removeprefix("found:")) for some in lines]
    # Of both: 2 * ((1 + 2) * 3)² + 2 * 9 + 2 * 4.5 + 2 * 1.5; the slope of what a worker computes alone is its own.
    assert [one[:2] for one in found] == [[192.0, 1.5], [192.0, 1.5]]
    assert [one[2] for one in found] == [6.0, 12.0 if second == "records" else None]
