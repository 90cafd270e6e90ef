"""Running ops → program. Knows nothing of derivatives beyond which values they will look at."""

from retrotape.record._attrs import default_attrs, for_execution, for_rule, with_defaults, without_defaults
from retrotape.record._away import is_away
from retrotape.record._born import born
from retrotape.record._cells import UNCOUNTED, Backward, Cell, Look, Scope, same
from retrotape.record._eager import EagerLog, cells_in
from retrotape.record._frames import Called, stacklevel
from retrotape.record._functions import function_traits, is_repeatable
from retrotape.record._interpret import run_op_by_op
from retrotape.record._recording import Recording
from retrotape.record._segments import SEGMENT
from retrotape.record._stack import Stack, current_stack, next_stamp
from retrotape.record._symbolic import GraphLog
from retrotape.record._traits import CUSTOM, TRAINABLE, Kind, is_computed, looked_at, traits

Log = EagerLog | GraphLog

__all__ = [
    "CUSTOM",
    "SEGMENT",
    "TRAINABLE",
    "UNCOUNTED",
    "Backward",
    "Called",
    "Cell",
    "EagerLog",
    "GraphLog",
    "Kind",
    "Log",
    "Look",
    "Recording",
    "Scope",
    "Stack",
    "born",
    "cells_in",
    "current_stack",
    "default_attrs",
    "for_execution",
    "for_rule",
    "function_traits",
    "is_away",
    "is_computed",
    "is_repeatable",
    "looked_at",
    "next_stamp",
    "run_op_by_op",
    "same",
    "stacklevel",
    "traits",
    "with_defaults",
    "without_defaults",
]
