"""An untrusted tape in a separate process, which can do little but run queries.

This side: `tape/isolated.py` (the user's object), `_process` (request and reply), `_launch`, `_deaths`. The other side:
`_serving`, `_confinement` with `_seccomp` and `_landlock`; `_isolated_child.py` starts it. Between: `_wire`,
`_results`, `_references`, `_note`.
"""

from retrotape.files.isolated._confinement import Confinement, confine, end_with
from retrotape.files.isolated._note import Note
from retrotape.files.isolated._process import Process
from retrotape.files.isolated._results import add_kind
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
    "add_kind",
    "confine",
    "end_with",
    "receive",
    "send",
]
