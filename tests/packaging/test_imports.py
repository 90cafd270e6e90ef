"""What is loaded when: TensorFlow only where it is needed, and of ours only what most programs use."""

from __future__ import annotations

import json
import subprocess
import sys

LATE = (
    "retrotape.files.save",
    "retrotape.files.store",
    "retrotape.diagnose.nonfinite",
    "retrotape.callbacks",
    "retrotape.logs._tensorboard",
    "retrotape.cli",
    "retrotape.cli._demo",
    "click",
)


def loaded_after(code: str) -> set[str]:
    """Return the modules that are there after some code has run in a new process."""
    shown = f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_package_alone_loads_nothing_else():
    ours = {name for name in loaded_after("import retrotape") if name.startswith("retrotape")}
    assert ours == {"retrotape", "retrotape._version"}


def test_every_public_name_is_known_before_it_is_loaded():
    found = loaded_after("import retrotape; assert set(retrotape.__all__) <= set(dir(retrotape))")
    assert "tensorflow" not in found


def test_a_tape_loads_nothing_that_only_some_programs_use():
    found = loaded_after(
        "import tensorflow as tf, retrotape as rt\n"
        "x = tf.Variable(2.0)\n"
        "with rt.Tape() as tape: y = x * x\n"
        "assert float(tape.gradient(y, x)) == 4.0"
    )
    assert "retrotape.tape.live" in found
    assert not found.intersection(LATE)
