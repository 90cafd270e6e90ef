"""The Python in our pages runs, and prints what the pages say it prints.

The blocks of a page run in order in one namespace. A `text` block right after a `python` block is its output.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^(?P<mark>`{3,})(?P<kind>[^\n`]*)\n(?P<body>.*?)^(?P=mark)[ ]*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """Python on a page: where it begins, and what it should print, if the page says so."""

    line: int
    code: str
    prints: str | None


def blocks(text: str) -> list[Block]:
    fences = list(FENCE.finditer(text))
    kinds = [fence["kind"].strip() for fence in fences]
    found = []
    for number, (fence, kind) in enumerate(zip(fences, kinds, strict=True)):
        if kind == "python":
            said = number + 1 < len(fences) and kinds[number + 1] == "text"
            line = text.count("\n", 0, fence.start("body"))
            found.append(Block(line, fence["body"], fences[number + 1]["body"] if said else None))
    return found


def run(page: Path) -> None:
    """Run a page in the current folder; raise where a block fails or prints something else."""
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page.read_text(encoding="utf-8")):
        # Empty lines before it make a traceback, and the lines that a tape remembers, point into the page.
        code = compile("\n" * block.line + block.code, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if block.prints is not None:
            assert printed.getvalue().rstrip("\n") == block.prints.rstrip("\n"), f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a page may save files
    run(page)


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
```bash
exit 1
```
"""


def test_blocks_are_found_with_their_lines_and_outputs():
    assert blocks(PAGE) == [Block(2, "x = 20\n", None), Block(7, "print(x + 1)\n", "21\n")]


def test_a_page_whose_output_is_right_passes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    run(page)


def test_a_page_whose_output_is_wrong_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("21", "22"))
    with pytest.raises(AssertionError, match=r"page\.md:7"):
        run(page)


def test_an_error_names_the_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("x + 1", "y"))
    with pytest.raises(NameError) as caught:
        run(page)
    assert caught.traceback[-1].lineno + 1 == 8
