"""Tests in a browser are skipped where there is none, unless they are required."""

from __future__ import annotations

from pathlib import Path

import pytest

from report import browser


def test_without_chromium(monkeypatch):
    monkeypatch.setattr(browser, "CHROMIUM", "")
    monkeypatch.setattr(browser, "AXE", Path("/nowhere"))
    monkeypatch.delenv("RETROTAPE_BROWSER", raising=False)
    assert "is not installed: `make test-browser`" in browser.missing()
    monkeypatch.setenv("RETROTAPE_BROWSER", "required")
    with pytest.raises(RuntimeError, match=r"is not installed: `make test-browser`\. To skip these tests"):
        browser.missing()


def test_make_requires_it():
    """Otherwise `make test-browser` would pass having run nothing."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "\ntest-browser: export RETROTAPE_BROWSER = required\n" in makefile
