"""Turn running ops into a program. Knows nothing about derivatives except which values their rules read."""

from retrotape.record._attributes import default_attrs, for_execution, for_rule, with_defaults, without_defaults
from retrotape.record._constants import python_constants
from retrotape.record._frames import FrameTable, SavedPlace, count_as_users, here, line_of, stacklevel
from retrotape.record._functions import function_traits, is_pure_loop, is_repeatable
from retrotape.record._graph_session import CHANGING, GraphSession
from retrotape.record._histories import same
from retrotape.record._interpret import run_op_by_op
from retrotape.record._offload import Constant, is_lost, is_offloaded
from retrotape.record._position import Passed, Position
from retrotape.record._recorder import Recorder, new_trace, trace_of
from retrotape.record._run import Run
from retrotape.record._segments import SEGMENT
from retrotape.record._session import EagerSession, LoadedSession, histories_in
from retrotape.record._settings import config, settings
from retrotape.record._sites import EQUATIONS
from retrotape.record._stack import Stack, current_stack, next_time, next_times
from retrotape.record._template import PLAIN, Template, can_follow
from retrotape.record._tensors import TensorMap
from retrotape.record._trace import NO_QUERY, Trace
from retrotape.record._traced_layers import Chain, chain_of
from retrotape.record._traits import RESOURCE, TRAINABLE, Kind, is_deterministic, read_by_rule, traits

Session = EagerSession | GraphSession

__all__ = [
    "CHANGING",
    "EQUATIONS",
    "NO_QUERY",
    "PLAIN",
    "RESOURCE",
    "SEGMENT",
    "TRAINABLE",
    "Chain",
    "Constant",
    "EagerSession",
    "FrameTable",
    "GraphSession",
    "Kind",
    "LoadedSession",
    "Passed",
    "Position",
    "Recorder",
    "Run",
    "SavedPlace",
    "Session",
    "Stack",
    "Template",
    "TensorMap",
    "Trace",
    "can_follow",
    "chain_of",
    "config",
    "count_as_users",
    "current_stack",
    "default_attrs",
    "for_execution",
    "for_rule",
    "function_traits",
    "here",
    "histories_in",
    "is_deterministic",
    "is_lost",
    "is_offloaded",
    "is_pure_loop",
    "is_repeatable",
    "line_of",
    "new_trace",
    "next_time",
    "next_times",
    "python_constants",
    "read_by_rule",
    "run_op_by_op",
    "same",
    "settings",
    "stacklevel",
    "trace_of",
    "traits",
    "with_defaults",
    "without_defaults",
]
