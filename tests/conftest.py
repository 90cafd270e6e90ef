"""What tests of several folders ask pytest for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Make what Keras makes, hyper-parameters too, of type float64: differences need all the digits."""
    import keras  # here: other folders' tests start without it

    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])
