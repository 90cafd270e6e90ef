"""Program + rules → gradients."""

from retrotape.execute._each import answer_each
from retrotape.execute._higher import dot
from retrotape.execute._inline import run_function
from retrotape.execute._jacobian import rows, vectorizes
from retrotape.execute._past import PastVariables
from retrotape.execute._plan import Plan, differentiable_inputs, make_plan
from retrotape.execute._pull import Puller
from retrotape.execute._question import Question, answer, stream
from retrotape.execute._request import Request
from retrotape.execute._running import observe_ops
from retrotape.execute._values import Values, evaluate, run_eqn
from retrotape.execute._walk import add, walk

__all__ = [
    "PastVariables",
    "Plan",
    "Puller",
    "Question",
    "Request",
    "Values",
    "add",
    "answer",
    "answer_each",
    "differentiable_inputs",
    "dot",
    "evaluate",
    "make_plan",
    "observe_ops",
    "rows",
    "run_eqn",
    "run_function",
    "stream",
    "vectorizes",
    "walk",
]
