"""On a TensorFlow or Keras that misses a private name, one error names it: no other error, and never a number."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors
from retrotape.tf import compatibility, private_names
from retrotape.tf.compatibility import PrivateName, check_tensorflow, problems
from tf.without_names import (
    change_parameters,
    is_written_in_python,
    remove,
    with_another_first,
    with_one_more,
)

TENSORFLOW = [*private_names.HOOKED, *private_names.CALLED]
FORMS = ["2.21.0", "2.22.0-dev20261101", "2.20.0rc1", "2.19.0+nv24.5", "unknown", "", None, "3.0"]


def test_what_is_installed_has_all_names() -> None:
    assert problems(private_names.HOOKED, hooked=True) == []
    assert problems([*private_names.CALLED, *private_names.KERAS]) == []


# ------------------------------------------------------------------ every name, one by one


@pytest.mark.parametrize("line", TENSORFLOW)
def test_without_a_name_of_tensorflow_the_error_names_it(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    private = PrivateName.parse(line)
    remove(private, monkeypatch.setattr, monkeypatch.delattr)
    with pytest.raises(errors.IncompatibleTensorFlowError) as caught:
        check_tensorflow("2.99.0")
    monkeypatch.undo()
    assert f"there is no {private}" in caught.value.detail
    assert caught.value.version == "2.99.0"


@pytest.mark.parametrize("line", private_names.KERAS)
def test_without_a_name_of_keras_a_tape_says_so(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    private = PrivateName.parse(line)
    monkeypatch.setattr(compatibility, "_checked_keras", None)
    remove(private, monkeypatch.setattr, monkeypatch.delattr)
    with pytest.raises(errors.IncompatibleTensorFlowError) as caught, rt.Tape():
        pass
    monkeypatch.undo()
    assert f"there is no {private}" in caught.value.detail
    assert str(caught.value).startswith(
        f"retrotape {rt.__version__} cannot record on Keras {keras.__version__} with TensorFlow {tf.__version__}: "
    )
    assert '`pip install "keras>=3.8,<3.16"`' in str(caught.value)


RUN = """
import json, os, sys
import tensorflow as tf, keras
import retrotape.errors
from retrotape.tf import private_names
from retrotape.tf.compatibility import PrivateName
from tf.without_names import remove

x = tf.constant(3.0)
outcomes = {}
for line in [*private_names.HOOKED, *private_names.CALLED, *private_names.KERAS][int(sys.argv[1])::int(sys.argv[2])]:
    reading, writing = os.pipe()
    child = os.fork()  # TensorFlow has computed nothing yet: there are no threads to lose
    if child == 0:
        private, outcome = PrivateName.parse(line), "no error"
        try:
            remove(private)
            import retrotape as rt
            with rt.Tape() as tape:
                y = x * x
            tape.gradient(y, x)
        except BaseException as error:
            named = str(private) in str(error)
            outcome = f"{type(error).__name__}{'' if named else ' without the name: ' + str(error)}"
        os.write(writing, outcome.encode()[:4000])
        os._exit(0)
    os.close(writing)
    outcomes[line] = os.read(reading, 4000).decode()
    os.close(reading)
    os.waitpid(child, 0)
