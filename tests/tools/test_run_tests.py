"""The runner of the tests counts, and names what died; what stands for Python behaves like Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.processes import PYTHON

TOOL = Path(__file__).parents[2] / "tools" / "run_tests.py"
is_forked = pytest.mark.skipif(sys.executable == PYTHON, reason="there is a fork server in `make test` only")


def run_tests(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -ra\nmarkers =\n  slow: for later\n")
    (folder / "test_it.py").write_text(code)
    command = [PYTHON, str(TOOL), "-n", "2", *options, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def run(code: str, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PYTHON, "-c", code, *words], capture_output=True, text=True, check=False, **options)


def wait_for_end(pid: int) -> None:
    for _ in range(1000):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.01)
    raise AssertionError("the program goes on")


# ------------------------------------------------------------------ the runner

MIXED = """
import os, pytest

def test_right(): pass
def test_wrong(): assert 1 == 2
@pytest.mark.skip(reason="not today")
def test_skipped(): pass
@pytest.mark.slow
def test_slow(): pass
"""


def test_it_counts_and_names_what_failed(tmp_path: Path) -> None:
    done = run_tests(tmp_path, MIXED, "-m", "not slow", "--part", "mixed")
    *_, figures, last = done.stdout.splitlines()
    assert (done.returncode, last) == (1, "mixed: 1 passed, 1 failed, 1 skipped")
    assert figures.startswith("mixed: ")
    assert "assert 1 == 2" in done.stdout
    assert "FAILED test_it.py::test_wrong" in done.stdout
    assert "not today" in done.stdout


def test_a_process_that_dies_is_a_failure_with_the_name_of_the_test(tmp_path: Path) -> None:
    code = "import os, signal\ndef test_a(): pass\ndef test_b(): os.kill(os.getpid(), signal.SIGSEGV)\n"
    done = run_tests(tmp_path, code)
    assert done.stdout.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
    assert "test_it.py::test_b - its process ended with exit code -11" in done.stdout


def test_a_file_that_cannot_be_imported_is_a_failure(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "import no_such_module")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "0 passed, 1 failed, 0 skipped")


def test_no_test_at_all_is_no_success(tmp_path: Path) -> None:
    assert run_tests(tmp_path, "").returncode == 5


def test_a_share_is_chosen_by_its_seed(tmp_path: Path) -> None:
    code = "import pytest\n@pytest.mark.parametrize('n', range(60))\ndef test(n): print(f'ran {n},', end='')\n"
    runs = [run_tests(tmp_path, code, "--share", "3", "--seed", seed).stdout.splitlines()[-1] for seed in "aab"]
    counts = [int(line.split()[0]) for line in runs]
    assert counts[0] == counts[1]
    assert all(5 < count < 40 for count in counts)


# ------------------------------------------------------------------ the Python that stands for Python


def test_streams_arguments_folder_and_exit_code(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv, input(), os.getcwd(), file=sys.stderr); sys.exit(7)"
    done = run(code, "a", "b", input="from stdin", cwd=tmp_path)
    assert done.returncode == 7
    assert done.stderr == f"['-c', 'a', 'b'] from stdin {tmp_path}\n"


def test_an_error_has_its_traceback_and_a_text_is_printed() -> None:
    done = run("raise ValueError('so')")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: so\n")
    done = run("import sys; sys.exit('not so')")
    assert (done.returncode, done.stderr) == (1, "not so\n")


def test_scripts_and_modules(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("name = 'beside'")
    (tmp_path / "it.py").write_text("import sys, beside\nprint(__name__, sys.argv[1], beside.name)")
    done = subprocess.run([PYTHON, str(tmp_path / "it.py"), "x"], capture_output=True, text=True, check=True)
    assert done.stdout == "__main__ x beside\n"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [PYTHON, "-m", "it", "y"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "__main__ y beside\n"


def test_what_runs_at_exit_runs() -> None:
    code = "import atexit, threading; atexit.register(print, 'last'); threading.Timer(0.1, print, ['thread']).start()"
    assert run(code).stdout == "thread\nlast\n"


@is_forked
def test_tensorflow_is_imported_but_has_run_nothing() -> None:
    code = """if True:
        import sys
        print("tensorflow" in sys.modules, end=" ")
        from tensorflow.python.eager import context
        print(context.context()._context_handle)"""
    assert run(code).stdout == "True None\n"


@pytest.mark.parametrize("variable", ["PYTHONHASHSEED", "TF_NEW", "RETROTAPE_COMPILE"])
def test_another_environment_starts_python_itself(variable: str) -> None:
    environment = {**os.environ, variable: "0"}
    done = run("import sys; print('tensorflow' in sys.modules)", env=environment)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_reach_the_program(number: signal.Signals, tmp_path: Path) -> None:
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    told = tmp_path / "pid"
    process = subprocess.Popen([PYTHON, "-c", code, str(told)], stderr=subprocess.PIPE)
    while not (told.exists() and told.read_text()):
        time.sleep(0.01)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=30)
    assert process.returncode == (1 if number == signal.SIGINT and sys.executable != PYTHON else -number)
    assert (b"KeyboardInterrupt" in complaints) == (number == signal.SIGINT)
    wait_for_end(int(told.read_text()))


def test_a_long_request_arrives_whole() -> None:
    text = "x" * 100_000
    done = run("import sys, json; print(json.dumps([len(word) for word in sys.argv[1:]]))", text, text)
    assert json.loads(done.stdout) == [len(text)] * 2


@is_forked
def test_a_client_that_was_killed_as_it_asked_does_not_stop_the_server(tmp_path: Path) -> None:
    code = """if True:
        import pathlib, socket, subprocess, sys
        from helpers.processes import fork_server
        folder = pathlib.Path(sys.argv[1])
        with fork_server(folder, ["json"]) as python:
            for asked in (b"", b"\\0", b"\\0\\0\\0\\5{"):
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(folder / "server"))
                    client.sendall(asked)
            print(subprocess.run([python, "-c", "print(6)"], timeout=20, check=True, capture_output=True).stdout)"""
    environment = {name: value for name, value in os.environ.items() if name != "FORKED_PYTHON"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == r"b'6\n'", done.stderr


@is_forked
def test_nothing_is_left_of_a_runner_that_was_killed(tmp_path: Path) -> None:
    """Nobody asks the server for anything any more, so it ends, and what it has started with it."""
    code = """if True:
        import os, sys, tempfile, pathlib, subprocess, signal
        from helpers.processes import fork_server
        with fork_server(pathlib.Path(sys.argv[1])) as python:
            subprocess.Popen([python, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"])
            os.kill(os.getpid(), signal.SIGSTOP)"""
    environment = {name: value for name, value in os.environ.items() if name != "FORKED_PYTHON"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as runner:
        assert runner.stdout is not None
        pid = int(runner.stdout.readline())
        runner.kill()
    wait_for_end(pid)
