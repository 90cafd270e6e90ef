"""Which op made the first NaN or infinity, on the way forward or on the way back, and why."""

from retrotape.nonfinite._causes import Cause
from retrotape.nonfinite._result import Nonfinite
from retrotape.nonfinite._search import first_nonfinite, results, scalars

__all__ = ["Cause", "Nonfinite", "first_nonfinite", "results", "scalars"]
