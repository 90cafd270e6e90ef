"""Every op that a tape may name, with hostile inputs, by the route that a file takes: load, value, gradient.

Cases run in a child process that says what it is about to do before it does it. One that ends the process, takes much
memory, or does not end, is known by what was said last; the child is then started again behind it. By hand:

    PYTHONPATH=src:tests python -m files.checks.op_fuzz --seed 0 --cases 60 [OP ...]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).parents[2]
SECONDS = 10  # of processor time, for one case
MEMORY = 2**30  # bytes by which one case may grow the process
CEILING = 6 << 30  # bytes of address space beyond what TensorFlow has: protects the machine
ENOUGH = 3  # deaths of one op: to start again takes seconds
FIELDS: dict[str, Any] = dict.fromkeys(
    (
        "redacted",
        "variables",
        "assigned",
        "unrecorded_updates",
        "moments",
        "host_reads",
        "backward_functions",
    ),
    (),
)


class Report(NamedTuple):
    """What came of the cases.

    Attributes:
      outcomes: How many ended in which way.
      faults: What may not happen, one line each.
    """

    outcomes: Counter[str]
    faults: list[str]


# ------------------------------------------------------------------ in the parent


def fuzz(
    ops: list[str], cases: int, seed: int = 0, show: Callable[[str], None] | None = None, trust: bool = False
) -> Report:
    """Run cases of some ops.

    Args:
      ops: Which.
      cases: How many of each.
      seed: Another one gives other cases.
      show: Is told of each fault when it is found.
      trust: Run them as `allow_ops` does, without what guards their kernels.
    """
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    deaths: Counter[str] = Counter()
    at, number = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "said")
        while at < len(ops):
            code = _child(folder, ops[at:], cases, seed, number, trust)
            lines = said.read_text().splitlines() if said.exists() else []
            for line in lines:
                kind, _, text = line.partition(" ")
                if kind == "fault":
                    faults.append(text)
                    (show or str)(text)
                elif kind == "counts":
                    outcomes.update(json.loads(text))
            doing = Path(folder, "doing").read_text().split("\n")[0]
            if code == 0:
                break
            op, reached, phase = doing.split()
            name = signal.Signals(-code).name if code < 0 else f"code {code}"
            faults.append(f"{op} {reached}: {name} while {phase}{_last_words(Path(folder, 'errors'))}")
            (show or str)(faults[-1])
            at, number = ops.index(op), int(reached) + 1
            deaths[op] += 1
            if number >= cases or phase == "generating" or deaths[op] == ENOUGH:
                at, number = at + 1, 0
    return Report(outcomes, faults)


def _last_words(errors: Path) -> str:
    """Return what TensorFlow wrote before it ended the process."""
    lines = [line for line in errors.read_text(errors="replace").splitlines() if "] " in line or "Error" in line]
    return f" ({lines[-1][-200:]})" if lines else ""


def _child(folder: str, ops: list[str], cases: int, seed: int, first: int, trust: bool) -> int:
    Path(folder, "said").unlink(missing_ok=True)
    program = [sys.executable, "-m", "files.checks.op_fuzz"]
    command = [*program, "--child", folder, "--seed", str(seed), "--cases", str(cases)]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    with open(Path(folder, "errors"), "w") as errors:
        return subprocess.run(
            [*command, "--first", str(first), *["--trust"] * trust, *ops],
            env={**os.environ, **quiet, "PYTHONPATH": path},
            stderr=errors,
        ).returncode


# ------------------------------------------------------------------ in the child


class _Child:
    def __init__(self, folder: str, trust: bool) -> None:
        self._trust = trust
        self._folder, self._counts = folder, Counter[str]()
        self._doing = os.open(Path(folder, "doing"), os.O_CREAT | os.O_WRONLY)
        self._said = open(Path(folder, "said"), "w", buffering=1)  # noqa: SIM115 - as long as the process
        os.fsync = lambda descriptor: None  # nobody needs these files tomorrow

    def run(self, ops: list[str], cases: int, seed: int, first: int) -> None:
        from files.checks.op_cases import Cases

        for op in ops:
            made = Cases(op, seed, self._trust)
            for number in range(cases):
                self._say(op, number, "generating")
                case = made.next()
                if number >= first:
                    self._attempt(op, number, case)
            first = 0
            self._said.write(f"counts {json.dumps(self._counts)}\n")
            self._counts.clear()

    def _say(self, op: str, number: int, phase: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        os.pwrite(self._doing, f"{op} {number} {phase}\n".encode().ljust(100), 0)

    def _attempt(self, op: str, number: int, case: Any) -> None:
        import retrotape as rt
        from files.checks.op_cases import corrected
        from retrotape.errors import RetrotapeError

        for stored in (False, True):
            self._say(op, number, "gradient-of-stored" if stored else "running")
            before = _memory(reset=True)
            try:
                tape = rt.load(self._written(case, stored), allow_ops=[op] if self._trust else [])
                if not stored:
                    tape.value("y")
                    self._counts["value"] += 1
                    self._counts[f"ran {op}"] += 1
                sources = [name for name in tape.names if name.startswith("x")]
                for name in tape.names if sources else ():
                    if name.startswith("y"):
                        self._ask(op, tape, name, sources, second=number % 8 == 0)
            except RetrotapeError as error:
                self._counts[type(error).__name__] += 1
                better = None if stored else corrected(case, str(error))
                if better is not None:
                    self._attempt(op, number, better)
                    return
            except Exception as error:
                self._said.write(
                    f"fault {op} {number}: {type(error).__module__}.{type(error).__name__}: {str(error)[:150]!r}\n"
                )
            grown = _memory() - before
            if grown > MEMORY:
                self._said.write(f"fault {op} {number}: {grown >> 20} MiB, stored={stored}\n")

    def _ask(self, op: str, tape: Any, target: str, sources: list[str], second: bool) -> None:
        tape.gradient(target, sources)
        self._counts["gradient"] += 1
        self._counts[f"went back {op}"] += 1
        if second:
            tape.hvp(target, sources[:1], [tape.value(sources[0])])
            self._counts["second"] += 1

    def _written(self, case: Any, stored: bool) -> str:
        import numpy as np

        from retrotape.files import store
        from retrotape.ir import DTYPE_NAMES

        program, values = case.program, {**case.values, **(case.stored if stored else {})}
        tensors = []
        for var, value in values.items():
            dtype = DTYPE_NAMES[program.types[var].dtype]
            flat = np.asarray(value).reshape(-1)
            data = list(flat) if dtype == "string" else flat.tobytes()
            tensors.append(store.Stored(f"v/{var}", dtype, np.shape(value), data))
        results = program.eqns[-1].outputs
        floats = [
            v
            for v in case.values
            if DTYPE_NAMES[program.types[v].dtype] in ("float32", "float64", "complex64", "float16")
        ]
        names = {f"x{var}": {"var": var} for var in floats} | {f"y{var}": {"var": var} for var in results[1:]}
        names |= {"y": {"var": results[0]}} if results else {}
        entries = {"program.txt": str(program).encode(), "functions.json": b"{}", "opdefs.pb": b""}
        path = os.path.join(self._folder, "a.tape")
        store.write(path, entries, tensors, {**FIELDS, "names": names})
        return path


def _memory(reset: bool = False) -> int:
    """Return how many bytes this process has had at most since the last reset."""
    if reset:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--child")
    parser.add_argument("ops", nargs="*")
    given = parser.parse_args()
    if given.child:
        import resource

        from retrotape.tf import core

        core.tf.zeros([])
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + CEILING, mapped + CEILING))
        _Child(given.child, given.trust).run(given.ops, given.cases, given.seed, given.first)
        return
    from retrotape.ir import OWN_OPS
    from retrotape.rules import allowed

    ops = given.ops or sorted(allowed() - OWN_OPS)
    found = fuzz(ops, given.cases, given.seed, lambda fault: print(fault, flush=True))
    print({name: count for name, count in found.outcomes.items() if " " not in name}, len(found.faults), "faults")
    for how in ("ran", "went back"):
        print(f"never {how}:", *[op for op in ops if not found.outcomes[f"{how} {op}"]])


if __name__ == "__main__":
    main()
