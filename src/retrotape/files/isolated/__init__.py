"""A stranger's tape in a process of its own, which can do little else than answer.

This side: `_tape` (what the user has), `_process` (one message there, one back), `_launch`, `_deaths`. The other side:
`_serving`, `_confinement` with `_seccomp` and `_landlock`; `_isolated_child.py` starts it. Between: `_wire`,
`_results`, `_references`, `_note`.
"""

from retrotape.files.isolated._confinement import Confinement, confine
from retrotape.files.isolated._note import Note
from retrotape.files.isolated._process import Process
from retrotape.files.isolated._serving import METHODS, PROPERTIES, Pipes, Server
from retrotape.files.isolated._wire import receive, send

__all__ = [
    "METHODS",
    "PROPERTIES",
    "Confinement",
    "Note",
    "Pipes",
    "Process",
    "Server",
    "confine",
    "receive",
    "send",
]
