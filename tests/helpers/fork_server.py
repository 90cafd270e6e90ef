"""Import TensorFlow once, and fork for each program: it starts in a tenth of a second.

No op runs here, so a program finds TensorFlow as after an import. `fork_client.py` asks for one, `processes.py` starts
both.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fork_client import relevant  # beside this file, which runs as a script

TAKE_DOWN = "FORKED_PYTHON_TAKE_DOWN"
IMPORTED = ("tensorflow", "keras", "pytest", "hypothesis", "retrotape.tape")


class Server:
    """Forks for each connection, tells it the exit status, and kills the program if the connection is closed before."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wakeup, self._sender = socket.socketpair()
        for end in (self._wakeup, self._sender):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._sender.fileno())
        self._clients: dict[int, socket.socket] = {}
        self._selector.register(sys.stdin, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any]:
        """Answer requests, for ever; return only in a process that was forked, with what it has to run."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    request = self._accept()
                    if request is not None:
                        return request
                elif key.fileobj is self._wakeup:
                    self._wakeup.recv(4096)
                    self._reap()
                elif key.fileobj is sys.stdin:  # closed: who started the server is gone
                    self._end()
                elif key.fileobj in self._clients.values():  # and was not reaped in this round
                    self._pass_on(key.fileobj)

    def _accept(self) -> dict[str, Any] | None:
        client, _ = self._listener.accept()
        message, files, _, _ = socket.recv_fds(client, 1 << 22, 253)
        size = int.from_bytes(message[:4], "big")
        while len(message) < 4 + size or len(message) < 4:
            more = client.recv(1 << 22)
            if not more:  # it was killed
                client.close()
                for file in files:
                    os.close(file)
                return None
            message += more
            size = int.from_bytes(message[:4], "big")
        pid = os.fork()
        if pid:
            for file in files:
                os.close(file)
            self._clients[pid] = client
            self._selector.register(client, selectors.EVENT_READ)
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request = json.loads(message[4:])
        files = [_moved(file) for file in files]
        for end in (self._selector, self._listener, self._wakeup, self._sender, client, *self._clients.values()):
            end.close()
        for file, number in zip(files, request.pop("files"), strict=True):
            os.dup2(file, number)
            os.close(file)
        return request

    def _end(self) -> None:
        for pid in self._clients:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    def _reap(self) -> None:
        while self._clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            client = self._clients.pop(pid)
            if client in self._selector.get_map():
                self._selector.unregister(client)
            with contextlib.suppress(OSError), client:  # a client that was killed does not listen any more
                client.send(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))

    def _pass_on(self, client: socket.socket) -> None:
        """Send a program the signal that its client has got; kill it if the client is gone."""
        number = client.recv(1)
        (pid,) = [pid for pid, other in self._clients.items() if other is client]
        os.kill(pid, number[0] if number else signal.SIGKILL)
        if not number:
            self._selector.unregister(client)


def _moved(file: int) -> int:
    """Give a file a number that no file of a program has."""
    moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 256)
    os.close(file)
    return moved


def _open_streams(unbuffered: bool) -> None:
    """Open the standard streams as Python does at its start: those of the server know what its own files are."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        buffering = 0 if number and unbuffered else -1
        raw = open(number, "wb" if number else "rb", buffering, closefd=False)  # noqa: SIM115 - as long as the process
        by_line = number == 2 or raw.isatty()
        options = {"line_buffering": by_line, "write_through": bool(number) and unbuffered}
        stream = io.TextIOWrapper(raw, before.encoding, before.errors, **options)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def become(words: Sequence[str], environment: dict[str, str], folder: str) -> None:
    """Run what a command line of Python names in this process, as its main module."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    _open_streams(bool(environment.get("PYTHONUNBUFFERED")))
    if "COVERAGE_PROCESS_START" in environment:  # where Python starts, coverage itself looks at it
        importlib.import_module("coverage").process_startup()
    kind, rest = words[0], list(words[1:])
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if kind == "-c":
        sys.argv, sys.path[:1] = ["-c", *rest[1:]], ["", *paths]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif kind == "-m":
        sys.argv, sys.path[:1] = rest, [folder, *paths]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:1] = [kind, *rest], [str(Path(kind).parent.resolve()), *paths]
        runpy.run_path(kind, run_name="__main__")


def main() -> None:
    """Serve at the address on the command line, with the modules there imported."""
    for name in sys.argv[2:] or IMPORTED:
        importlib.import_module(name)
    server = Server(sys.argv[1])
    Path(f"{sys.argv[1]}.environment").write_text(json.dumps(relevant(dict(os.environ))))
    gc.collect()
    gc.freeze()  # collections pass over what was imported
    print("ready", flush=True)
    end(server.serve())


def end(request: dict[str, Any]) -> None:
    """Run a program and end the process.

    The interpreter is taken down only for `processes.TAKEN_DOWN`: that copies all that was imported.
    """
    try:
        become(**request)
        code = 0
    except SystemExit as error:
        if not isinstance(error.code, (int, type(None))):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if TAKE_DOWN in os.environ:
        gc.unfreeze()
        sys.exit(code)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
