"""The command line does not say what TensorFlow says when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.cli._start import LEVEL, is_chatter


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    x, w = tf.constant([4.0, 1.0]), tf.Variable(2.0, name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.sqrt(x) * w)
    file = str(tmp_path_factory.mktemp("tapes") / "a.tape")
    tape.save(file, {"loss": loss})
    return file


def ran(*words: str, **settings: str) -> Any:
    """Run a command as in a shell in which nobody has set anything."""
    unset = (LEVEL, "TF_ENABLE_ONEDNN_OPTS")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-m", "retrotape", *words], capture_output=True, text=True, env={**env, **settings}
    )


@pytest.mark.parametrize("words", ["grad {} loss", "nan {}"])
def test_nothing_but_the_answer(path: str, words: str) -> None:
    done = ran(*words.format(path).split())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_whoever_sets_the_level_decides(path: str) -> None:
    done = ran("nan", path, **{LEVEL: "0"})
    assert done.returncode == 0
    assert "cpu_feature_guard" in done.stderr  # which level 0 lets through


def test_what_is_no_chatter_is_shown() -> None:
    code = (
        "import os\n"
        "from retrotape.cli import _start\n"
        "with _start._without_chatter():\n"
        "    os.write(2, b'I0000 port.cc:153] oneDNN custom operations are on.\\n')\n"
        "    os.write(2, b'E0000 disk on fire\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "E0000 disk on fire\n"


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-01 10:00:00.0: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is",
        "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate",
        "I0000 00:00:1.2 3 port.cc:153] oneDNN custom operations are on. You may see slightly different",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    ],
)
def test_what_is_left_out(line: str) -> None:
    assert is_chatter(line)
    assert not is_chatter("retrotape nan: There is no 'a.tape'.")
