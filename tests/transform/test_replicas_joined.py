from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_replicas_that_share_a_variable_read_what_it_held_before(tmp_path: Path):
    script = Path(__file__).with_name("replicas_joined.py")
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert done.stdout.endswith("compared 3\n"), done.stderr[-3000:]
