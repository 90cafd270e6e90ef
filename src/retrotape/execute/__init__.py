"""Program + rules → gradients."""

from retrotape.execute._higher import dot
from retrotape.execute._jacobian import rows
from retrotape.execute._plan import Plan, make_plan
from retrotape.execute._pull import Puller
from retrotape.execute._question import Question, answer
from retrotape.execute._values import Values
from retrotape.execute._walk import add, walk

__all__ = ["Plan", "Puller", "Question", "Values", "add", "answer", "dot", "make_plan", "rows", "walk"]
