"""Python code and what it depends on: whose it is, what it refers to, whether that is still the same."""

from retrotape.python._allowed import (
    METHODS_THAT_SEE_ALL,
    SEES_ALL,
    allow_atoms,
    exchanges_data,
    is_atom,
    makes_function,
    reads_state,
    why_impure,
    why_impure_type,
)
from retrotape.python._compare import (
    ABSENT,
    Entry,
    base_of,
    parts_of,
    read_call,
    read_content,
    read_item,
    read_size,
    read_values,
    same,
)
from retrotape.python._names import LOOKS_UP, by_line, line_storing, named_by, names_in
from retrotape.python._namespace import Namespace
from retrotape.python._objects import attributes, container, instance, space_of, state_of
from retrotape.python._observer import RESUMABLE, WATCHED, NewObjects, is_observable, observe
from retrotape.python._origin import LIBRARY, NEUTRAL, USER, is_generated, of_class, of_code, place_of, runs_for_user
from retrotape.python._snapshot import Snapshot
from retrotape.python._walk import TooManyObjectsError, Walk

__all__ = [
    "ABSENT",
    "LIBRARY",
    "LOOKS_UP",
    "METHODS_THAT_SEE_ALL",
    "NEUTRAL",
    "RESUMABLE",
    "SEES_ALL",
    "USER",
    "WATCHED",
    "Entry",
    "Namespace",
    "NewObjects",
    "Snapshot",
    "TooManyObjectsError",
    "Walk",
    "allow_atoms",
    "attributes",
    "base_of",
    "by_line",
    "container",
    "exchanges_data",
    "instance",
    "is_atom",
    "is_generated",
    "is_observable",
    "line_storing",
    "makes_function",
    "named_by",
    "names_in",
    "observe",
    "of_class",
    "of_code",
    "parts_of",
    "place_of",
    "read_call",
    "read_content",
    "read_item",
    "read_size",
    "read_values",
    "reads_state",
    "runs_for_user",
    "same",
    "space_of",
    "state_of",
    "why_impure",
    "why_impure_type",
]
