"""Program + rules → gradients: the plan, the walk, one rule applied, values; and one loop that runs a program."""

from retrotape.execute._calls import CallGradient
from retrotape.execute._dot import dot
from retrotape.execute._each import differentiate_each
from retrotape.execute._forward import ForwardPass
from retrotape.execute._function_program import DEEPEST, apply_function, bind, cotangent_tensors, custom_name
from retrotape.execute._inline import held_inputs, operands_of, run_function
from retrotape.execute._jacobian import FEW, UnitSeeds, in_chunks, rows, vectorizes
from retrotape.execute._past import PastVariables
from retrotape.execute._plan import Plan, Step, make_plan
from retrotape.execute._progress import tracked
from retrotape.execute._query import Query, Request, differentiate, stream
from retrotape.execute._run import evaluator, observe_ops, run, run_eqn, run_steps
from retrotape.execute._values import Values
from retrotape.execute._vjp import RuleVjp
from retrotape.execute._walk import add, advance, remaining, walk

__all__ = [
    "DEEPEST",
    "FEW",
    "CallGradient",
    "ForwardPass",
    "PastVariables",
    "Plan",
    "Query",
    "Request",
    "RuleVjp",
    "Step",
    "UnitSeeds",
    "Values",
    "add",
    "advance",
    "apply_function",
    "bind",
    "cotangent_tensors",
    "custom_name",
    "differentiate",
    "differentiate_each",
    "dot",
    "evaluator",
    "held_inputs",
    "in_chunks",
    "make_plan",
    "observe_ops",
    "operands_of",
    "remaining",
    "rows",
    "run",
    "run_eqn",
    "run_function",
    "run_steps",
    "stream",
    "tracked",
    "vectorizes",
    "walk",
]
