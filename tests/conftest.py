"""What tests of several folders ask pytest for."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import spawn

import pytest

from helpers.processes import PYTHON


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


@pytest.fixture
def quick_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the processes of isolated tapes quickly: for tests of what they answer."""
    from helpers.isolating import quickly  # here: it loads TensorFlow

    quickly(monkeypatch)


@pytest.fixture
def quick_processes() -> Iterator[None]:
    """Let the processes that `multiprocessing` spawns find TensorFlow imported."""
    before = spawn.get_executable()
    spawn.set_executable(PYTHON)
    yield
    spawn.set_executable(before)


@pytest.fixture
def untouched() -> Iterator[None]:
    """Check that TensorFlow is as it was, before a test and after it."""
    from helpers.untouched import is_untouched  # here: it loads TensorFlow

    assert is_untouched()
    yield
    assert is_untouched()
