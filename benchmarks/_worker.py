"""Both ends of a pipe: a process that runs the workloads of one framework, in blocks, when it is told to.

Every line of its standard input is a request, every line of its standard output a reply, both JSON. The first reply
comes unasked and names the contenders.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import _measure
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = {
    "tensorflow": Path(sys.executable),
    "playback": Path(sys.executable),
    "losses": Path(sys.executable),
    "jax": ROOT / ".venv-jax" / "bin" / "python",
    "torch": ROOT / ".venv-torch" / "bin" / "python",
    "torchjd": ROOT / ".venv-torch" / "bin" / "python",
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
FIRST_CALLS = 5  # before anything is timed: a contender may compile in any of these


class Worker:
    """A process with one framework and one workload."""

    def __init__(
        self, framework: str, workload: str, threads: int, *args: object, env: Mapping[str, str] | None = None
    ) -> None:
        python = PYTHONS[framework]
        if not python.exists():
            raise SystemExit(f"There is no {python}. Type `make bench-peers`, which installs the peers.")
        limits = ONE_THREAD if threads == 1 else {}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # shown if the process fails; closed in __exit__
        self._process = subprocess.Popen(
            [python, "-W", "ignore", __file__, framework, workload, str(threads), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "JAX_PLATFORMS": "cpu", **limits, **(env or {})},
        )
        self.contenders: list[str] = self._receive()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends with its input
        self._errors.close()

    def first(self, contender: str, result: Path) -> float:
        """Make the first calls, save what the last returns as an npz file, and return the CPU seconds of the first."""
        return self.first_calls(contender, result)[0]

    def first_calls(self, contender: str, result: Path, calls: int = FIRST_CALLS) -> list[float]:
        """Make the first calls, save what the last returns as an npz file, and return the CPU seconds of each."""
        return self._ask(first=contender, result=str(result), calls=calls)

    def block(self, contender: str, calls: int) -> _measure.Seconds:
        """Return how long one call took, of so many."""
        return _measure.Seconds(*self._ask(block=contender, calls=calls))

    def _ask(self, **request: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            errors = self._errors.read()
            self.__exit__()
            raise SystemExit(f"{errors}\n{self._process.args} ended with {code}; see above.")
        return json.loads(line)


def difference(result: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Return the largest relative difference, by norm, of two results.

    >>> difference({"w": np.array([3.0, 4.5])}, {"w": np.array([3.0, 4.0])})
    0.1
    """
    if set(result) != set(expected):
        raise ValueError(f"Got results named {sorted(result)}; expected {sorted(expected)}.")
    found = [0.0]
    for name, value in expected.items():
        if result[name].shape != value.shape:
            raise ValueError(f"Got shape {result[name].shape} for {name!r}; expected {value.shape}.")
        apart = np.linalg.norm(np.float64(result[name]) - np.float64(value))
        found.append(apart / max(np.linalg.norm(np.float64(value)), 1e-6))
    return float(np.max(found))  # NaN if one of them is


# ------------------------------------------------------------------ in the process


def timed(contender: _measure.Contender) -> tuple[Any, float]:
    """Return the result of a call and its CPU seconds."""
    run, prepare, _ = contender
    args = () if prepare is None else (prepare(),)
    start = time.process_time()
    result = run(*args)
    return result, time.process_time() - start


def serve(
    contenders: Mapping[str, _measure.Contender],
    to_numpy: Callable[[Any], np.ndarray],
    send: Callable[[object], None],
) -> None:
    """Reply to requests until there are no more."""
    send(list(contenders))
    for line in sys.stdin:
        request = json.loads(line)
        if "block" in request:
            send(_measure.run_block(contenders[request["block"]], request["calls"]))
            continue
        contender = contenders[request["first"]]
        seconds = []
        for _ in range(request["calls"]):
            result, taken = timed(contender)
            seconds.append(taken)
        # The last one: it runs as those that are timed.
        np.savez(request["result"], **{name: to_numpy(value) for name, value in contender.named(result).items()})
        del result
        gc.collect()
        gc.freeze()
        send(seconds)


def main() -> None:
    framework, workload, threads, *args = sys.argv[1:]
    # What a library prints must not come between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module = importlib.import_module(f"workloads.in_{framework}")
    module.limit_threads(int(threads))
    contenders = module.WORKLOADS[workload](*args)
    serve(contenders, module.to_numpy, lambda reply: print(json.dumps(reply), file=replies))


if __name__ == "__main__":
    main()
