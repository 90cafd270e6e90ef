"""In eager code and inside a function."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[False, True], ids=["eager", "function"])
def traced(request: pytest.FixtureRequest) -> bool:
    return request.param
