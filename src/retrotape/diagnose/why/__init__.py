"""Why there is a gradient, or none: derived from the trace, never guessed."""

from retrotape.diagnose.why._explain import dtype_problem, explain
from retrotape.diagnose.why._explanation import Explanation, Step, code_at
from retrotape.diagnose.why._first import first_cuts
from retrotape.diagnose.why._graph import title_of
from retrotape.diagnose.why._verdicts import Verdict

__all__ = ["Explanation", "Step", "Verdict", "code_at", "dtype_problem", "explain", "first_cuts", "title_of"]
