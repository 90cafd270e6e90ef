"""How the process of an isolated tape is started: nothing of the user's folder or environment runs in it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import IsolationError
from retrotape.files.isolated import _launch

SOURCE = Path(rt.__file__).parents[1]
EVIL = "import os\nopen(os.environ.get('MARK') or __file__ + '.ran', 'w').close()\n"
NAMES = ("resource", "sitecustomize", "usercustomize", "json", "ctypes", "keras", "six", "startup", "retrotape_evil")

USE = """
import retrotape as rt
with rt.load("a.tape", isolate=True) as tape:
    print(tape.names, tape.gradient("y", "x").numpy())
"""


@pytest.fixture
def evil(tmp_path):
    """A folder with a tape, and with modules that leave a mark where they run."""
    x = tf.constant(3.0)
    with rt.Tape() as tape:
        y = x * x
    tape.save(tmp_path / "a.tape", {"x": x, "y": y})
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(EVIL)
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text('{"backend": "nobody"}')
    return tmp_path


def test_no_python_of_the_current_directory_runs(evil, tmp_path_factory):
    program = tmp_path_factory.mktemp("app") / "use.py"
    program.write_text(USE)
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, env=env, cwd=evil)
    assert ran.stdout == "('x', 'y') 6.0\n", ran.stderr
    assert list(evil.glob("*.ran")) == []


def test_no_setting_of_the_environment_reaches_it(evil, monkeypatch):
    for name, value in {
        "PYTHONPATH": str(evil),
        "PYTHONSTARTUP": str(evil / "startup.py"),
        "PYTHONHOME": str(evil),
        "PYTHONUSERBASE": str(evil),
        "LD_PRELOAD": str(evil / "a.tape"),
        "HOME": str(evil),
        "KERAS_HOME": str(evil / ".keras"),
        "KERAS_BACKEND": "nobody",
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(evil),
        "TF_XLA_FLAGS": "--nonsense",
        "MARK": str(evil / "mark.ran"),
    }.items():
        monkeypatch.setenv(name, value)
    with rt.load(evil / "a.tape", isolate=True) as held:
        assert float(held.gradient("y", "x")) == 6.0
        raw = Path(f"/proc/{held._process._child.pid}/environ")
        names = {part.split(b"=")[0].decode() for part in raw.read_bytes().split(b"\0") if part}
        assert os.readlink(f"/proc/{held._process._child.pid}/cwd") == "/"
        # the three of every program, its own two for the messages, the tape, and what TensorFlow has opened
        opened = {os.readlink(link) for link in Path(f"/proc/{held._process._child.pid}/fd").iterdir()}
    assert names <= {*_launch._SET, *_launch._KEPT, "LD_LIBRARY_PATH", "LC_CTYPE"}
    assert list(evil.glob("*.ran")) == []
    files = {one for one in opened if one.startswith("/") and not one.startswith(("/memfd:", "/dev/"))}
    assert files <= {str(evil / "a.tape")}


def test_environment_is_made_of_what_is_listed():
    given = {
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_NUM_INTRAOP_THREADS": "2; rm",
        "LD_LIBRARY_PATH": os.pathsep.join(["/opt/lib", "", "relative", "."]),
        "OTHER": "1",
    }
    assert _launch.environment(given) == {**_launch._SET, "TF_ENABLE_ONEDNN_OPTS": "0", "LD_LIBRARY_PATH": "/opt/lib"}


def module(name: str, file: Path, package: bool) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = str(file)
    if package:
        made.__path__ = [str(file.parent)]
    return made


def test_packages_come_from_where_they_came_from(tmp_path, monkeypatch):
    user, site = tmp_path / "user", tmp_path / "site"
    for folder in (user, site):
        folder.mkdir()
    modules = {
        "numpy": module("numpy", user / "numpy" / "__init__.py", True),
        "six": module("six", site / "six.py", False),
        "google.protobuf": module("google.protobuf", site / "google" / "protobuf" / "__init__.py", True),
        "keras": module("keras", Path("relative/keras/__init__.py"), True),
        "absl": module("absl", tmp_path / "gone" / "absl" / "__init__.py", True),
        "evil": module("evil", tmp_path / "evil.py", False),
    }
    monkeypatch.chdir(tmp_path)
    order = ["", ".", str(tmp_path), str(site), str(user)]
    assert _launch.import_paths(modules, order) == [str(site), str(user)]
    own = _launch.import_paths(sys.modules)
    assert str(SOURCE) in own
    assert str(Path(tf.__file__).parents[1]) in own
    assert all(os.path.isabs(path) and path != os.getcwd() for path in own)


def test_without_python_there_is_no_process(evil, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(
        IsolationError, match=r"sys\.executable does not give the path of Python\. Set it first, or load"
    ):
        rt.load(evil / "a.tape", isolate=True)


def test_what_keeps_it_from_starting_is_said(evil, monkeypatch):
    monkeypatch.setattr(_launch, "import_paths", lambda: [str(SOURCE)])
    with pytest.raises(
        IsolationError,
        match=r"The isolated process ended with code 1 while it started: .*No module named 'numpy'|MissingTensorFlow",
    ):
        rt.load(evil / "a.tape", isolate=True)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a child of its parent's end only on Linux")
def test_the_process_ends_with_a_parent_that_is_killed(tmp_path):
    """Also where it is stopped, so that it would not notice the end of its pipe, nor its alarm."""
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        y = x * x
    tape.save(tmp_path / "a.tape", x=x, y=y)
    program = (
        "import os, signal, sys, retrotape as rt; tape = rt.load(sys.argv[1], isolate=True)\n"
        "child = tape._process._child.pid; os.kill(child, signal.SIGSTOP); print(child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a.tape")], capture_output=True, text=True, check=False
    )
    child = Path("/proc") / done.stdout.strip()
    for _ in range(100):
        if not child.exists() or " Z " in (child / "stat").read_text():
            break
        time.sleep(0.1)
    else:
        os.kill(int(child.name), 9)
        pytest.fail("it is still there")
