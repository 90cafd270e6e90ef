"""The version, and those of TensorFlow and Keras that the tests have run on: each in one place."""

__version__ = "0.1.0.dev0"

# The first and the last minor version, as `pyproject.toml` and the pages have them too; a test compares.
TENSORFLOW = ((2, 16), (2, 21))
KERAS = ((3, 8), (3, 15))
