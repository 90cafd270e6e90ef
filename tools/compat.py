"""Try retrotape on another TensorFlow: `make compat TF=2.22`, `TF=2.22.0rc1` or `TF=nightly`.

Makes an environment of its own, `.venv-compat-2.22`, and runs the tests that the oldest supported TensorFlow has to
pass. Nothing is locked: pip takes the newest Keras, NumPy and pytest that go with that TensorFlow.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The folders that mirror the source, and conformance: `ON_EACH` of the Makefile.
FOLDERS = (
    "aggregate conform errors io ir tf rules grads record execute transform lower playback python query diagnose files "
    "logs report tape distribute callbacks cli"
)
TESTS = tuple(f"tests/{name}" for name in FOLDERS.split())
TOOLS = ("pytest", "hypothesis", "jinja2", "matplotlib", "tensorboard")
# How the warning about a version that was not tried begins: here that is the point.
UNTRIED = "ignore:retrotape has not been tested"


def requirement(version: str, platform: str = sys.platform) -> str:
    """Return what pip is to install.

    >>> requirement("2.22", "linux"), requirement("2.22.0rc1", "linux"), requirement("nightly", "linux")
    ('tensorflow-cpu>=2.22.0.dev0,<2.23', 'tensorflow-cpu==2.22.0rc1', 'tf-nightly-cpu')
    >>> requirement("2.22", "darwin")
    'tensorflow>=2.22.0.dev0,<2.23'
    """
    suffix = "" if platform == "darwin" else "-cpu"  # there is no CPU build for macOS: the plain one is it
    if version == "nightly":
        return f"tf-nightly{suffix}"
    found = re.fullmatch(r"(\d+)\.(\d+)([\w.]*)", version)
    if found is None:
        raise SystemExit(f"compat: got TF={version!r}; expected a version or nightly: `make compat TF=2.22`.")
    if found[3]:
        return f"tensorflow{suffix}=={version}"
    # Named this way, pip takes a candidate where there is no release yet, and of this package only.
    return f"tensorflow{suffix}>={version}.0.dev0,<{found[1]}.{int(found[2]) + 1}"


def install(version: str) -> Path:
    """Make the environment, or bring it up to date, and return its Python."""
    wanted, folder = requirement(version), ROOT / f".venv-compat-{version}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    is_new = not python.exists()
    if is_new:
        venv.create(folder, with_pip=True)
    print(f"compat: installing {wanted} and the newest of what goes with it (not locked) in {folder.name}", flush=True)
    command = [python, "-m", "pip", "install", "--quiet", "--upgrade", wanted, *TOOLS, "-e", str(ROOT)]
    if subprocess.run(command, check=False).returncode:
        if is_new:
            shutil.rmtree(folder)
        raise SystemExit(
            f"compat: pip cannot install {wanted} for Python {sys.version_info[0]}.{sys.version_info[1]}; its message "
            "is above. Which versions there are: `pip index versions tensorflow-cpu --pre`. With another Python: "
            f"`make compat TF={version} PYTHON=python3.12`."
        )
    return python


def run_tests(python: Path, tests: list[str]) -> tuple[int, str]:
    """Run the tests, show what they print, and return the exit code and pytest's last line."""
    command = [python, "-m", "pytest", "-q", "-m", "not slow", "-W", UNTRIED, *(tests or TESTS)]
    environment = {**os.environ, "PYTHONWARNINGS": UNTRIED}  # for the processes that tests start
    last = ""
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return process.returncode, last


VERSIONS = (
    "import platform, sys, keras, tensorflow as tf;"
    "print(f'TensorFlow {tf.__version__}, Keras {keras.__version__}, Python {platform.python_version()}')"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="2.22, 2.22.0rc1 or nightly")
    parser.add_argument(
        "tests", nargs="*", help="what pytest is given; by default what `make test-all` runs on the oldest one"
    )
    given = parser.parse_args()
    python = install(given.version)
    found = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=False)
    if found.returncode:
        print(found.stderr, file=sys.stderr)
        raise SystemExit("compat: this TensorFlow cannot be imported; its message is above.")
    code, last = run_tests(python, given.tests)
    print(f"compat: {found.stdout.strip()}: {'works' if code == 0 else 'DOES NOT WORK'}: {last.strip('= ')}")
    if code:
        print("compat: what to do next is in docs/new_tensorflow.md")
    return code


if __name__ == "__main__":
    sys.exit(main())
