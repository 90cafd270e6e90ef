"""Program → program: joined, without calls, portable, pruned, replayed on other values."""

from retrotape.transform._flatten import flatten
from retrotape.transform._join import merge
from retrotape.transform._portable import SavedFunction, portable
from retrotape.transform._prune import WITHOUT_BYTES, Thawed
from retrotape.transform._replay import replay

__all__ = ["WITHOUT_BYTES", "SavedFunction", "Thawed", "flatten", "merge", "portable", "replay"]
