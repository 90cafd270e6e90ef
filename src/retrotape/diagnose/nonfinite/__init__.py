"""Which op made the first NaN or infinity, on the way forward or on the way back, and why."""

from retrotape.diagnose.nonfinite._causes import Cause
from retrotape.diagnose.nonfinite._result import Nonfinite
from retrotape.diagnose.nonfinite._search import first_nonfinite, results, scalars

__all__ = ["Cause", "Nonfinite", "first_nonfinite", "results", "scalars"]
