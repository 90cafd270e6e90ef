"""Queries: gradients, Jacobians, products with vectors, Hessians, each a few lines on top of `execute`."""

from retrotape.query._base import Results, has_text
from retrotape.query._higher_order import HigherOrder
from retrotape.query._many_losses import ManyLosses
from retrotape.query._names import NAMED, replace_names, variable_named
from retrotape.query._request import make_request


class Queries(ManyLosses, HigherOrder):
    """Every derivative of anything that was recorded."""


__all__ = ["NAMED", "Queries", "Results", "has_text", "make_request", "replace_names", "variable_named"]
