"""What `retrotape doctor` finds out about an installation."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from retrotape._version import __version__

PACKAGES = ("tensorflow", "keras", "numpy", "click", "rich")
EXTRAS = ("tensorboard", "fsspec", "distributed", "ray", "matplotlib", "jinja2", "scipy")
# By name: other variables that begin alike may be secrets, and this is printed into bug reports.
SETTINGS = (
    "CUDA_VISIBLE_DEVICES",
    "KERAS_BACKEND",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_CUDNN_DETERMINISTIC",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_USE_LEGACY_KERAS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)
BUILDS = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tensorflow-intel", "tf-nightly", "tf-nightly-cpu")


class Check(NamedTuple):
    """One check: what it is about, on which device, and what is wrong; None if nothing is."""

    name: str
    device: str
    problem: str | None


def versions() -> dict[str, str | None]:
    """Return the version of everything that matters; None for what is not installed."""
    found: dict[str, str | None] = {
        "Python": platform.python_version(),
        "platform": platform.platform(),
        "retrotape": __version__,
    }
    return {**found, **{name: _version(name) for name in (*PACKAGES, *EXTRAS)}}


def _version(name: str) -> str | None:
    for package in BUILDS if name == "tensorflow" else (name,):
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        return found if package == name else f"{found} ({package})"
    return None


def backend() -> str:
    """Return what Keras runs on."""
    try:
        import keras
    except Exception as error:  # any: a backend that is not installed, a broken package
        return f"none: importing keras raised {type(error).__name__}"
    return keras.backend.backend()


def devices() -> list[Any]:
    """Return the logical devices that ops can run on."""
    from retrotape.tf.core import tf

    return [one for one in tf.config.list_logical_devices() if one.device_type in ("CPU", "GPU", "TPU")]


def settings() -> dict[str, str]:
    """Return the variables of the environment that change what TensorFlow and Keras do."""
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}


def checks() -> Iterator[Check]:
    """Run every check, one after the other."""
    from retrotape.cli._conformance import PROGRAMS
    from retrotape.tape.live import Tape
    from retrotape.tf import keras_api, selftest
    from retrotape.tf.compatibility import check_keras, is_tested, shown
    from retrotape.tf.core import tf
    from retrotape.tf.keras_fit import check_fit

    tested = is_tested(tf.__version__)
    yield Check("TensorFlow is a tested version", "", None if tested else f"{shown(tf.__version__)} is not")
    yield _raising("private names of Keras", lambda: check_keras(keras_api.imported(), tf.__version__))
    yield _raising("private names that callbacks of `fit` need", lambda: check_fit(keras_api.imported()))
    for what, problem in selftest.run(Tape):
        yield Check(f"hooks: {what}", "", problem)
    for device in devices():
        for what, problem in selftest.run(Tape, PROGRAMS, device.name):
            yield Check(f"gradients: {what}", short(device.name), problem)


def _raising(name: str, check: Any) -> Check:
    try:
        check()
    except Exception as error:  # any: it is what the doctor is asked about
        return Check(name, "", str(error))
    return Check(name, "", None)


def short(device: str) -> str:
    """Return the name of a device as users write it.

    >>> short("/device:CPU:0"), short("/job:localhost/replica:0/task:0/device:GPU:1")
    ('CPU:0', 'GPU:1')
    """
    return device.rpartition("device:")[2]
