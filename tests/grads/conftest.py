"""A vector of gradients, new for each test."""

from __future__ import annotations

import pytest

from grads.vectors import Case


@pytest.fixture
def case() -> Case:
    return Case()
