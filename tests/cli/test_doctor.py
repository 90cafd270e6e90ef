"""`retrotape doctor`: what works on this machine, and what does not."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.processes import PYTHON
from retrotape.cli import _checkup, _conformance, doctor
from retrotape.errors import MissingTensorFlowError
from retrotape.tf import hook_table, private_names, selftest

TWO_DEVICES = """
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
from retrotape.cli import _conformance, main

def where(make_tape):
    with make_tape() as tape:
        y = tf.constant(2.0) * 3.0
    return [(float("CPU:1" in y.device), WANTED)]

_conformance.PROGRAMS = {"place": where}
main(["doctor", "--json"], "retrotape")
"""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one program for each device: the others have a test of their own."""
    monkeypatch.setattr(_conformance, "PROGRAMS", {"embedding": _conformance.PROGRAMS["embedding"]})


@pytest.mark.usefixtures("few")
def test_everything_works_here(run):
    done = run("doctor")
    assert done.code == 0
    shown = done.out
    for told in (
        "Python",
        "tensorflow",
        "keras",
        "numpy",
        "tensorboard",
        "jinja2",
        rt.__version__,
        tf.__version__,
        "CPU:0",
    ):
        assert told in shown
    assert shown.rstrip().endswith("All 12 checks passed.")
    assert shown.count(" ok ") == 12
    assert len(re.findall("^ ─+ *$", shown, re.MULTILINE)) == 1  # one table


@pytest.mark.usefixtures("few")
def test_as_json(run):
    found = run("doctor", "--json").json()
    assert found["ok"]
    assert found["backend"] == "tensorflow"
    assert found["devices"] == ["CPU:0"]
    assert found["versions"]["retrotape"] == rt.__version__
    assert [check["name"] for check in found["checks"]] == [
        "TensorFlow is a tested version",
        "private names of Keras",
        "private names that callbacks of `fit` need",
        *(f"hooks: {name}" for name in selftest._PROGRAMS),
        "gradients: embedding",
    ]
    assert {check["problem"] for check in found["checks"]} == {None}


@pytest.mark.parametrize(("wanted", "failing"), [("1.0", ["CPU:0"]), ("0.0", ["CPU:1"])])
def test_programs_run_on_every_device(wanted, failing):
    """A program that says where it ran is right on one of two devices only."""
    code = TWO_DEVICES.replace("WANTED", wanted)
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["devices"] == ["CPU:0", "CPU:1"]
    assert [check["device"] for check in found["checks"] if check["problem"]] == failing
    assert (done.returncode, found["ok"]) == (1, False)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", ["TFE_Py_FastPathExecute", "variable_accessed", "_call_flat"])
def test_a_hook_that_is_passed_by_is_found(name, run, monkeypatch):
    owner = next(owner for owner, attribute, _ in hook_table.hooks if attribute == name)
    monkeypatch.setattr(hook_table, "hooks", [hook for hook in hook_table.hooks if hook.key[1] != name])
    monkeypatch.setitem(hook_table.original, (owner, name), getattr(owner, name))
    done = run("doctor")
    assert done.code == 1
    assert "gave a wrong result" in done.out or "failed with" in done.out
    assert "failed: results may be wrong here. Report it, with the table above: https://" in done.out


@pytest.mark.usefixtures("few")
def test_an_untried_version_is_a_failure_in_one_line(run, monkeypatch):
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    found = run("doctor", "--json").json()
    assert [check["problem"] for check in found["checks"] if check["problem"]] == ["2.99.0 is not"]


@pytest.mark.usefixtures("few")
def test_a_keras_whose_fit_has_changed(run, monkeypatch):
    monkeypatch.setitem(private_names.FIT, "keras:Model._gone(self)", "a test")
    found = run("doctor", "--json").json()
    (failed,) = [check for check in found["checks"] if check["problem"]]
    assert failed["name"] == "private names that callbacks of `fit` need"
    assert "there is no keras.Model._gone" in failed["problem"]


def test_every_optional_package_is_shown():
    """Those of the extras in `pyproject.toml`, but for TensorFlow itself."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = re.search(r"\[project.optional-dependencies\]\n(.*?)\n\[", project, re.DOTALL)[1]
    names = {name.lower() for name in re.findall(r'"([A-Za-z0-9_-]+)', extras)}
    assert names - {"tensorflow", "tensorflow-cpu", "retrotape"} <= set(_checkup.EXTRAS)


def test_a_tensorflow_that_cannot_be_loaded(run, monkeypatch):
    def fail() -> None:
        raise MissingTensorFlowError

    monkeypatch.setattr(doctor, "start_tensorflow", fail)
    done = run("doctor", "--json")
    assert done.code == 1
    found = done.json()
    (check,) = found["checks"]
    assert check["name"] == "TensorFlow can be loaded"
    assert check["problem"].startswith("MissingTensorFlowError: ")
    assert (found["backend"], found["devices"]) == (None, [])
    shown = run("doctor")
    assert shown.code == 1
    assert "1 check of 1 failed: " in shown.out


@pytest.mark.parametrize("name", _conformance.PROGRAMS)
def test_each_program_is_right_and_can_be_wrong(name):
    program = _conformance.PROGRAMS[name]
    assert list(selftest.run(rt.Tape, {name: program})) == [(name, None)]

    class Off(rt.Tape):
        """A tape whose results are a little off."""

        def gradient(self, *args: Any, **options: Any) -> Any:
            found = super().gradient(*args, **options)
            return tf.nest.map_structure(lambda grad: tf.convert_to_tensor(grad) * 1.01, found)

        def hessian(self, *args: Any, **options: Any) -> Any:
            return super().hessian(*args, **options) * 1.01

    ((_, problem),) = selftest.run(Off, {name: program})
    assert problem == "gave a wrong result"


def test_secrets_are_not_shown(monkeypatch):
    monkeypatch.setenv("TF_VAR_password", "hunter2")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert "hunter2" not in str(_checkup.settings())
    assert _checkup.settings()["KERAS_BACKEND"] == "tensorflow"


def test_a_build_of_tensorflow_has_its_name(monkeypatch):
    def version(name: str) -> str:
        if name != "tf-nightly":
            raise PackageNotFoundError(name)
        return "2.22.0.dev1"

    monkeypatch.setattr(_checkup, "version", version)
    found = _checkup.versions()
    assert found["tensorflow"] == "2.22.0.dev1 (tf-nightly)"
    assert found["ray"] is None
