"""What the examples in docstrings take for granted."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _imports(request: pytest.FixtureRequest) -> None:
    """Give every docstring outside of `ir` the two imports that a user has made."""
    if isinstance(request.node, pytest.DoctestItem) and "ir" not in request.node.path.parts:
        import tensorflow as tf

        import retrotape as rt

        request.getfixturevalue("doctest_namespace").update(tf=tf, rt=rt)
