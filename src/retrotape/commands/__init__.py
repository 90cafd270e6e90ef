"""The verbs of the command line, one file each. Those that only read a tape never load TensorFlow."""

from retrotape.commands._verbs import Verbs

__all__ = ["Verbs"]
