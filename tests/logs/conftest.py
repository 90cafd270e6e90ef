from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from helpers.tensorboard import Logs


@pytest.fixture
def writer(tmp_path):
    return tf.summary.create_file_writer(str(tmp_path))


@pytest.fixture
def read(tmp_path, writer):
    def logs() -> Logs:
        writer.flush()
        return Logs(tmp_path)

    return logs


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(3, activation="relu", name="hidden"), keras.layers.Dense(1, name="out")]
    return keras.Sequential([keras.Input([4]), *layers], name="net")
