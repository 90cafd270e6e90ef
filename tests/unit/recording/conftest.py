"""Every test of recording finds TensorFlow untouched and leaves it so."""

from __future__ import annotations

import pytest

from recording_tools import is_untouched


@pytest.fixture(autouse=True)
def _leaves_tensorflow_as_it_was():
    assert is_untouched()
    yield
    assert is_untouched()
