"""A page in a real browser: Chromium without a window, which may ask nobody for anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CACHE = Path(os.environ.get("RETROTAPE_BROWSER_CACHE", Path.home() / ".cache" / "retrotape-browser"))
AXE = CACHE / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or ""
# Long tasks are counted from the first line of the page on.
_WATCH = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
}).observe({ type: "longtask", buffered: true });
"""


def missing() -> str:
    """Return what is missing to run these tests, empty if nothing is; raise if they are required."""
    found = _missing()
    if found and os.environ.get("RETROTAPE_BROWSER") == "required":
        raise RuntimeError(f"{found}. To skip these tests where it is missing, unset RETROTAPE_BROWSER.")
    return found


def _missing() -> str:
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "Playwright is not installed: `make test-browser`"
    if not CHROMIUM:
        return "Chromium is not installed: `make test-browser`"
    return "" if AXE.exists() else f"axe-core is not in {CACHE}: `make test-browser`"


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Opened:
    """A page that is open, and what it did that it must not do.

    Attributes:
      page: The page, to be driven by mouse and keyboard.
      requests: What it asked for, beside itself.
      complaints: Errors, and everything that it wrote to the console.
    """

    def __init__(self, browser: Any, path: Path, scheme: str = "light", **options: Any) -> None:
        viewport = {"width": 1280, "height": 900}
        self._context = browser.new_context(color_scheme=scheme, **{"viewport": viewport, **options})
        self.page = self._context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.add_init_script(_WATCH)
        self.page.on("request", lambda request: self._note_request(request.url, path))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.goto(path.as_uri())

    def _note_request(self, url: str, path: Path) -> None:
        if url != path.as_uri() and not url.startswith("data:"):
            self.requests.append(url)

    def close(self) -> None:
        """Close it."""
        self._context.close()

    def longest_task(self) -> float:
        """Return how many milliseconds the page was blocked at most; 0 if never for 50."""
        self.page.wait_for_timeout(300)  # entries arrive late
        return self.page.evaluate("window.longest")

    def rows(self) -> list[str]:
        """Return the text of the rows of the program that are in the page."""
        return self.page.locator("#tree [role=treeitem]").all_inner_texts()

    def wait_for_hits(self, text: str) -> None:
        """Wait until a search has ended."""
        from playwright.sync_api import expect

        expect(self.page.locator("#hits")).to_have_text(text)

    def violations(self) -> list[str]:
        """Return what axe finds wrong about accessibility."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['help']}: {node['html'][:200]}" for one in found["violations"] for node in one["nodes"]
        ]
