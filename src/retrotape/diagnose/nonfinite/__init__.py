"""Which op produced the first NaN or infinity, in the forward or the backward pass, and why."""

from retrotape.diagnose.nonfinite._causes import Cause
from retrotape.diagnose.nonfinite._result import Nonfinite
from retrotape.diagnose.nonfinite._search import first_nonfinite, flattened, results, scalars

__all__ = ["Cause", "Nonfinite", "first_nonfinite", "flattened", "results", "scalars"]
