"""Tapes as bytes on a disk: one safetensors file, or a folder and a store. `FORMAT.md` describes both.

Nothing here imports TensorFlow or interprets a program. Everything in a file is checked before it is used; nothing is
unpacked, and nothing in it is run.
"""

from retrotape.files.store._container import Container, open_tape
from retrotape.files.store._format import Limits, Stored, TensorInfo
from retrotape.files.store._write import check_target, estimate, write

__all__ = ["Container", "Limits", "Stored", "TensorInfo", "check_target", "estimate", "open_tape", "write"]
