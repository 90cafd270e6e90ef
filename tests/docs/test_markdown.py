"""The code in our pages runs, and prints what the pages say it prints.

The `python` blocks of a page run in order in one namespace, as if they were one file, `train.py`. A `text` block after
one is its output. In `console` blocks, lines with `$ retrotape` run the command line; `…` there is what may differ
between versions.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import tensorflow as tf
from click.testing import CliRunner

from helpers.processes import PYTHON
from helpers.warm import forgetful
from retrotape.cli import main
from retrotape.record import settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "examples" / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^(?P<mark>`{3,})(?P<kind>[^\n`]*)\n(?P<body>.*?)^(?P=mark)[ ]*$", re.MULTILINE | re.DOTALL)
FILE = "train.py"  # what the code of a page is called where a tape names the user's lines
KINDS = {"python", "text", "console"}  # anything else would look like code that runs, and would not


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    """Pages say what a process prints that has compiled nothing, with the default settings."""
    before = settings.mode
    with forgetful():
        yield
    settings.set(before)


class Block(NamedTuple):
    """Code on a page: where it begins, and what it should print, if the page says so."""

    line: int
    kind: str
    code: str
    prints: str | None


def blocks(text: str) -> list[Block]:
    fences = list(FENCE.finditer(text))
    kinds = [fence["kind"].strip() for fence in fences]
    found = []
    for number, (fence, kind) in enumerate(zip(fences, kinds, strict=True)):
        line = text.count("\n", 0, fence.start("body"))
        if kind == "python":
            said = number + 1 < len(fences) and kinds[number + 1] == "text"
            found.append(Block(line, kind, fence["body"], fences[number + 1]["body"] if said else None))
        elif kind == "console":
            for begin, command, prints in commands(fence["body"]):
                found.append(Block(line + begin, kind, command, prints))
    return found


def commands(text: str) -> list[tuple[int, str, str]]:
    """Return the commands of a session that we run: their lines, and all that follows up to the next prompt."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    assert not parts[0].strip(), "a session begins with a prompt"
    found, line = [], 0
    for command, prints in zip(parts[1::2], parts[2::2], strict=True):
        if command.split()[0] == "retrotape":
            found.append((line, command, prints))
        line += 1 + prints.count("\n")
    return found


class PageError(Exception):
    """A block of a page raised; it names the line of the page."""


def run(page: Path) -> None:
    """Run a page in the current folder; raise where a block fails or prints something else."""
    namespace: dict[str, object] = {"__name__": "__main__", "__file__": FILE}
    lines: list[str] = []
    for block in blocks(page.read_text(encoding="utf-8")):
        printed = session(block.code) if block.kind == "console" else exec_block(page, block, lines, namespace)
        if block.prints is not None:
            shown = with_gaps(block.prints, printed) if block.kind == "console" else block.prints
            assert printed.rstrip("\n") == shown.rstrip("\n"), f"{page.name}:{block.line}"


def with_gaps(shown: str, printed: str) -> str:
    """Fill in what a session leaves out of a line with `…`: versions, and sizes that depend on them."""
    pattern = "[^\\n]*".join(map(re.escape, shown.rstrip("\n").split("…")))
    return printed if re.fullmatch(pattern, printed.rstrip("\n")) else shown


