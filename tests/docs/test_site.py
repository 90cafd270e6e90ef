"""The documentation site: a whole reference, links that lead somewhere, and nothing from the network."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("griffe")
from mkdocs.exceptions import PluginError

import retrotape as rt

ROOT = Path(__file__).parents[2]
LINKED = [
    "src",
    "tools",
    "examples",
    "README.md",
    "ARCHITECTURE.md",
    "FORMAT.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks, docstrings = load("docs_hooks"), load("docs_docstrings")

# ------------------------------------------------------------------ a whole reference

ONE_OF_EACH = [
    "retrotape.join",  # a function
    "retrotape.__version__",
    "retrotape.GradientTape",  # a second name
    "retrotape.Tape.reset",  # a method
    "retrotape.Tape.hvp",  # of a base class
    "retrotape.Tape.program",  # a property
    "retrotape.LoadedTape.why",
    "retrotape.JoinedTape.names",
    "retrotape.Gradients.missing",
    "retrotape.Gradients.mean",  # static
    "retrotape.Memory.bytes",  # a field of a tuple
    "retrotape.Explanation.target",  # of a dataclass
    "retrotape.Verdict.STOP_GRADIENT",
    "retrotape.errors.LostValueError",
    "retrotape-grad",  # a verb
]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_missing_name_fails_the_build(name):
    everything = set(hooks.public_names())
    hooks.check(everything)
    line = re.escape(f"::: {name}" if "." in name else "## retrotape grad")
    with pytest.raises(PluginError, match=rf"though public: {re.escape(name)}\. Add a line `{line}` there"):
        hooks.check(everything - {name})


def test_everything_public_is_asked_for():
    names = hooks.public_names()
    assert {f"retrotape.{name}" for name in rt.__all__} <= names
    exceptions = [kind for kind in vars(rt.errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert {f"retrotape.errors.{kind.__name__}" for kind in exceptions} <= names
    of_tapes = {name for name in dir(rt.Tape) if not name.startswith("_")}
    assert {f"retrotape.Tape.{name}" for name in of_tapes} <= names


def test_what_is_not_ours_is_not_asked_for():
    names = hooks.public_names()
    assert "retrotape.Memory.count" not in names  # a tuple's
    assert "retrotape.Tensors.index" not in names  # a sequence's
    assert not [name for name in names if "._" in name and name != "retrotape.__version__"]


# ------------------------------------------------------------------ pages from elsewhere


@pytest.mark.parametrize(
    ("source", "link", "on_site"),
    [
        ("docs/files.md", "../FORMAT.md", "format.md"),
        ("docs/files.md", "../FORMAT.md#the-file", "format.md#the-file"),
        ("docs/howto/nan.md", "../why.md", "../why.md"),
        ("docs/howto/nan.md", "../../examples/README.md", "../examples/index.md"),
        ("ARCHITECTURE.md", "FORMAT.md", "format.md"),
        ("CONTRIBUTING.md", "docs/limits.md", "limits.md"),
        ("examples/README.md", "maml.py", "maml.py"),
        ("examples/README.md", "../docs/why.md", "../why.md"),
        ("CHANGELOG.md", "https://semver.org", "https://semver.org"),
        ("docs/why.md", "#top", "#top"),
    ],
)
def test_links_lead_to_where_things_are_on_the_site(source, link, on_site):
    assert hooks.relink(f"See [it]({link}).", source) == f"See [it]({on_site})."


def test_examples_and_tables_in_docstrings_are_marked():
    text = "Do it.\n\n=====  ===\na      b\n=====  ===\n\n>>> f()\n1\n\nThe end."
    assert docstrings.as_markdown(text) == (
        "Do it.\n\n```text\n=====  ===\na      b\n=====  ===\n```\n\nExamples:\n  >>> f()\n  1\n\nThe end."
    )


# ------------------------------------------------------------------ whole builds

# Python imports a module of this name first; it lets no connection be made.
OFFLINE = """
import socket
def refuse(*args): raise OSError("no network here")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


def build(folder: Path) -> tuple[int, str]:
    """Build what is in a folder, without network; return the exit code and what was said."""
    (folder / "offline").mkdir()
    (folder / "offline" / "sitecustomize.py").write_text(OFFLINE)
    environment = {**os.environ, "PYTHONPATH": str(folder / "offline"), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def copy(folder: Path) -> Path:
    """Return a folder that has what a build needs, with pages that may be changed."""
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = copy(tmp_path_factory.mktemp("whole"))
    code, said = build(folder)
    assert code == 0, said
    return folder / "site"


@pytest.mark.slow
def test_a_build_without_one_name_fails(tmp_path):
    folder = copy(tmp_path)
    page = folder / "docs" / "api" / "questions.md"
    page.write_text(page.read_text().replace("::: retrotape.Tape.hvp\n", "::: retrotape.Tape.hessian\n"))
    code, said = build(folder)
    assert code != 0
    assert "Not in docs/api, though public: retrotape.Tape.hvp." in said
    assert not (folder / "site" / "index.html").exists()


class Loads(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag != "a":
            self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]


def loads(html: str) -> list[str]:
    parser = Loads()
    parser.feed(html)
    return parser.found


def test_what_a_page_loads_is_found():
    html = '<link href="//a/b.css"><script src="https://c/d.js"></script><a href="https://e">e</a><img src=f.png>'
    assert loads(html) == ["//a/b.css", "https://c/d.js", "f.png"]


@pytest.mark.slow
def test_nothing_is_loaded_from_the_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        assert not [url for url in loads(page.read_text()) if re.match(r"(?:[a-z]+:)?//", url)], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.slow
def test_what_a_page_loads_is_there(site):
    for page in site.rglob("*.html"):
        if page.name != "404.html":  # which has no place of its own
            gone = [url for url in loads(page.read_text()) if url and not (page.parent / url.split("?")[0]).exists()]
            assert not gone, page.name


@pytest.mark.slow
def test_pages_from_elsewhere_are_there_with_a_drawing(site):
    architecture = (site / "architecture.html").read_text()
    assert "pictures/how_an_op_becomes_a_gradient.svg" in architecture
    assert "flowchart" not in architecture
    assert "data_offsets" in (site / "format.html").read_text()
    assert (site / "examples" / "maml.py").read_text() == (ROOT / "examples" / "maml.py").read_text()


@pytest.mark.slow
def test_examples_of_docstrings_are_code(site):
    html = (site / "api" / "questions.html").read_text()
    assert html.count('<span class="gp">&gt;&gt;&gt; </span>') > 30
    assert html.count("&gt;&gt;&gt;") == html.count('<span class="gp">&gt;&gt;&gt; </span>')
    assert "```" not in html


@pytest.mark.slow
def test_search_knows_the_pages(site):
    index = (site / "search" / "search_index.json").read_text()
    for page in ("howto/none.html", "api/questions.html#retrotape.Tape.hvp", "architecture.html"):
        assert f'"location":"{page}"' in index


def test_files_that_texts_name_exist() -> None:
    texts = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in LINKED if name.endswith(".md"))]
    named = [
        (text.name, path)
        for text in texts
        if text.name != "CHANGELOG.md"  # which tells of files that are gone
        for path in re.findall(
            r"`((?:src|tests|tools|benchmarks|examples|docs|requirements)/[\w./-]+\.\w+)`", text.read_text()
        )
    ]
    assert len(named) > 20
    assert [pair for pair in named if not (ROOT / pair[1]).exists()] == []
