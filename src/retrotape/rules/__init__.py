"""Gradient rules: TensorFlow's registered ones, and those of reads and updates of variables."""

from retrotape.rules._allowed import allowed
from retrotape.rules._lookup import ACCEPTS_NONE, RULES, NoGradient, Rule, UnknownOp, lookup, lookup_operation
from retrotape.rules._repairs import has_wrong_second, repairable
from retrotape.rules._variables import FORWARD, gathered, new_values, variable_vjp

__all__ = [
    "ACCEPTS_NONE",
    "FORWARD",
    "RULES",
    "NoGradient",
    "Rule",
    "UnknownOp",
    "allowed",
    "gathered",
    "has_wrong_second",
    "lookup",
    "lookup_operation",
    "new_values",
    "repairable",
    "variable_vjp",
]
