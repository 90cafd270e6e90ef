"""Stand for a program that a fork server runs: same open files, folder and environment, same signals and exit code.

It is started without `site`, in a hundredth of a second: `python -IS fork_client.py ADDRESS PYTHON arguments...`
"""

import json
import os
import signal
import socket
import sys

# An import may depend on these: where they differ from the server's, which has imported TensorFlow, Python is started.
RELEVANT = ("PYTHON", "TF_", "XLA_", "KERAS_", "RETROTAPE_")
HANDLED = {"PYTHONPATH", "PYTHONUNBUFFERED", "TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL"}


def relevant(environment: dict) -> dict:
    """Return the part of an environment that must be the server's."""
    return {name: value for name, value in environment.items() if name.startswith(RELEVANT) and name not in HANDLED}


def open_files() -> list[int]:
    """Return what this process was given to read or write: its streams, and what `pass_fds` names."""
    found = []
    for number in range(3, 256):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    return [0, 1, 2, *found]


def main() -> None:
    """Run the program, and end as it ended."""
    address, python, *words = sys.argv[1:]
    with open(f"{address}.environment") as file:
        same = json.load(file) == relevant(dict(os.environ))
    given = words
    if words[:1] == ["-B"]:  # `multiprocessing` passes it on where PYTHONDONTWRITEBYTECODE is set
        words = words[1:]
    if not same or not words or (words[0].startswith("-") and words[0] not in ("-c", "-m")):
        os.execv(python, [python, *given])
    files = open_files()
    request = {"words": words, "environment": dict(os.environ), "folder": os.getcwd(), "files": files}
    raw = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda got, frame: server.send(bytes([got])))
        message = len(raw).to_bytes(4, "big") + raw
        sent = socket.send_fds(server, [message], files)
        server.sendall(message[sent:])
        answer = server.recv(4)
    code = int.from_bytes(answer, "big", signed=True) if answer else 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
