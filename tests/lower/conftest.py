"""Every test of this folder begins with nothing compiled, whatever RETROTAPE_COMPILE says, and leaves it so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.warm import forgetful


@pytest.fixture(autouse=True)
def _begins_with_nothing_compiled(untouched: None) -> Iterator[None]:
    """See `forgetful`; TensorFlow is as it was, before and after."""
    with forgetful():
        yield
