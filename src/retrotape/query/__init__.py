"""Queries: gradients, Jacobians, products with vectors, Hessians, each a few lines on top of `execute`."""

from retrotape.query._first_order import Questions, locked, question
from retrotape.query._higher_order import HigherOrder
from retrotape.query._names import NAMED, has_text, replace_names, variable_named
from retrotape.query._request import Answers, pose

__all__ = [
    "NAMED",
    "Answers",
    "HigherOrder",
    "Questions",
    "has_text",
    "locked",
    "pose",
    "question",
    "replace_names",
    "variable_named",
]
