"""What all errors have in common."""

from __future__ import annotations

from collections.abc import Sequence

_MANY, _LONG = 2000, 200  # names, and characters of one name, that are considered for a message


class RetrotapeError(Exception):
    """The base class of all errors that retrotape raises."""

    # AutoGraph re-raises these from a tf.function unchanged, instead of as its own error.
    ag_pass_through = True

    def __str__(self) -> str:
        """Return the message; text quoted from a file has no terminal control characters."""
        return without_controls(super().__str__())


def without_controls(text: str) -> str:
    r"""Return text whose lines stay lines, with every other character that is not printable as an escape.

    >>> without_controls("two\nlines, \x1b[2J")
    'two\nlines, \\x1b[2J'
    """
    return "\n".join(line if line.isprintable() else "".join(map(_shown, line)) for line in text.split("\n"))


def _shown(letter: str) -> str:
    return letter if letter.isprintable() else repr(letter)[1:-1]


def printable(text: str, longest: int | None = None) -> str:
    r"""Return text from a file as one line without control characters, cut where it is longer than `longest`.

    >>> printable("a\x1b[2Jb"), printable("x" * 9, 5)
    ('a\\x1b[2Jb', 'xxxx…')
    """
    if longest is not None and len(text) > longest:
        text = f"{text[: longest - 1]}…"
    if text.isprintable():
        return text
    shown = repr(text)[1:-1]
    return shown if longest is None or len(shown) <= longest else f"{shown[: longest - 1]}…"


def listed(names: Sequence[str]) -> str:
    """Return the first dozen of some names."""
    return ", ".join(printable(repr(name), _LONG) for name in names[:12]) + (", ..." if len(names) > 12 else "")


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a suggestion for a misspelled name; "" where no known name is close.

    >>> did_you_mean("dense/kernal", ["model/dense/kernel", "loss"])
    " Did you mean 'model/dense/kernel'?"
    """
    from difflib import get_close_matches  # late: only needed for an error message

    if len(name) > _LONG:
        return ""
    known = [one for one in known[:_MANY] if len(one) <= _LONG]  # names come from files: bound the time to compare
    steps = name.count("/") + 1
    ends = {"/".join(one.split("/")[-steps:]).lower(): one for one in reversed(known)}
    whole = {one.lower(): one for one in reversed(known)}
    near = get_close_matches(name.lower(), whole, 1) or get_close_matches(name.lower(), ends, 1)
    return f" Did you mean {({**ends, **whole})[near[0]]!r}?" if near else ""
