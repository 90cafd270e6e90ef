"""Program → program: join, flatten, make portable, prune, replay on other values, differentiate."""

from retrotape.transform._backward import BackwardProgram, backward_program
from retrotape.transform._flatten import flatten, flatten_if_possible
from retrotape.transform._join import TraceVar, join
from retrotape.transform._portable import portable, runs_user_code
from retrotape.transform._prune import WITHOUT_BYTES, Pruned
from retrotape.transform._replay import replay

__all__ = [
    "WITHOUT_BYTES",
    "BackwardProgram",
    "Pruned",
    "TraceVar",
    "backward_program",
    "flatten",
    "flatten_if_possible",
    "join",
    "portable",
    "replay",
    "runs_user_code",
]
