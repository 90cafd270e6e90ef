"""Names in place of tensors and variables: which arguments may be names, and what a name refers to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retrotape.errors import AmbiguousNameError, UnknownNameError
from retrotape.query._base import has_text
from retrotape.record import Session
from retrotape.tf.core import tf, whole_of

NAMED = frozenset(("target", "sources", "source", "loss", "losses", "wrt", "variable"))


def replace_names(args: Sequence[Any], options: Mapping[str, Any], find: Callable[[str], Any]) -> tuple[Any, Any]:
    """Replace each name by the result of `find`, in the arguments that are targets and sources."""

    def put(item: Any) -> Any:
        return find(item) if isinstance(item, str) else item

    given = [tf.nest.map_structure(put, arg) if at < 2 and has_text(arg) else arg for at, arg in enumerate(args)]
    named = {key: tf.nest.map_structure(put, options[key]) for key in NAMED & options.keys() if has_text(options[key])}
    return tuple(given), {**options, **named}


def variable_named(session: Session, name: str) -> Any:
    """Return the variable of that name that the tape has read, or the only one whose name ends with it."""
    wanted = name.removesuffix(":0")
    variables = list({id(whole): whole for whole in map(_whole, session.variables())}.values())
    names = {id(variable): names_of(session, variable) for variable in variables}
    whole = [variable for variable in variables if wanted in names[id(variable)]]
    found = whole or [
        variable for variable in variables if any(known.endswith(f"/{wanted}") for known in names[id(variable)])
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise AmbiguousNameError(name, [names[id(variable)][0] for variable in found])
    hint = "A tape that was not loaded knows the names of the variables that it has read; give tensors themselves."
    raise UnknownNameError(name, [known[0] for known in names.values()], hint)


def _whole(variable: Any) -> Any:
    """Return the distributed variable, given its component on one device."""
    found = whole_of(variable)
    return variable if found is None else found


def names_of(session: Session, variable: Any) -> list[str]:
    """Return the names of a variable: in Keras, if known, and in TensorFlow."""
    owner = session.trace.owner_of(variable)
    path = getattr(owner, "path", None)
    return [*([] if path is None else [path]), variable.name.removesuffix(":0")]
