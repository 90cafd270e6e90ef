"""A vector of gradients, new for each test."""

from __future__ import annotations

import pytest

from unit.gradients.vectors import Case


@pytest.fixture
def case() -> Case:
    return Case()
