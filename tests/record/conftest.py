"""Every test of recording finds TensorFlow untouched and leaves it so."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _leaves_tensorflow_as_it_was(untouched: None) -> None:
    """See `untouched`."""
