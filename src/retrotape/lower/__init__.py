"""Computation → function of TensorFlow: queries of a structure that comes again are compiled."""

from retrotape.lower._builder import FunctionBuilder
from retrotape.lower._inside import is_inside, run_inside
from retrotape.lower._lower import SINGLE_THREADED, add_node
from retrotape.lower._observed import Computation, NotCompilableError, Observation, array_of, value_bytes
from retrotape.lower._parts import differentiate_in_parts
from retrotape.lower._queries import compiled
from retrotape.lower._rows import compiled_rows
from retrotape.lower._shapes import CALL, may_fail, size_of
from retrotape.lower._simplify import Simplified, Simplifier
from retrotape.lower._structures import cache

__all__ = [
    "CALL",
    "SINGLE_THREADED",
    "Computation",
    "FunctionBuilder",
    "NotCompilableError",
    "Observation",
    "Simplified",
    "Simplifier",
    "add_node",
    "array_of",
    "cache",
    "compiled",
    "compiled_rows",
    "differentiate_in_parts",
    "is_inside",
    "may_fail",
    "run_inside",
    "size_of",
    "value_bytes",
]
