"""Hooks of mkdocs: pages that live elsewhere in the repository, and a reference that misses nothing public."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

# Where files of the repository appear on the site. One text, read in both places.
ADOPTED = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "FORMAT.md": "format.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",  # the site has a first page of its own
    "examples/README.md": "examples/index.md",
}
DRAWING = "![How an op becomes a gradient](pictures/how_an_op_becomes_a_gradient.svg)"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
_MERMAID = re.compile(r"^```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r'\b(?:id|identifier)="(retrotape[^"]*)"')

_shown: set[str] = set()


# ------------------------------------------------------------------ pages from elsewhere


def on_config(config: MkDocsConfig) -> None:
    """Begin anew, for `mkdocs serve` builds many times in one process."""
    _shown.clear()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere in the repository, and what they link to."""
    root = _root(config)
    for source, uri in ADOPTED.items():
        if uri not in files.src_uris and (root / source).is_file():
            text = (root / source).read_text(encoding="utf-8")
            files.append(File.generated(config, uri, content=text))
            for linked in _linked(source, text):
                if (root / linked).is_file() and site_path(linked) not in files.src_uris:
                    files.append(File.generated(config, site_path(linked), abs_src_path=str(root / linked)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links point to where things are on the site; a drawing takes the place of what needs a script."""
    at = page.file.src_uri
    source = next((source for source, uri in ADOPTED.items() if uri == at and uri != "index.md"), f"docs/{at}")
    return _MERMAID.sub(DRAWING, relink(markdown, source))


def relink(markdown: str, source: str) -> str:
    """Return a page with its links as they are on the site.

    Args:
      markdown: The page.
      source: Where it is in the repository.
    """
    folder = os.path.dirname(site_path(source)) or "."

    def moved(link: re.Match[str]) -> str:
        return os.path.relpath(site_path(_target(source, link[1])), folder)

    return _LINK.sub(moved, markdown)


def site_path(path: str) -> str:
    """Return where a file of the repository is on the site."""
    return ADOPTED.get(path, path.removeprefix("docs/"))


def _target(source: str, link: str) -> str:
    return os.path.normpath(PurePosixPath(source).parent / link)


def _linked(source: str, text: str) -> list[str]:
    found = (_target(source, link) for link in _LINK.findall(text))
    return [path for path in dict.fromkeys(found) if not path.endswith(".md") and not path.startswith("docs/")]


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent


# ------------------------------------------------------------------ a whole reference


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Note what the reference shows."""
    if page.file.src_uri.startswith("api/"):
        _shown.update(_SHOWN.findall(html))


def on_env(env: Any, config: MkDocsConfig, files: Files) -> None:
    """Fail where the reference misses something public."""
    check(_shown)


def check(shown: set[str]) -> None:
    """Raise if a public name is not among those shown.

    Raises:
      PluginError: With the names that are missing.
    """
    missing = sorted(public_names() - shown)
    if missing:
        first = missing[0]
        line = f"::: {first}" if "." in first else f"## {first.replace('-', ' ')}"  # verbs have headings
        raise PluginError(f"Not in docs/api, though public: {', '.join(missing)}. Add a line `{line}` there.")


@functools.cache
def public_names() -> frozenset[str]:
    """Return all that a user may use: what the reference has to show."""
    import click

    import retrotape
    from retrotape.cli import main

    found = {f"retrotape-{verb}" for verb in main.list_commands(click.Context(main))}
    found.update(f"retrotape.farm.{name}" for name in retrotape.farm.__all__)
    found.update(f"retrotape.aggregate.{name}" for name in set(retrotape.aggregate.__all__) - set(retrotape.__all__))
    found.update(f"retrotape.callbacks.{name}" for name in retrotape.callbacks.__all__)
    for module, names in (("retrotape", retrotape.__all__), ("retrotape.errors", dir(retrotape.errors))):
        home = retrotape if module == "retrotape" else retrotape.errors
        for name in names:
            what = getattr(home, name)
            if home is retrotape or (inspect.isclass(what) and what.__module__ == module):
                found.add(f"{module}.{name}")
                if inspect.isclass(what) and what.__name__ == name:  # else a second name of the same class
                    found.update(f"{module}.{name}.{member}" for member in _members(what))
    return frozenset(found)


def _members(kind: type) -> Iterator[str]:
    """Yield public methods, properties, fields and members of an enumeration, also those from our base classes."""
    if dataclasses.is_dataclass(kind):
        yield from (field.name for field in dataclasses.fields(kind))
    yield from getattr(kind, "_fields", ())
    if issubclass(kind, enum.Enum):
        yield from kind.__members__
    methods = (property, functools.cached_property, staticmethod, classmethod)
    for base in kind.__mro__:
        for name, value in vars(base).items():
            ours = base.__module__.split(".")[0] == "retrotape" and not name.startswith("_")
            if ours and (inspect.isfunction(value) or isinstance(value, methods)):
                yield name
