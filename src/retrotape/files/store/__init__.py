"""Tapes as bytes on a disk: one file, or a folder and a store. `FORMAT.md` describes both.

Nothing here knows TensorFlow or what a program means. Whatever a file says is checked before it is used; nothing is
unpacked, and nothing in it is run.
"""

from retrotape.files.store._container import Container, open_tape
from retrotape.files.store._format import Limits, Stored, TensorInfo
from retrotape.files.store._plan import estimate
from retrotape.files.store._write import write

__all__ = ["Container", "Limits", "Stored", "TensorInfo", "estimate", "open_tape", "write"]
