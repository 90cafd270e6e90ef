from __future__ import annotations

import keras
import pytest

from report.making import step, transformer
from retrotape.report import Report


@pytest.fixture(scope="session")
def trained() -> tuple:
    """A training step of a Transformer, update included: the tape, the loss and the model."""
    model = transformer()
    return *step(model, keras.optimizers.Adam()), model


@pytest.fixture(scope="session")
def report(trained) -> Report:
    tape, loss, _ = trained
    return tape.report(loss=loss)
