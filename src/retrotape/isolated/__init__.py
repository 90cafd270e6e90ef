"""A stranger's tape in a process of its own, which can do little else than answer.

This side: `_tape` (what the user has), `_process` (one message there, one back), `_launch`, `_deaths`. The other side:
`_serving`, `_confinement` with `_seccomp` and `_landlock`; `_isolated_child.py` starts it. Between: `_wire`,
`_results`, `_references`, `_note`.
"""

from retrotape.isolated._confinement import Confinement, confine
from retrotape.isolated._note import Note
from retrotape.isolated._serving import METHODS, PROPERTIES, Pipes, Server
from retrotape.isolated._tape import REFUSED, IsolatedTape, isolate
from retrotape.isolated._wire import receive, send

__all__ = [
    "METHODS",
    "PROPERTIES",
    "REFUSED",
    "Confinement",
    "IsolatedTape",
    "Note",
    "Pipes",
    "Server",
    "confine",
    "isolate",
    "receive",
    "send",
]
