"""Python in a process of its own, which has imported TensorFlow in a tenth of a second instead of seconds.

`PYTHON` takes the place of `sys.executable` where a test wants a process of its own: it understands `-c`, `-m` and
scripts. Any other option, or an environment in which an import might do something else, starts Python itself. Where the
point is how a process starts, or what an import does, `sys.executable` is right. Without a server `PYTHON` is that.

The process that is seen from outside is not that of the program: SIGINT, SIGTERM and its own end are passed
on, no others.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_NAME = "FORKED_PYTHON"
PYTHON = os.environ.get(_NAME, sys.executable)
# For the environment of a program whose end is the point: all that Python does at its end.
TAKEN_DOWN = {"FORKED_PYTHON_TAKE_DOWN": "1"}


@contextlib.contextmanager
def fork_server(folder: Path, imported: Sequence[str] = ()) -> Iterator[str]:
    """Have a server for the length of the block, for the programs that it runs too; return what stands for Python.

    Args:
      folder: Where the server has its address.
      imported: The modules that programs find imported, if not those that tests expect.
    """
    if _NAME in os.environ:
        yield os.environ[_NAME]
        return
    address, command = folder / "server", folder / "python"
    helpers = Path(__file__).parent
    client = [sys.executable, "-IS", str(helpers / "fork_client.py"), str(address), sys.executable]
    command.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, _NAME: str(command)}
    start = [sys.executable, str(helpers / "fork_server.py"), str(address), *imported]
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
        try:
            assert server.stdout is not None
            if server.stdout.readline() != b"ready\n":
                raise RuntimeError("The fork server did not start: see its complaint above.")
            with contextlib.ExitStack() as stack:
                stack.callback(os.environ.pop, _NAME)
                os.environ[_NAME] = str(command)
                yield str(command)
        finally:
            server.kill()