def exec_block(page: Path, block: Block, lines: list[str], namespace: dict[str, object]) -> str:
    """Run one block as the next lines of the file, and return what it printed."""
    before = len(lines)
    lines += block.code.splitlines(keepends=True)
    linecache.cache[FILE] = (len(lines), None, lines, FILE)  # for tapes that show a line, and for tf.function
    printed = io.StringIO()
    try:
        code = compile("\n" * before + block.code, FILE, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
    except Exception as error:
        trace, line = error.__traceback__, getattr(error, "lineno", None) or 0
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == FILE else line
            trace = trace.tb_next
        raise PageError(f"{page.name}:{block.line + line - before}: {type(error).__name__}: {error}") from error
    return printed.getvalue()


def session(command: str) -> str:
    """Return what a command of ours prints, without empty ends of lines, which editors take away."""
    result = CliRunner().invoke(main, shlex.split(command)[1:], prog_name="retrotape", catch_exceptions=False)
    return "".join(f"{line.rstrip()}\n" for line in result.output.strip("\n").splitlines())  # tables end in spaces


@pytest.fixture
def _alone(tmp_path, monkeypatch):
    """A folder of its own, for a page may save files; no lines of the page before; layers numbered from the first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", PYTHON)  # what pages start has nothing to do with how it starts
    tf.keras.backend.clear_session()
    yield
    linecache.cache.pop(FILE, None)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page):
    run(page)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_say_what_they_are(page):
    kinds = {fence["kind"].strip() for fence in FENCE.finditer(page.read_text(encoding="utf-8"))}
    assert kinds <= KINDS


@pytest.mark.parametrize("page", sorted((DOCS / "howto").glob("*.md")), ids=lambda page: page.name)
def test_a_how_to_opens_with_what_the_stock_tape_does(page):
    """The mistake is really run: the first code on the page is the stock tape's, with what it gives."""
    first = blocks(page.read_text(encoding="utf-8"))[0]
    assert first.kind == "python"
    assert "tf.GradientTape" in first.code
    assert "retrotape" not in first.code
    assert first.prints


# ------------------------------------------------------------------ the finder itself

PAGE = """# Title
```python
x = 20
```
Words between.

```python
print(x + 1)
```

prints

```text
21
```
```console
$ exit 1
$ retrotape --version
retrotape, version 1
$ ls
```
"""


def test_blocks_are_found_with_their_lines_and_outputs():
    assert blocks(PAGE) == [
        Block(2, "python", "x = 20\n", None),
        Block(7, "python", "print(x + 1)\n", "21\n"),
        Block(17, "console", "retrotape --version", "retrotape, version 1\n"),
    ]


@pytest.fixture
def page(tmp_path, _alone):
    path = tmp_path / "page.md"
    version = CliRunner().invoke(main, ["--version"], prog_name="retrotape").output
    path.write_text(PAGE.replace("retrotape, version 1\n", version))
    return path


def test_a_page_whose_output_is_right_passes(page):
    run(page)


@pytest.mark.parametrize(("right", "wrong", "line"), [("21", "22", 7), ("version ", "versions ", 17)])
def test_a_page_whose_output_is_wrong_fails(page, right, wrong, line):
    page.write_text(page.read_text().replace(right, wrong))
    with pytest.raises(AssertionError, match=rf"page\.md:{line}"):
        run(page)


def test_only_a_gap_in_a_session_may_differ(page):
    text = page.read_text()
    page.write_text(re.sub(r"version .*", "version …", text))
    run(page)
    page.write_text(re.sub(r"retrotape, version .*", "…retrotapes, version …", text))
    with pytest.raises(AssertionError, match=r"page\.md:17"):
        run(page)
    page.write_text(text.replace("21", "…"))
    with pytest.raises(AssertionError, match=r"page\.md:7"):
        run(page)


@pytest.mark.parametrize("wrong", ["y", "1 +"])
def test_an_error_names_the_line_of_the_page(page, wrong):
    page.write_text(page.read_text().replace("x + 1", wrong))
    with pytest.raises(PageError, match=r"page\.md:8: (NameError|SyntaxError)"):
        run(page)


@pytest.mark.usefixtures("_alone")
def test_a_tape_names_the_lines_of_a_page_as_those_of_a_file(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("""
```python
import tensorflow as tf, retrotape as rt
x = tf.constant(1.0)
```
Words.
```python
with rt.Tape() as tape:
    y = tf.round(x)
print(tape.why(y, x).cut.frame)
```
```text
train.py:4
```
""")
    run(path)
