"""Segments of a hundred bytes, so that a small net has many."""

from __future__ import annotations

import pytest

from helpers.recording import set_segment


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    set_segment(monkeypatch, 100)
