"""A tape is read by another version of TensorFlow than the one that wrote it, older or newer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.trips import finish, start

OLDEST = Path(__file__).parents[2] / ".venv-oldest" / "bin" / "python"
SAVE = "import sys; from files.recorded import save; save(sys.argv[1])"
TELL = "import sys, json; from files.recorded import answers; print(json.dumps(answers(sys.argv[1])))"


@pytest.mark.slow
@pytest.mark.skipif(not OLDEST.exists(), reason="`make .venv-oldest/.ready` makes the environment that this needs")
def test_there_and_back(tmp_path):
    pythons = {"newest": sys.executable, "oldest": OLDEST}
    for process in [start(SAVE, tmp_path / f"{name}.tape", python=python) for name, python in pythons.items()]:
        finish(process)
    for written in pythons:
        told = [start(TELL, tmp_path / f"{written}.tape", python=python) for python in pythons.values()]
        newest, oldest = (json.loads(finish(process).splitlines()[-1]) for process in told)
        assert newest.keys() == oldest.keys()
        for name in newest:
            np.testing.assert_allclose(oldest[name], newest[name], rtol=2e-5, atol=1e-6, err_msg=f"{written} {name}")
            assert np.all(np.isfinite(newest[name]))
            assert np.any(newest[name])