print(json.dumps(outcomes))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="one process for each name takes minutes without fork")
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["sample", "all"])
def test_a_program_that_starts_without_a_name_gets_this_error_and_no_other(step: int) -> None:
    roots = os.pathsep.join([str(Path(rt.__file__).parents[1]), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", RUN, "0", str(step)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": roots},
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert len(outcomes) >= 10
    assert {line: found for line, found in outcomes.items() if found != "IncompatibleTensorFlowError"} == {}


# ------------------------------------------------------------------ parameters


PYTHON = [line for line in private_names.HOOKED if is_written_in_python(PrivateName.parse(line))]


def test_nearly_all_hooks_are_on_functions_in_python() -> None:
    assert len(PYTHON) == len(private_names.HOOKED) - 2


@pytest.mark.parametrize("line", [line for line in PYTHON if "..." not in line])
def test_a_hooked_function_with_one_more_parameter(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    private = PrivateName.parse(line)
    change_parameters(private, with_one_more, monkeypatch.setattr)
    with pytest.raises(errors.IncompatibleTensorFlowError, match=re.escape(f"{private} takes (")):
        check_tensorflow(tf.__version__)


@pytest.mark.parametrize("line", [line for line in PYTHON if "..." in line])
def test_hooks_that_pass_on_the_rest_take_more_parameters(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change_parameters(PrivateName.parse(line), with_one_more, monkeypatch.setattr)
    check_tensorflow(tf.__version__)


CALLED = [line for line in private_names.CALLED if is_written_in_python(PrivateName.parse(line)) and "(" in line]


@pytest.mark.parametrize("line", PYTHON + CALLED)
def test_other_leading_parameters(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    private = PrivateName.parse(line)
    change_parameters(private, with_another_first, monkeypatch.setattr)
    with pytest.raises(errors.IncompatibleTensorFlowError, match=re.escape(f"{private} takes (added")):
        check_tensorflow(tf.__version__)


def test_what_is_only_called_may_have_optional_parameters_more(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "eager.execute:record_gradient(op_name, inputs, attrs, outputs)"
    assert line in private_names.CALLED
    change_parameters(PrivateName.parse(line), with_one_more, monkeypatch.setattr)
    assert problems([line]) == []
    assert problems([line], hooked=True) != []


def test_a_wrapper_of_somebody_else_is_no_other_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorflow.python.eager import execute

    before = execute.quick_execute
    monkeypatch.setattr(execute, "quick_execute", lambda *args, **kwargs: before(*args, **kwargs))
    check_tensorflow(tf.__version__)


# ------------------------------------------------------------------ the text


def test_the_error_says_what_is_missing_what_was_tried_and_what_to_type() -> None:
    error = errors.IncompatibleTensorFlowError("2.22.0", "there is no tensorflow.python.eager.record.record_operation")
    assert str(error) == (
        f"retrotape {rt.__version__} cannot record on TensorFlow 2.22.0: there is no "
        "tensorflow.python.eager.record.record_operation. Tested versions are 2.16 to 2.21; install one of them, "
        '`pip install "tensorflow>=2.16,<2.22"` (or tensorflow-cpu), or a newer retrotape, '
        "`pip install --upgrade retrotape`. If there is none yet, please report this message; `make compat TF=...` in "
        "a checkout shows what differs."
    )
    assert (error.version, error.keras) == ("2.22.0", None)


def test_many_missing_names_are_cut_short() -> None:
    text = compatibility._summary([f"there is no a.b{number}" for number in range(20)])
    assert text.count("there is no") == 8
    assert text.endswith("; and 12 more")


# ------------------------------------------------------------------ versions


@pytest.mark.parametrize(
    "version", [*FORMS, "v2.21", " 2.21.0 ", "2", "2.x", b"2.21", 2.21, object(), "9" * 5000 + ".1"]
)
def test_any_version_is_read_without_an_error(version: object) -> None:
    minor = compatibility.minor_of(version)
    assert minor is None or minor[0] >= 2
    assert isinstance(compatibility.is_tested(version), bool)
    assert isinstance(compatibility.is_release(version), bool)
    assert str(errors.IncompatibleTensorFlowError(compatibility.shown(version), "x"))


def test_which_versions_are_trusted() -> None:
    decided = {version: (compatibility.is_tested(version), compatibility.is_release(version)) for version in FORMS}
    assert decided == {
        "2.21.0": (True, True),
        "2.22.0-dev20261101": (False, False),
        "2.20.0rc1": (True, False),
        "2.19.0+nv24.5": (True, False),
        "unknown": (False, False),
        "": (False, False),
        None: (False, False),
        "3.0": (False, True),
    }


# Each in a fork of a process that has TensorFlow only.
BUILDS = """
import os, sys, warnings, tensorflow as tf
for number, version in enumerate({versions}):
    if os.fork():
        os.wait()
        continue
    if version == "missing":
        del tf.__version__
    else:
        tf.__version__ = version
    import retrotape as rt
    x = tf.constant(3.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with rt.Tape() as tape:
            y = x * x
        tape.save(os.path.join(sys.argv[1], f"{{number}}.tape"))
    rt.load(os.path.join(sys.argv[1], f"{{number}}.tape"))
    ours = [each for each in caught if each.category is rt.errors.UntriedTensorFlowWarning]
    print(number, float(tape.gradient(y, x)), len(ours), flush=True)
    os._exit(0)
"""


def test_a_build_that_calls_itself_anything_records_and_saves(tmp_path: Path) -> None:
    versions = ["2.22.0-dev20261101", None, "missing"]
    done = subprocess.run(
        [sys.executable, "-c", BUILDS.format(versions=versions), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(rt.__file__).parents[1])},
    )
    assert done.stdout.splitlines() == ["0 6.0 1", "1 6.0 1", "2 6.0 1"], done.stderr
    assert sorted(os.listdir(tmp_path)) == ["0.tape", "1.tape", "2.tape"]
