"""What all errors have in common."""

from __future__ import annotations

from collections.abc import Sequence


class RetrotapeError(Exception):
    """The base class of all errors that retrotape raises."""

    # Tells AutoGraph to let these out of a tf.function as they are, not as an error of its own.
    ag_pass_through = True


def listed(names: Sequence[str]) -> str:
    """Return the first dozen of some names."""
    return ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a question that names what somebody may have meant; "" where nothing is near.

    >>> did_you_mean("dense/kernal", ["model/dense/kernel", "loss"])
    " Did you mean 'model/dense/kernel'?"
    """
    from difflib import get_close_matches  # late: most programs make no mistake

    steps = name.count("/") + 1
    ends = {"/".join(one.split("/")[-steps:]).lower(): one for one in reversed(known)}
    whole = {one.lower(): one for one in reversed(known)}
    near = get_close_matches(name.lower(), whole, 1) or get_close_matches(name.lower(), ends, 1)
    return f" Did you mean {({**ends, **whole})[near[0]]!r}?" if near else ""
