"""An extension of griffe: examples in docstrings become sections of their own on the site, tables blocks of text."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

# Users get these from functions; how they are made is nobody's business.
_GIVEN = frozenset(("JoinedTape", "LoadedTape"))
_RULE = re.compile(r"={3,}[= ]*")


class Docstrings(griffe.Extension):
    """Make Markdown of docstrings that were written to be read in an editor."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the text of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Forget how to make what is not made by users."""
        if cls.name in _GIVEN:
            cls.members.pop("__init__", None)


def as_markdown(text: str) -> str:
    """Put a title over examples, which reach to the next empty line, and fences around tables."""
    return "\n\n".join(_marked(paragraph) for paragraph in text.split("\n\n"))


def _marked(paragraph: str) -> str:
    first, last = paragraph.splitlines()[:1], paragraph.splitlines()[-1:]
    if first and first[0].startswith(">>> "):
        return "Examples:\n" + textwrap.indent(paragraph, "  ")
    if first and _RULE.fullmatch(first[0]) and _RULE.fullmatch(last[0]):
        return f"```text\n{paragraph}\n```"
    return paragraph
